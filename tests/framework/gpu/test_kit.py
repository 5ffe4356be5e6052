"""The kit for a machine with a GPU, shrunk: every stage runs where there is none, and is not done twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import runs

ROOT = Path(__file__).parents[3]


def kit(folder: Path, *stages: str) -> runs.Result:
    return runs.module("benchmarks.gpu", "run", str(folder), *stages, "--tiny", cwd=ROOT)


@pytest.mark.slow
def test_every_stage_but_the_tests_runs_shrunk_and_is_skipped_when_it_is_done(tmp_path, cifar):
    shutil.make_archive(str(tmp_path / "cifar10"), "tar", cifar)
    names = ["two_ranks", "train_vit", "train_swin"]
    names += ["tuning_speed", "measuring_time", "searching_time", "pruned_speed"]
    done = kit(tmp_path, *names)
    assert done.code == 0, done.out + done.err
    for name in names:
        found = json.loads((tmp_path / "results" / f"{name}.json").read_text())
        assert found["stage"] == name and found["found"] and found["conditions"]["torch"]
    speed = json.loads((tmp_path / "results" / "tuning_speed.json").read_text())["found"]
    assert {row["loop"] for row in speed} == {"training", "mhprobe", "timm"}
    assert all(row["images_per_s"] > 0 and row["first_step_s"] > 0 for row in speed)
    assert "train_vit: done before" in kit(tmp_path, "train_vit").out


def test_a_stage_that_is_not_there_is_named(tmp_path):
    done = kit(tmp_path, "train_everything")
    assert done.code != 0 and "no stage train_everything" in done.err
