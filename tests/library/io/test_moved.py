"""Names of modules that moved are found on disk: every old name leads to something that is there."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from mhprobe.errors import UserError
from mhprobe.framework.run.construct import construct
from mhprobe.io.moved import GONE, MOVED, current, renamed

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())


@pytest.mark.parametrize("new", sorted(MOVED.values()))
def test_every_new_place_is_a_module(new):
    assert importlib.import_module(f"mhprobe.{new}").__doc__


@pytest.mark.parametrize(
    "file", sorted((ROOT / "weights").glob("*.json")), ids=lambda path: path.stem
)
def test_what_a_shipped_file_names_is_there(file):
    text = json.dumps(json.loads(file.read_text()))
    for target in re.findall(r'"_target_": "(mhprobe\.[^"]+)"', text):
        module, _, name = current(target).rpartition(".")
        assert hasattr(importlib.import_module(module), name)


def test_a_part_of_before_the_wings_is_built_as_before():
    old = {"_target_": "mhprobe.surgery.learned.LearnedGates"}
    assert type(construct(old, "prune.order")).__module__ == "mhprobe.pruning.learned"


@pytest.mark.parametrize("place", ["lab.papers", "studies"])
def test_what_is_gone_is_one_line_with_the_command_that_does_its_work(place):
    old = {"_target_": f"mhprobe.{place}.panels.before_tuning.before_tuning", "before": "x"}
    with pytest.raises(UserError, match=r"is gone.* mhprobe diff BEFORE AFTER PHOTOS") as error:
        construct(old, "question.tuned")
    assert "\n" not in str(error.value) and "question.tuned" in str(error.value)
    for module in GONE:
        assert importlib.util.find_spec(f"mhprobe.{module}") is None


def test_names_that_did_not_move_stay():
    kept = ["mhprobe.measures.svcca.SVCCA", "claims.of.somebody.else", "mhprobe.runner.X"]
    assert [current(name) for name in kept] == kept
    assert current("mhprobe.run.jobs.X") == "mhprobe.framework.run.jobs.X"
    nested = {"a": [{"_target_": "mhprobe.studies.settling.Settling", "b": "mhprobe.run.jobs"}]}
    assert renamed(nested)["a"][0] == {
        "_target_": "mhprobe.lab.papers.settling.Settling",
        "b": "mhprobe.run.jobs",
    }
