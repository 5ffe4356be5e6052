"""The driver: every question is asked once, one that fails holds up no other, and all ranks decide together."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mhprobe
import mhprobe.maps.__main__
import mhprobe.probe
import runs
import spawned
from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.framework.questions.ask import Answers
from mhprobe.framework.questions.material import Material
from mhprobe.framework.questions.plan import Question
from mhprobe.framework.run import questions as run_questions
from mhprobe.framework.run import trainers
from mhprobe.report.figures.style import canvas
from mhprobe.report.report import Report
from mhprobe.report.result import Result
from mhprobe.report.tables import Table
from models import tiny_vit


def answers(folder: Path, questions: list[Question], first: bool = True) -> Answers:
    model = tiny_vit()
    layout = mhprobe.attach(model).layout
    return Answers(questions, Material(layout, model, None, first=first), Report(folder, layout))


def table(number: float) -> dict[str, Result]:
    return {f"result_{number}": Result(Table(["value"], [[number]]))}


def refuse(material: Material) -> dict[str, Result]:
    raise UserError("it cannot be said")


def test_a_question_without_an_answer_holds_up_no_other(tmp_path):
    asked = answers(tmp_path, [Question("a", refuse), Question("b", lambda material: table(1))])
    asked.find()
    assert (tmp_path / "tables" / "result_1.csv").is_file() and list(asked.refused) == ["a"]
    with pytest.raises(UserError, match="it cannot be said"):
        asked.complain()


@pytest.mark.parametrize("others", [0, 1])
def test_a_refusal_that_ends_the_command_is_printed_once(others, tmp_path, caplog):
    more = [Question("b", lambda material: table(1))] * others
    with caplog.at_level("INFO"):
        answers(tmp_path, [Question("a", refuse), *more]).find()
    assert (
        caplog.text.count("it cannot be said") == others
    )  # the command prints the error at its end


def test_maps_are_a_question_like_others_and_go_through_the_one_answer(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        run_questions, "answer", lambda cfg, folder, more, tested: asked.extend(more(None, None))
    )
    mhprobe.maps.__main__.run(runs.config("maps", tmp_path, "maps=[rollout]"), tmp_path / "run")
    (question,) = asked
    assert isinstance(question, Question) and question.name == "maps"


@pytest.mark.parametrize(
    ("command", "told"),
    [("prune", ("prune=given", "prune.heads=[1]")), ("prunebench", ("optim.teacher=null",))],
)
def test_a_command_of_one_process_is_named_where_it_is_given_two(
    command, told, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainers, "build_trainer", lambda *_: SimpleNamespace(world_size=2))
    cfg = runs.config(command, tmp_path, *told)
    with pytest.raises(UserError, match=f"^{command}: runs in one process, got 2"):
        run_questions.answer(cfg, tmp_path / "run", tested=False)


def test_a_question_whose_results_are_there_is_not_asked_again_and_a_changed_one_is(tmp_path):
    asked = []

    def ask(material):
        asked.append(1)
        return table(2)

    for made_from, count in (("one", 1), ("one", 1), ("another", 2), ("", 3), ("", 4)):
        answers(tmp_path, [Question("a", ask, made_from=made_from)]).find()
        assert len(asked) == count
    done = json.loads((tmp_path / "finished.json").read_text())
    assert done == {"a": {"made_from": "another", "files": ["tables/result_2.csv"]}}


def test_a_damaged_list_of_finished_questions_is_refused_in_a_line(tmp_path):
    (tmp_path / "finished.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        answers(tmp_path, [Question("a", refuse)]).find()


def one_rank(rank: int, world: int, folder: Path) -> None:
    """Rank 1 alone fails at the first question; the second one needs both."""

    def alone(material: Material) -> dict[str, Result]:
        if ranks.rank() == 1:
            raise UserError("rank 1 alone")
        return table(1)

    def both(material: Material) -> dict[str, Result]:
        return table(ranks.total(torch.ones(1)).item())

    asked = answers(folder, [Question("alone", alone), Question("both", both)], first=rank == 0)
    asked.find()
    (folder / f"{rank}.txt").write_text(str(asked.refused["alone"]))
    assert list(asked.refused) == ["alone"]


def test_all_ranks_decide_together_after_each_question(tmp_path):
    began = time.monotonic()
    spawned.ranks(one_rank, 2, tmp_path)
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)] == ["rank 1 alone"] * 2
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["result_2.0.csv"]
    assert (
        time.monotonic() - began < 120
    )  # starting two processes on a busy machine; for ever without the agreement


def spread(material: Material, times: float = 1.0) -> dict[str, Result]:
    """A kind of result of a user's own, all of it in one file."""
    value = material.columns("gate_importance")["value"]
    table = Table(["times", "spread"], [[times, value.std().item()]])
    with canvas((3, 2)) as figure:
        figure.subplots().plot(value)
    return {
        "spread": Result(table, figure, caption="How far heads differ.", larger="heads differ more")
    }


def test_a_new_kind_of_result_is_one_function(tmp_path):
    told = (
        "measure=[gate_importance]",
        "+question.mine._target_=test_ask.spread",
        "+question.mine.times=2.5",
    )
    few = ("data.limit_test=20", "data.limit_val=10", "data.limit_train=20")
    mhprobe.probe.run(runs.config("probe", tmp_path, *few, *told), tmp_path / "run")
    (row,) = runs.rows(tmp_path / "run" / "tables" / "spread.csv")
    values = torch.tensor(
        [float(each["value"]) for each in runs.rows(tmp_path / "run/tables/gate_importance.csv")]
    )
    assert row["times"] == "2.5" and float(row["spread"]) == pytest.approx(values.std().item())
    entry = json.loads((tmp_path / "run" / "results.json").read_text())["results"]["spread"]
    assert entry["larger"] == "heads differ more" and entry["images"] == 20
    assert "How far heads differ." in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(UserError, match=r"question\.mine"):
        mhprobe.probe.run(
            runs.config("probe", tmp_path, *few, *told, "+question.mine.wrong=1"),
            tmp_path / "other",
        )
