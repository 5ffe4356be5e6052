"""A default is written once, in a yaml; where Hydra has to know a key, a member's yaml repeats its constructor's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf
from pydantic import BaseModel

import runs
from mhprobe.run import schema, sections
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


def defaults(model: type[BaseModel], stated: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Each default of the schema, and whether a configuration states a value of its own for it."""
    for key, field in model.model_fields.items():
        if not field.is_required():
            yield f"{model.__name__}.{key}", key in stated
        inner = stated.get(key)
        for kind in (field.annotation, *get_args(field.annotation)):
            if get_origin(kind) is dict and isinstance(inner, dict):
                for part in inner.values():
                    yield from defaults_of(get_args(kind)[1], part)
            yield from defaults_of(kind, inner)


def defaults_of(kind: Any, stated: Any) -> Iterator[tuple[str, bool]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(stated, dict):
        yield from defaults(kind, stated)


def twice(model: type[BaseModel]) -> set[str]:
    """Defaults of the schema that no command's configuration leaves to it."""
    found: dict[str, list[bool]] = {}
    for command in sections.commands():
        for name, stated in defaults(model, OmegaConf.to_container(runs.composed(command), resolve=False)):
            found.setdefault(name, []).append(stated)
    return {name for name, stated in found.items() if all(stated)}


def test_the_schema_has_no_default_that_every_yaml_states():
    class Drifted(schema.Config):
        seed: int = 0

    assert twice(schema.Config) == set()
    assert twice(Drifted) == {"Drifted.seed"}
