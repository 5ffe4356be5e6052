"""A sweep over the steps of masking curves: each job scores its own step, and nobody searches twice."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path

import pytest
import torch

import mhprobe.framework.questions.scorers
import mhprobe.mask
import runs
from mhprobe.masking.base import Scores
from mhprobe.masking.parts.cache import MaskCache
from mhprobe.pages.html.compare import write_comparison
from mhprobe.pages.several import groups_in_words as lines_of
from mhprobe.pages.several import pairs_of_runs, rows_of_pairs, several
from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.run import read_run

pytestmark = pytest.mark.slow


def rows(folder: Path) -> list[dict[str, str]]:
    return runs.rows(folder / "tables" / "masking_curves.csv")


@pytest.fixture(scope="module")
def command(trained):
    return [
        *runs.TINY,
        f"weights={trained.folder / 'model.safetensors'}",
        "trainer.precision=32-true",
    ]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The rows of the whole curves, from a run with a cache of its own."""
    result = runs.run("mask", *command, cwd=tmp_path_factory.mktemp("whole"))
    assert result.code == 0, result.err
    return rows(result.folder)


@pytest.mark.parametrize(
    "more", [(), ("trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu")], ids=["1", "2"]
)
def test_each_job_writes_its_step_of_the_whole_curve(command, whole, tmp_path, more):
    result = runs.run("mask", "-m", *command, *more, "masking.step=0,1", cwd=tmp_path)
    assert result.code == 0, result.err
    [sweep] = tmp_path.glob("outputs/digits_vit/sweep_*")
    assert sorted(path.name for path in sweep.iterdir() if path.is_dir()) == ["0", "1"]
    for step in ("0", "1"):
        got, expected = rows(sweep / step), [row for row in whole if row["step"] == step]
        assert {row["curve"] for row in got} == {row["curve"] for row in expected}
        for a, b in zip(got, expected, strict=True):
            for column in ("curve", "split", "step", "masked", "accuracy", "seed"):
                assert a[column] == b[column], (step, column)
            assert float(a["loss"]) == pytest.approx(float(b["loss"]), abs=1e-6)


def test_orders_are_searched_once_and_then_read(command, tmp_path, monkeypatch):
    made = []
    make = mhprobe.framework.questions.scorers.Evaluator

    def remembering(*args, **kwargs):
        made.append((kwargs["label"], make(*args, **kwargs)))
        return made[-1][1]

    monkeypatch.setattr(mhprobe.framework.questions.scorers, "Evaluator", remembering)

    def computed(step: int, cache: str) -> int:
        """Image-forwards on validation, where orders are chosen, of all searched curves together."""
        told = ("masking=six_curves", f"masking.step={step}", f"cache_dir={tmp_path / cache}")
        cfg = runs.checked("mask", *command, *told)
        made.clear()
        mhprobe.mask.run(cfg, tmp_path / f"{cache}_{step}_{len(list(tmp_path.iterdir()))}")
        return sum(evaluate.computed for label, evaluate in made if label.endswith("on validation"))

    assert computed(1, "cache") > 0
    assert computed(1, "cache") == 0
    assert computed(0, "cache") == 0
    # a later step takes the search up where it was left
    assert 0 < computed(2, "cache") < computed(2, "other")
    assert computed(2, "cache") == 0
    # whoever begins with the last step has paid for the earlier ones
    assert computed(2, "backwards") > 0
    assert [computed(step, "backwards") for step in (1, 0)] == [0, 0]


@pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is None,
    reason='pip install "mhprobe[joblib]"',
)
def test_jobs_side_by_side_score_no_mask_twice(command, tmp_path):
    told = (*command, "masking=single_heads", "hydra/launcher=parallel", "hydra.launcher.n_jobs=2")
    result = runs.run("mask", "-m", *told, "masking.step=2,3", cwd=tmp_path)
    assert result.code == 0, result.err
    files = list(tmp_path.glob("**/orders/*.scores"))
    assert len(files) == 2  # of validation and test
    for file in files:
        cache = MaskCache(file.parent, file.stem)
        cache.load(torch.zeros(0, 6, dtype=torch.bool), None, 1)
        assert file.read_bytes().count(b"mhps") == len(cache.places) > 1


def test_who_searches_is_alone_and_the_next_reads_what_was_found(tmp_path):
    mask = torch.ones(1, 6, dtype=torch.bool)
    scores = Scores(torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.float64))
    entered, found = threading.Event(), []

    def second() -> None:
        entered.set()
        with MaskCache(tmp_path, "key").alone():
            found.append(bool(MaskCache(tmp_path, "key").load(mask, None, 3)[0].all()))

    first, waiting = MaskCache(tmp_path, "key"), threading.Thread(target=second)
    with first.alone():
        waiting.start()
        assert entered.wait(60)
        waiting.join(0.5)
        assert not found  # it waits
        with MaskCache(tmp_path, "other").alone():  # the control: other images, nobody waits
            pass
        first.save(mask, None, scores)
    waiting.join(60)
    assert found == [True]


def test_a_process_forked_during_a_search_does_not_keep_its_lock(tmp_path):
    """As a loader's worker that lives longer than the search."""
    ended, end = os.pipe()
    with MaskCache(tmp_path, "key").alone():
        worker = os.fork()
        if worker == 0:
            os.close(end)
            os.read(ended, 1)  # until the test ends
            os._exit(0)
    waiting = threading.Thread(target=_search_once, args=(tmp_path,), daemon=True)
    waiting.start()
    waiting.join(20)
    still_waits = waiting.is_alive()
    os.close(end)
    os.waitpid(worker, 0)
    assert not still_waits


def _search_once(folder) -> None:
    with MaskCache(folder, "key").alone():
        pass


def test_without_locks_nobody_waits_and_nothing_fails(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    with MaskCache(tmp_path, "key").alone(), MaskCache(tmp_path, "key").alone():
        pass
    (tmp_path / "file").write_text("")
    with MaskCache(tmp_path / "file", "key").alone():  # no folder can be made there
        pass


@pytest.fixture(scope="module")
def stepped(command, tmp_path_factory):
    """Runs of the steps 0 to 2 of one greedy and one random order of single heads."""
    place = tmp_path_factory.mktemp("stepped")
    found = []
    for step in (0, 1, 2):
        told = ("masking=single_heads", f"masking.step={step}", f"cache_dir={place / 'cache'}")
        folder = place / "sweep" / str(step)
        mhprobe.mask.run(runs.checked("mask", *command, *told), folder)
        found.append(read_run(folder))
    return found


def at(run, curve):
    [row] = [
        row
        for row in rows(run.folder)
        if (row["curve"], row["split"]) == (curve, "test") and row["seed"] in ("", "mean")
    ]
    return row


def test_the_answer_of_a_step_is_the_masked_network(stepped):
    for run in stepped:
        step = int(at(run, "greedy")["step"])
        for curve in ("greedy", "importance", "random"):
            for name, column in (("accuracy", "accuracy"), ("accuracy_low", "low")):
                told = run.metrics[f"masked/{curve}/{name}"]
                assert told == pytest.approx(float(at(run, curve)[column]))
            told = run.metrics[f"masked/{curve}/accuracy_difference"]
            assert told == pytest.approx(float(at(run, curve)["difference"]))
            assert run.metrics[f"masked/{curve}/heads"] == step
        assert run.metrics["masked/accuracy"] == run.metrics["masked/greedy/accuracy"]
        first = words.result_in_words(run, atlas.heads_listed(run), atlas.measures(run))[0]
        share = words.percent_of(float(at(run, "greedy")["accuracy"]))
        assert first.startswith("Step 0, no head off" if not step else f"Step {step} of greedy, ")
        assert share in first and ("paired" in first or not step)
        assert words.asked(run)[0] == run.metrics["masked/accuracy"]
        # the whole network stays as the reference, named so
        assert words.accuracy(run)[0] == run.metrics["test/accuracy"]


def test_steps_are_compared_as_masked_networks(stepped, tmp_path):
    right = [run.masked_outcomes() for run in stepped]
    assert all(list(of) == ["greedy", "importance"] for of in right)
    for run, of in zip(stepped, right, strict=True):
        for curve, outcomes in of.items():
            share = float(outcomes.right.double().mean())
            assert share == pytest.approx(run.metrics[f"masked/{curve}/accuracy"])
    tested = rows_of_pairs(stepped, ["0", "1", "2"])
    assert {row["curve"] for row in tested} == {"greedy", "importance"} and len(tested) == 6
    for row in tested:
        a, b = (
            float(at(stepped[int(row[end])], row["curve"])["accuracy"])
            for end in ("run_a", "run_b")
        )
        assert row["difference"] == pytest.approx(b - a)
    # the control: the whole network against itself shows nothing
    assert {
        row["difference"] for row in pairs_of_runs([run.outcomes() for run in stepped], "012")
    } == {0}
    text = lines_of(several(stepped))
    assert text[0].startswith("Step 0, no head off") and text[1].startswith("Step 1 of greedy, 1 ")
    page = write_comparison(stepped, tmp_path / "page.html").read_text()
    assert "Step 2 of greedy, 2 heads off" in page and "as many random heads leave" in page
    assert '"swept":true' in page.replace(" ", "")


def test_a_step_beyond_the_curves_is_refused_before_the_work(command, tmp_path, monkeypatch):
    """Before an image is decoded: it was after all of them."""
    from mhprobe.data.base import ImageData
    from mhprobe.errors import UserError

    monkeypatch.setattr(ImageData, "_decode", lambda *_: pytest.fail("an image was decoded"))
    cfg = runs.checked("mask", *command, "masking=single_heads", "masking.step=99")
    with pytest.raises(UserError, match=r"masking.step: steps 0 to \d+ exist, got 99"):
        mhprobe.mask.run(cfg, tmp_path / "beyond")
    assert not list((tmp_path / "beyond").glob("tables/*"))
