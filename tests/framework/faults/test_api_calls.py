"""Calls from a notebook with one argument of any kind: an answer, or one line that says what was expected.

FUZZ=2000 python -m pytest tests/framework/faults/test_api_calls.py: so many of each instead of a few.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import hydra
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from test_by_structure import fuzzed, one_line, plain

import mhprobe
from mhprobe.errors import UserError, types_of
from mhprobe.framework.run.members import members
from mhprobe.gates import gates_of
from mhprobe.maps.gradient_rollout import GradientRollout
from mhprobe.masking.beam import Beam
from mhprobe.masking.random import Random
from mhprobe.measures import GateImportance, Sinks
from models import images_for, labels_for, tiny_vit
from pieces import names

COUNT = 6


@functools.cache
def model() -> torch.nn.Module:
    whole = tiny_vit()
    mhprobe.attach(whole)
    return whole


@functools.cache
def images() -> torch.Tensor:
    return images_for(model(), COUNT)


def loader() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images()[part], labels_for(COUNT)[part]) for part in (slice(4), slice(4, COUNT))]


KEPT = tempfile.TemporaryDirectory()  # it goes with the process


@functools.cache
def folder() -> str:
    """With one photograph."""
    Image.new("RGB", (16, 16)).save(Path(KEPT.name) / "one.png")
    return KEPT.name


# function -> the arguments of a call that is right, and short
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "measure": (
        mhprobe.measure,
        {
            "model": model,
            "loader": loader,
            "measures": lambda: [GateImportance],
            "show_progress": False,
            "select_loader": None,
            "target": None,
        },
    ),
    "masking_curve": (
        mhprobe.masking_curve,
        {
            "model": model,
            "loader": loader,
            "units": "head",
            "order": "keep_best",
            "select_loader": None,
            "steps": 1,
            "exclude_layers": (),
            "min_heads_per_layer": 0,
            "rescale": False,
            "target": None,
            "score": None,
            "fill": "zero",
        },
    ),
    "masking_curve by_score": (
        functools.partial(mhprobe.masking_curve, order="by_score", units="head", steps=1),
        {
            "model": model,
            "loader": loader,
            "measure": lambda: GateImportance,
            "column": "value",
            "first": "lowest",
            "rescore_every": None,
        },
    ),
    "masking_curve random": (
        functools.partial(mhprobe.masking_curve, order="random", units="head", steps=1),
        {"model": model, "loader": loader, "repeats": 2, "seed": 0},
    ),
    "masking_curve beam": (
        functools.partial(mhprobe.masking_curve, order="beam", units="head", steps=1),
        {"model": model, "loader": loader, "width": 2},
    ),
    "masking_curve interactions": (
        functools.partial(mhprobe.masking_curve, order="interactions", units="head", steps=1),
        {"model": model, "loader": loader, "among": 2},
    ),
    "prune_heads": (
        mhprobe.prune_heads,
        {"model": model, "mask": lambda: [0, 4], "proj_bias": "keep", "fold": None},
    ),
    "masked": (lambda mask: gates_of(model()).masked(mask).__enter__(), {"mask": lambda: [0, 4]}),
    "fixed": (
        lambda values: gates_of(model()).fixed(values).__enter__(),
        {"values": lambda: torch.ones(6)},
    ),
    "attention": (
        mhprobe.attention,
        {"model": model, "images": images, "head": lambda: [0, 4], "query": "mean"},
    ),
    "record": (
        mhprobe.record,
        {
            "model": model,
            "images": images,
            "labels": lambda: labels_for(COUNT),
            "needs": lambda: {"grad"},
        },
    ),
    "load": (
        mhprobe.load,
        {"path": "nowhere.safetensors", "name": None, "flops": None, "params": None},
    ),
    "photos": (mhprobe.photos, {"folder": folder, "model": model, "batch_size": 2, "limit": None}),
    "attach": (mhprobe.attach, {"model": model}),
}

SIX = [0, 0, 0, 0, 0, 1]
values = (
    plain
    | st.sampled_from(
        [math.nan, math.inf, True, 1.5, "", (), {}, set(), object(), b"x", 10**30, -1, "keep_best"]
    )
    | st.sampled_from(
        [
            torch.tensor(SIX),
            np.array(SIX),
            torch.tensor(SIX).bool(),
            torch.zeros(0),
            torch.zeros(3, 3),
        ]
    )
    | st.sampled_from(
        [
            iter([]),
            [None],
            [[]],
            [torch.zeros(2)],
            lambda: None,
            GateImportance,
            torch.nn.Linear(1, 1),
        ]
    )
    | st.sampled_from(
        [
            "w" * 999,
            [7] * 999,
            [[10**30]],
            np.array(["a"]),
            [torch.tensor(3.0)],
            torch.zeros(2, 3, 5, 5),
        ]
    )
    | st.dictionaries(
        st.sampled_from(["heads", "flops", "latency", "legs"]),
        st.floats() | st.booleans(),
        max_size=2,
    )
    | st.lists(st.integers(-1, 7) | st.booleans() | st.floats(), max_size=7)
)


@st.composite
def calls(draw) -> tuple[str, str, Any]:
    """The call, the argument, and what is given for it."""
    name = draw(st.sampled_from(sorted(CALLS)))
    return name, draw(st.sampled_from(sorted(CALLS[name][1]))), draw(values)


def answer(name: str, /, **instead: Any) -> Any:
    function, arguments = CALLS[name]
    made = {key: value() if callable(value) else value for key, value in arguments.items()}
    return function(**{**made, **instead})


@pytest.fixture(autouse=True)
def gates_as_they_were():
    before = gates_of(model()).values.clone()
    yield
    with torch.no_grad():
        gates_of(model()).values.copy_(before)


@fuzzed
@given(call=calls())
@example(
    call=("masking_curve", "steps", 1.5)
)  # each was once a traceback, or an answer to another question
@example(call=("masking_curve", "steps", True))
@example(call=("masking_curve", "min_heads_per_layer", 0.5))
@example(call=("masking_curve", "loader", None))
@example(call=("masking_curve", "exclude_layers", 1))
@example(call=("masking_curve", "target", {"heads": math.nan}))
@example(call=("masking_curve", "target", {"flops": math.nan}))
@example(call=("masking_curve", "order", 3))
@example(call=("masking_curve", "rescale", "no"))
@example(call=("masking_curve random", "repeats", 1.5))
@example(call=("masking_curve beam", "width", True))
@example(call=("masking_curve interactions", "among", math.inf))
@example(call=("masking_curve by_score", "rescore_every", 1.5))
@example(call=("measure", "loader", None))
@example(call=("measure", "select_loader", 3))
@example(call=("measure", "target", "accuracy"))
@example(call=("measure", "model", None))
@example(call=("measure", "show_progress", torch.tensor(SIX)))
@example(call=("load", "path", 3))
@example(call=("load", "name", 3))
@example(call=("load", "flops", math.nan))
@example(call=("photos", "batch_size", 1.5))
@example(call=("photos", "limit", math.nan))
@example(call=("photos", "folder", b"x"))
@example(call=("prune_heads", "mask", torch.tensor(SIX)))
@example(call=("prune_heads", "mask", [1, 1]))
@example(call=("prune_heads", "model", "vit"))
@example(call=("prune_heads", "fold", math.nan))
@example(call=("masked", "mask", torch.tensor(SIX)))
@example(call=("fixed", "values", torch.ones(6, dtype=torch.bool)))
@example(call=("attention", "head", torch.tensor(SIX)))
@example(call=("attention", "head", [1.7]))
@example(call=("attach", "model", None))
@example(call=("masking_curve beam", "loader", [torch.zeros(2)]))
@example(call=("masking_curve", "loader", [torch.tensor(3.0)]))
@example(call=("masking_curve", "loader", [[10**30]]))
@example(call=("masking_curve", "loader", [[np.array(["a"]), np.array([0])]]))
@example(call=("masking_curve", "loader", [torch.zeros(2, 3, 5, 5)]))
@example(call=("measure", "loader", [torch.zeros(2)]))
@example(call=("measure", "loader", [[math.nan] * 99]))
@example(call=("attention", "query", np.array(SIX)))
@example(call=("attention", "query", (0.5, 1)))
@example(call=("attention", "query", (True, 1)))
@example(call=("masking_curve by_score", "first", np.array(SIX)))
@example(call=("attention", "images", {}))
@example(call=("attention", "images", torch.zeros(0)))
@example(call=("attention", "images", torch.tensor(3.0)))
@example(call=("attention", "query", "q" * 999))
@example(call=("masking_curve", "units", "u" * 999))
@example(call=("masking_curve", "exclude_layers", [7] * 999))
@example(call=("masking_curve by_score", "column", "c" * 999))
@pytest.mark.filterwarnings("ignore::mhprobe.measures.base.MeasureWarning")
def test_any_argument_is_taken_or_answered_in_a_line(call):
    name, argument, value = call
    try:
        answer(name, **{argument: value})
    except UserError as error:
        assert one_line(error)


REFUSED = [
    ("masking_curve", "steps", 1.5, "steps: expected a whole number"),
    ("masking_curve", "steps", True, "steps: expected a whole number"),
    ("masking_curve", "min_heads_per_layer", True, "min_heads_per_layer: expected a whole number"),
    ("masking_curve", "loader", None, "loader: expected a DataLoader"),
    ("masking_curve", "target", {"flops": math.nan}, "target"),
    ("masking_curve", "target", {"heads": True}, "target"),
    ("masking_curve random", "repeats", True, "repeats"),
    ("masking_curve beam", "width", True, "width"),
    ("masking_curve interactions", "among", True, "among"),
    ("masking_curve by_score", "rescore_every", True, "rescore_every"),
    ("measure", "loader", None, "loader: expected a DataLoader"),
    ("measure", "target", "accuracy", "of is one of loss, top1"),
    ("load", "path", 3, "path: expected a file"),
    ("load", "flops", math.nan, "load.flops: expected a finite number or null, got nan"),
    ("photos", "batch_size", True, "photos.batch_size: expected a whole number, got True"),
    ("photos", "limit", 1.5, "photos.limit: expected a whole number or null, got 1.5"),
    ("attention", "head", torch.tensor(SIX).bool(), "attention: head"),
]


@pytest.mark.parametrize(("name", "argument", "value", "words"), REFUSED)
def test_what_would_be_taken_for_something_else_is_refused(name, argument, value, words):
    with pytest.raises(UserError, match=words):
        answer(name, **{argument: value})


NUMBERS = {
    int: (math.nan, math.inf, 1.5, True),
    float: (math.nan, math.inf, True),
}  # what would pass for another


@pytest.mark.parametrize("name", names("measure"))
def test_no_measure_takes_an_option_that_is_not_of_its_type(name):
    """In a notebook, where no configuration is checked: 1.5 draws were a traceback, and True was one draw."""
    make = hydra.utils.get_class(members("measure")[name]["_target_"])
    for option, hint in types_of(make).items():
        kinds = {kind for kind in NUMBERS if hint is kind or kind in get_args(hint)} - {bool}
        for value in {value for kind in kinds for value in NUMBERS[kind]}:
            if bool in get_args(hint) or (value == 1.5 and float in kinds):
                continue
            with pytest.raises(UserError, match=rf"^{name}\.{option}: expected ") as error:
                make(gates_of(model()).layout, **{option: value})
            assert one_line(error.value)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (Beam, (True,), r"^masking order beam\.width: expected a whole number, got True"),
        (Random, (10, math.nan), r"^masking order random\.seed: expected a whole number, got nan"),
        (
            lambda *options: Sinks(gates_of(model()).layout, *options),
            (math.nan,),
            r"^sinks\.queries: expected ",
        ),
        (
            GradientRollout,
            ("mean", True),
            r"^gradient_rollout\.discard: expected a finite number, got True",
        ),
    ],
)
def test_options_without_their_names_are_of_their_types_too(make, options, words):
    with pytest.raises(UserError, match=words):
        make(*options)


def test_layers_that_may_be_a_mask_are_no_list():
    with pytest.raises(UserError, match="exclude_layers: expected a list"):
        answer("masking_curve", exclude_layers=torch.tensor([1, 0]))


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"load"}))
def test_what_is_right_is_taken(name):
    """Negative control of the above."""
    answer(name)
