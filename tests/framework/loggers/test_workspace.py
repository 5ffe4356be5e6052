"""W&B views as code: the same arguments give the stored specification; without the extra the answer is a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mhprobe import dashboard
from mhprobe.errors import UserError
from mhprobe.framework.loggers.workspace import CURVE_AXIS, views

STORED = Path(__file__).with_name("workspace.json")


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # it still speaks pydantic's first dialect
def test_the_specification_is_the_stored_one(capsys):
    """After a change that is meant: python -m mhprobe.dashboard <these arguments> > workspace.json, which lies here."""
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")
    dashboard.main(["me/heads", "--group", "sweep_1", "--measures", "gate_importance", "svcca"])
    assert json.loads(capsys.readouterr().out) == json.loads(STORED.read_text())
    text = STORED.read_text()
    for name in (
        "masking/head_max/test/accuracy",
        "figures/svcca",
        "tables/gate_importance",
        "prune/heads",
    ):
        assert name in text
    assert CURVE_AXIS in text
    assert text.count("sweep_1") >= 2  # both look at the group's runs


def test_a_project_without_an_entity_is_answered_in_a_line(capsys):
    with pytest.raises(SystemExit) as left:
        dashboard.main(["heads"])
    assert (
        left.value.code == 2
        and "expected entity/project, got 'heads'" in capsys.readouterr().err.lower()
    )


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    with pytest.raises(UserError, match=r"mhprobe\[dashboard\]"):
        views("me/heads", None, [], [])
