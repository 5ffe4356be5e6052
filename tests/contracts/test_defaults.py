"""Hydra knows only the keys that a yaml lists, so a member's own yaml repeats its constructor's defaults: the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from mhprobe.run.sections import CONF


def members() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each yaml that has a member's own name, e.g. measure/svcca.yaml for SVCCA, and what stands in it."""
    for path in sorted(CONF.rglob("*.yaml")):
        stated = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        if isinstance(stated, dict) and plain(str(stated.get("_target_", "")).rpartition(".")[2]) == plain(path.stem):
            yield path, stated


def plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def differing(stated: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Option -> (what the yaml says, what the constructor says), where both say something else."""
    parameters = inspect.signature(get_object(stated["_target_"])).parameters
    found = {}
    for key, value in stated.items():
        default = parameters[key].default if key in parameters else None
        default = list(default) if isinstance(default, tuple) else default
        if default not in (None, inspect.Parameter.empty, value) and not isinstance(value, dict):
            found[key] = (value, default)
    return found


MEMBERS = {str(path.relative_to(CONF)): stated for path, stated in members()}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_default_that_is_stated_twice_is_the_same_or_its_line_says_why(name):
    lines = (CONF / name).read_text().splitlines()
    reasons = {line.split(":")[0].strip() for line in lines if "  #" in line}
    assert differing(MEMBERS[name]).keys() <= reasons


def test_members_are_found_and_a_default_that_drifted_is_seen():
    """Negative control."""
    assert len(MEMBERS) > 30
    drifted = [
        differing({**stated, key: "drifted"})
        for stated in MEMBERS.values()
        for key, value in stated.items()
        if key != "_target_" and value is not None
    ]
    assert sum(map(bool, drifted)) > 30
