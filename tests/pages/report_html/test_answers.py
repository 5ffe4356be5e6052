"""The first sentence of every command answers what was asked, and so does its first metric.

A command without a row fails: whoever adds one says what a person reads first.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mhprobe import __main__ as door
from mhprobe.framework.run.sections import commands_of_conf
from mhprobe.pages.html import write_comparison
from mhprobe.report.report import Report
from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.run import read_run, read_runs
from pages.report_html.conftest import layout, make_run, row
from results import add_measure, add_rows

TESTED = {"test/accuracy": 0.9, "test/images": 300}


def curves(folder: Path) -> None:
    make_run(folder)


def one_step(folder: Path) -> None:
    report = Report(folder, layout())
    add_rows(report, "masking_curves", [row("greedy", "test", 3, [0, 1, 2], 0.88)], "curves")
    report.add_metrics({**TESTED, "masked/accuracy": 0.88, "masked/heads": 3})


def measured(folder: Path) -> None:
    report = Report(folder, layout())
    value = torch.arange(12.0)
    add_measure(report, "entropy", "per_head", {"value": value}, "entropy (nats)")
    report.add_metrics(TESTED)


def pruned(folder: Path) -> None:
    report = Report(folder, layout())
    same = {"difference": 0.0, "difference_low": -0.01, "difference_high": 0.01, "p": 1.0}
    dense = {"stage": "dense", "accuracy": 0.9, "low": 0.85, "high": 0.93, "heads": 12}
    less = {"difference": -0.03, "difference_low": -0.05, "difference_high": -0.01, "p": 0.01}
    last = {**dense, **less, "stage": "pruned", "accuracy": 0.87, "heads": 8}
    stages = [{**one, "parameters": 7} for one in ({**dense, **same}, last)]
    add_rows(report, "pruning", stages, "stages", label="accuracy")
    add_measure(report, "entropy", "per_head", {"value": torch.arange(12.0)})
    report.add_metrics({"test/accuracy": 0.87, "test/images": 300})
    report.add_metrics({"prune/random/difference": -0.187, "prune/random/chosen_difference": -0.04})


def judged(folder: Path) -> None:
    report = Report(folder, layout())
    rows = [
        {"claim": name, "says": name, "verdict": verdict, "untrained": "holds"}
        for name, verdict in (("a", "holds"), ("b", "undecided"))
    ]
    add_rows(report, "claims", rows, "claims")
    report.add_metrics(TESTED)


def benched(folder: Path) -> None:
    report = Report(folder, layout())
    best = {"budget": 0.5, "method": "fisher", "accuracy": 0.9, "dense": 0.92, "stage": "pruned"}
    add_rows(report, "ranking", [{**best, "seeds": "0 1", "p_holm": ""}], "ranking")
    report.add_metrics(TESTED)


def mapped(folder: Path) -> None:
    report = Report(folder, layout())
    areas = {"deletion": 0.2, "insertion": 0.5, "random_deletion": 0.3, "random_insertion": 0.4}
    rows = [{"image": 0, "label": "a", "predicted": "a", "kind": "rollout", **areas}]
    add_rows(report, "maps", rows, "maps")
    report.add_metrics(TESTED)


HALF = r"\d+ of 12 heads can go for [\d.]+ points of test accuracy \("
STEP = r"Step 3 of greedy, 3 heads off: test accuracy is 88.0 % \("
EXTREMES = r"By entropy the highest heads are block \d+, head \d+: "
# asked -> what the run's folder holds, its first sentence
ANSWERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "train": (curves, HALF),
    "demo": (curves, HALF),
    "mask": (curves, HALF),
    "mask masking.step=3": (one_step, STEP),
    "probe": (measured, EXTREMES),
    "study": (measured, EXTREMES),
    "studies.causal": (measured, EXTREMES),
    "studies.voita": (measured, EXTREMES),
    "prune": (
        pruned,
        r"With 8 of 12 heads left test accuracy is 87.0 % \(85.0 to 93.0\), 3.0 points below the "
        r"dense network \(1.0 to 5.0, paired\); as many random heads cost 18.7\.",
    ),
    "claims": (judged, r"1 of 2 claims hold \("),
    "prunebench": (benched, r"At 50 % of the FLOPs fisher has an accuracy of 90.0 %"),
    "maps": (mapped, r"rollout: deletion 0.20 \(random orders 0.30; lower is better\)"),
}
# These write no such page; the test that reads the first line of each.
ELSEWHERE = {
    "look": "tests/pages/looking/test_look.py",
    "diff": "tests/pages/diffing/test_differences.py",
    "compare": "tests/pages/report_html/test_compare.py",
    "report": "tests/pages/report_html/test_page.py",
    "shrink": "tests/pages/shrinking/test_shrink.py",
    "headbench": "tests/lab/headbench/test_headbench.py",
    "studies.sweep": "tests/pages/report/test_several.py",
    "fetch": "tests/framework/run/test_cli.py",
    "dashboard": "tests/framework/loggers/test_workspace.py",
}


def test_every_command_has_a_row():
    asked = {command.split()[0] for command in ANSWERS}
    assert not asked & {*ELSEWHERE}
    assert asked | {*ELSEWHERE} == {*door.commands(), "demo"}


@pytest.mark.parametrize("asked", ANSWERS)
def test_the_first_sentence_answers_what_was_asked(asked, tmp_path):
    make, first = ANSWERS[asked]
    make(tmp_path / "run")
    run = read_run(tmp_path / "run")
    said = words.result_in_words(run, atlas.heads_listed(run), atlas.measures(run))
    assert re.match(first, said[0]), said[0]
    # the accuracy of the network as it is stands behind the answer, where it is another one
    assert not said[0].startswith("Test accuracy is")


# multirun -> what its jobs' folders hold, the first sentence of the sweep's page
SWEPT: dict[str, tuple[Callable[[Path], None], str]] = {
    "train": (curves, rf"\S+: {HALF}"),
    "mask": (curves, rf"\S+: {HALF}"),
    "mask masking.step=3": (one_step, r"Step 3 of greedy, 3 heads off: test accuracy is 88.0 % \("),
    "probe": (measured, r"\S+: test accuracy 90.0 % \("),
    "study": (measured, r"\S+: test accuracy 90.0 % \("),
    "studies.causal": (measured, r"\S+: test accuracy 90.0 % \("),
    "studies.voita": (measured, r"\S+: test accuracy 90.0 % \("),
    "prune": (pruned, r"\S+: With 8 of 12 heads left test accuracy is 87.0 % \("),
    "claims": (judged, r"\S+: 1 of 2 claims hold \("),
    "prunebench": (benched, r"\S+: test accuracy 90.0 % \("),
    "maps": (mapped, r"\S+: rollout: deletion 0.20 \("),
}


def test_every_command_that_hydra_runs_has_a_row_of_its_multirun():
    assert {command.split()[0] for command in SWEPT} | {"fetch"} == {*commands_of_conf()}


@pytest.mark.parametrize("asked", SWEPT)
def test_the_first_sentence_of_a_sweep_answers_what_was_asked(asked, tmp_path):
    make, first = SWEPT[asked]
    for job in "01":
        make(tmp_path / "sweep" / job)
    runs = read_runs([tmp_path / "sweep" / job for job in "01"])
    page = write_comparison(runs, tmp_path / "page.html").read_text()
    said = html.unescape(re.search(r'<ul class="words">\s*<li>(.*?)</li>', page)[1])
    assert re.match(first, said), said


def test_random_heads_stand_beside_chosen_ones_that_were_not_repaired_either(tmp_path):
    pruned(tmp_path / "run")
    run = read_run(tmp_path / "run")
    run.tables["pruning"].rows[-1][run.tables["pruning"].columns.index("stage")] = "repaired"
    said = words.result_in_words(run, atlas.heads_listed(run), atlas.measures(run))[0]
    assert said.endswith("; before repairing they cost 4.0, as many random heads 18.7.")


def test_the_metrics_of_a_pruning_are_of_the_pruned_network():
    """``compare``, W&B and sweepers read the accuracy under this name."""
    from mhprobe.framework.run.pruning import of_pruned
    from mhprobe.pruning.rounds import Pruned, Stage

    dense = Stage(0, "dense", 12, 0.9, 0.8, 1.0, 0.1, 0.0, 0.0, 0.0, 1.0, 10, 7, 7, "labels")
    last = dense._replace(stage="pruned", heads=8, accuracy=0.8, difference=-0.1)
    last = last._replace(difference_low=-0.2, difference_high=-0.05)
    gone = torch.zeros(12, dtype=torch.bool)
    metrics = of_pruned(Pruned(torch.nn.Identity(), gone, [dense, last]), layout())["pruning"]
    assert metrics.metrics["test/accuracy"] == 0.8 and metrics.metrics["prune/heads"] == 8
    ends = ("difference", "difference_low", "difference_high")
    assert [metrics.metrics[f"prune/{end}"] for end in ends] == [-0.1, -0.2, -0.05]
