"""Runs are compared image by image where they were tested on the same images, and nowhere else."""

from __future__ import annotations

import itertools
import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import binomtest

import mhprobe
import mhprobe.compare
import mhprobe.probe
import runs
from mhprobe.io.tensors import OUTCOMES, read_outcomes, write_outcomes
from mhprobe.pages.html import write_comparison
from mhprobe.pages.several import pairs_of_runs, several
from mhprobe.report.runs.run import read_runs
from pages.report.test_several import rows, seeded
from pages.report_html.test_page import Page

N = 200
WRONG = {"a": range(40), "b": range(20, 40), "c": range(30, 72), "d": range(40)}


@pytest.fixture
def four(tmp_path):
    """Runs on the same images, the last right where the first is."""
    for seed, (name, wrong) in enumerate(WRONG.items()):
        folder = seeded(tmp_path / name, seed, 1 - len(wrong) / N)
        write_outcomes(
            folder,
            torch.tensor([image not in wrong for image in range(N)]),
            torch.arange(N),
            "same",
        )
    return [tmp_path / name for name in WRONG]


def test_every_pair_has_an_exact_test_and_holms_correction(four):
    found = rows(several(read_runs(four))["paired"])
    assert [(row["run_a"][-1], row["run_b"][-1]) for row in found] == list(
        itertools.combinations("abcd", 2)
    )
    p = []
    for row in found:
        a, b = (set(WRONG[row[run][-1]]) for run in ("run_a", "run_b"))
        lost, won = len(b - a), len(a - b)
        p.append(binomtest(lost, lost + won, 0.5).pvalue if lost + won else 1.0)
        assert (row["lost"], row["won"], row["images"], row["untested"]) == (lost, won, N, "")
        assert row["difference"] == pytest.approx((won - lost) / N)
        assert row["low"] < row["difference"] < row["high"]
        assert row["p"] == pytest.approx(p[-1])
    assert p[0] < 1e-5 and p[2] == 1 and 0.01 < p[1] < 1
    adjusted = {}
    for rank, at in enumerate(sorted(range(6), key=p.__getitem__)):
        adjusted[at] = min(1.0, max([(6 - rank) * p[at], *adjusted.values()]))
    assert [row["p_holm"] for row in found] == pytest.approx([adjusted[at] for at in range(6)])


def test_runs_on_other_images_or_without_outcomes_are_not_tested(four):
    _, b, c, d = four
    write_outcomes(b, read_outcomes(b).right, torch.arange(N), "others")
    (c / OUTCOMES).unlink()
    (d / OUTCOMES).write_bytes((d / OUTCOMES).read_bytes()[:-1])  # half written
    found = pairs_of_runs([read_outcomes(run) for run in four], "abcd")
    said = {row["run_a"] + row["run_b"]: row["untested"] for row in found}
    assert said["ab"] == "they were tested on different images"
    assert said["ac"] == "c did not write which test images were right"
    assert said["ad"] == "d did not write which test images were right"
    assert said["cd"] == "c and d did not write which test images were right"
    assert {row["p"] for row in found} == {row["p_holm"] for row in found} == {""}


def test_the_page_and_the_terminal_say_it(four, tmp_path, monkeypatch, capsys):
    page = Page(write_comparison(read_runs(four), tmp_path / "c.html").read_text())
    (table,) = [
        each for each in page.data["tables"] if each["name"] == "accuracies on the same images"
    ]
    assert len(table["rows"]) == 6
    assert (
        "+10.0 points" in page.text
        and "on the same 200 images" in page.text
        and "told apart" not in page.text
    )
    (four[1] / OUTCOMES).unlink()
    page = Page(write_comparison(read_runs(four[:2]), tmp_path / "c.html").read_text())
    assert (
        "did not write which test images were right" in page.text
        and "told apart from 0" in page.text
    )
    assert not [
        each for each in page.data["tables"] if each["name"] == "accuracies on the same images"
    ]
    monkeypatch.setattr(sys, "argv", ["compare", *map(str, four), "--out", str(tmp_path / "out")])
    mhprobe.compare.main()
    out = capsys.readouterr().out
    assert (
        out.count("(McNemar, Holm) on the same 200 images.") == 3
        and out.count("no paired test") == 3
    )
    assert (tmp_path / "out" / "tables" / "paired.csv").is_file()


def test_a_run_writes_its_outcomes_and_runs_of_one_network_are_equal(trained, tmp_path):
    """Also with another batch size and masks on the way; fewer test images are other ones."""
    common = (
        "measure=[]",
        f"weights={trained.folder / 'model.safetensors'}",
        "trainer.precision=32-true",
    )
    for name, more in {"again": ["data.batch_size=7"], "fewer": ["data.limit_test=50"]}.items():
        mhprobe.probe.run(runs.checked("probe", *runs.TINY, *common, *more), tmp_path / name)
    first, again, fewer = (
        read_outcomes(folder) for folder in (trained.folder, tmp_path / "again", tmp_path / "fewer")
    )
    for found, folder in ((first, trained.folder), (fewer, tmp_path / "fewer")):
        metrics = json.loads((folder / "metrics.json").read_text())
        assert len(found.right) == metrics["test/images"]
        assert (
            found.right.double().mean().item() == metrics["test/accuracy"]
            and 0 < metrics["test/accuracy"] < 1
        )
    assert torch.equal(first.right, again.right) and first.images == again.images != fewer.images
    positions = [
        load_file(folder / OUTCOMES)["positions"] for folder in (trained.folder, tmp_path / "fewer")
    ]
    assert [len(each) for each in positions] == [101, 50]
    everywhere = dict(zip(positions[0].tolist(), first.right.tolist(), strict=True))
    shared = [
        (everywhere[at], right)
        for at, right in zip(positions[1].tolist(), fewer.right.tolist(), strict=True)
        if at in everywhere
    ]
    assert len(shared) > 10 and all(one == other for one, other in shared)
    copied = shutil.copytree(tmp_path / "again", tmp_path / "copied")
    (row,) = pairs_of_runs(
        [read_outcomes(run) for run in (trained.folder, copied)], ["trained", "copied"]
    )
    assert row["p"] == 1 and row["difference"] == 0


def test_features_are_not_judged(tmp_path):
    """Without a classifier 0 of 101 images were said to be right."""
    settings = ("measure=[]", "weights=random", "backbone.num_classes=0")
    mhprobe.probe.run(runs.checked("probe", *runs.TINY, *settings), tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["test/images"] == 101 and "test/right" not in metrics
    assert not (tmp_path / OUTCOMES).exists()
