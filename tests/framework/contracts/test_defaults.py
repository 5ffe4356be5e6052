"""A default is written once: in the constructor, or in a yaml where there is none; the schema has no other."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf
from pydantic import BaseModel

import runs
from mhprobe.framework.run import constructors, schema, sections
from mhprobe.framework.run.members import FOLDERS, members
from mhprobe.framework.run.sections import CONF


def parts(stated: Any) -> Iterator[dict[str, Any]]:
    """All parts with a ``_target_`` of ours in what a yaml states."""
    if isinstance(stated, dict) and str(stated.get("_target_", "")).startswith(constructors.OURS):
        yield stated
    for inner in (
        stated.values() if isinstance(stated, dict) else stated if isinstance(stated, list) else ()
    ):
        yield from parts(inner)


def repeated(part: dict[str, Any]) -> set[str]:
    """The options that a part states although its constructor has the same default."""
    known = constructors.defaults_of(part["_target_"])
    return {
        key
        for key, value in part.items()
        if key in known and (type(value), value) == (type(known[key]), known[key])
    }


STATED = {
    str(path.relative_to(CONF)): list(
        parts(OmegaConf.to_container(OmegaConf.load(path), resolve=False))
    )
    for path in sorted(CONF.rglob("*.yaml"))
}
STATED |= {f"{group}/{name}": [part] for group in FOLDERS for name, part in members(group).items()}
TARGETS = sorted({part["_target_"] for stated in STATED.values() for part in stated})


@pytest.mark.parametrize("name", [name for name, stated in STATED.items() if stated])
def test_a_yaml_does_not_repeat_a_default(name):
    assert [part for part in STATED[name] if repeated(part)] == []


def test_a_default_that_is_repeated_is_seen():
    """Negative control."""
    for target in TARGETS:
        for option, value in constructors.defaults_of(target).items():
            assert repeated({"_target_": target, option: value}) == {option}
            assert repeated({"_target_": target, option: "another"}) == set()


def in_python(made: Any) -> dict[str, Any]:
    """Option -> default, by the signature of what is imported; those that are made on demand have none."""
    found = {
        name: list(each.default) if isinstance(each.default, tuple) else each.default
        for name, each in inspect.signature(made).parameters.items()
        if each.default is not inspect.Parameter.empty
    }
    return {name: value for name, value in found.items() if repr(value) != "<factory>"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_constructor_is_read_as_python_reads_it(target):
    made = get_object(target)
    read = dict(constructors.defaults_of(target))
    assert {name: read.pop(name, "not read") for name in in_python(made)} == in_python(made)
    above = (
        [vars(base)["__init__"] for base in inspect.getmro(made)[1:] if "__init__" in vars(base)]
        if read
        else []
    )
    inherited = [pair for base in above for pair in in_python(base).items()]
    assert all(pair in inherited for pair in read.items())


def test_some_options_are_those_of_a_base_class_but_not_what_a_class_decides_itself():
    """Negative control of the test before."""
    assert any(
        set(constructors.defaults_of(target)) - set(in_python(get_object(target)))
        for target in TARGETS
    )
    fisher = constructors.defaults_of("mhprobe.measures.fisher.Fisher")
    assert "normalize" in fisher and not {"power", "abs_at"} & fisher.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_the_docstring_says_what_every_option_is(target):
    said = "\n".join(text for _, text in constructors.docstrings(target))
    assert [
        option
        for option in constructors.defaults_of(target)
        if not re.search(rf"\b{option}\b", said)
    ] == []


def test_what_a_yaml_leaves_out_can_be_seen_and_set_also_below_what_the_command_line_adds():
    added = "+masking.curves.mine={units: head, order: {_target_: mhprobe.masking.beam.Beam}}"
    join = ("+masking/join=redundant_or_inert", "masking.join.similar.svcca.variance=0.5")
    cfg = runs.composed("mask", "masking=orders", *join, added)
    assert cfg.masking.join.similar.svcca.variance == 0.5
    pairs = in_python(get_object("mhprobe.measures.parts.pairs.Similarity"))
    assert cfg.masking.join.similar.svcca.folds == pairs["folds"]
    assert (
        cfg.masking.curves.mine.order.width
        == in_python(get_object("mhprobe.masking.beam.Beam"))["width"]
    )


def test_a_part_that_is_replaced_keeps_nothing_of_the_one_before():
    cfg = runs.composed("train", "gates=hard_concrete")
    assert "low" in cfg.gates.relaxation
    assert set(cfg.gates.relaxation) - {"_target_", "_partial_"} == set(
        constructors.defaults_of("mhprobe.gates.hard_concrete.HardConcreteGates")
    )


def test_a_part_that_the_command_line_replaces_keeps_only_what_was_typed():
    beam, random = "mhprobe.masking.beam.Beam", "mhprobe.masking.random.Random"
    seed = 7
    assert constructors.defaults_of(random)["seed"] != seed and "width" in constructors.defaults_of(
        beam
    )
    other = f"masking.curves.beam_index.order._target_={random}"
    order = runs.composed("mask", "masking=orders", other).masking.curves.beam_index.order
    assert order == {"_target_": random, **constructors.defaults_of(random)}
    seeded = runs.composed(
        "mask", "masking=orders", other, f"+masking.curves.beam_index.order.seed={seed}"
    )
    assert seeded.masking.curves.beam_index.order.seed == seed
    typed = (
        "masking.curves.beam_index.order.width=4"  # which Random has not: whoever builds it says so
    )
    assert (
        runs.composed("mask", "masking=orders", other, typed).masking.curves.beam_index.order.width
        == 4
    )


def test_what_is_not_there_has_no_options_and_is_left_to_whoever_builds_it():
    cfg = OmegaConf.create(
        {"a": {"_target_": "mhprobe.nowhere.X"}, "b": {"_target_": "torch.nn.Linear"}, "c": ["d"]}
    )
    before = OmegaConf.to_container(cfg)
    constructors.fill(cfg)
    assert OmegaConf.to_container(cfg) == before
    assert constructors.defaults_of("mhprobe.measures.svcca.Nothing") == {}


def of_schema(model: type[BaseModel], stated: dict[str, Any]) -> Iterator[tuple[str, bool]]:
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
        yield from of_schema(kind, stated)


def twice(model: type[BaseModel]) -> set[str]:
    """Defaults of the schema that no command's configuration leaves to it."""
    found: dict[str, list[bool]] = {}
    for command in sections.commands_of_conf():
        for name, stated in of_schema(
            model, OmegaConf.to_container(runs.composed(command), resolve=False)
        ):
            found.setdefault(name, []).append(stated)
    return {name for name, stated in found.items() if all(stated)}


def test_the_schema_has_no_default_that_every_yaml_states():
    class Drifted(schema.Config):
        seed: int = 0

    assert twice(schema.Config) == {
        "Config.logger"
    }  # the one group that a user may leave out: ~logger
    assert twice(Drifted) == {"Drifted.logger", "Drifted.seed"}
