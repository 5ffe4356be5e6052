"""A head is called the same everywhere: look, claims and papers read one table of functions."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace

import pytest
import torch

from mhprobe.backbones import attach
from mhprobe.lab.claims import attention as claims
from mhprobe.lab.claims.parts.estimates import third_of
from mhprobe.lab.headbench.canvas import draw_images
from mhprobe.lab.headbench.plants import grow
from mhprobe.lab.papers.panels import columns as panels
from mhprobe.measures import Position
from mhprobe.measures.parts.functions import FUNCTIONS, LABELS, holds
from mhprobe.pages.looking import sentences
from mhprobe.pages.looking.sentences import Facts
from mhprobe.report.figures.pruned import LABEL_SHADES
from models import tiny_vit

IMAGES = 16


def planted():
    """Heads that were written by hand: positional ones, sinks, local ones."""
    return grow("vit", 0)[0].model


def sharp():
    """Heads that look at few patches, and three that look everywhere alike."""
    model = tiny_vit(img_size=32, depth=12)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight *= 30
        model.blocks[2].attn.qkv.weight[: 2 * len(model.blocks[2].attn.qkv.weight) // 3] = 0
        model.blocks[2].attn.qkv.bias.zero_()
    return model


@functools.cache
def measured(make) -> Facts:
    """Tables of the network, as if there were so many images that intervals are points."""
    model = make()
    attach(model)
    known = sentences.measure_facts(model, draw_images(IMAGES, 5).images)
    tables = {
        name: {
            **known.measures[name],
            **dict.fromkeys(("low", "high"), known.measures[name]["value"]),
        }
        for name in sentences.SINGLE
    }
    return known._replace(measures=tables, images=10**9)


def called(known: Facts) -> dict[str, list[bool]]:
    """(A,) bool by function, of the table."""
    columns = {
        f"{name}.{column}": values.double().tolist()
        for name, table in known.measures.items()
        for column, values in table.items()
        if values.shape == (known.layout.num_heads,)
    }
    sink, offset = FUNCTIONS["sink"], FUNCTIONS["offset"]
    shares = zip(columns["position.value"], columns["position.reach"], strict=True)
    return {
        **holds(columns, known.layout.num_heads),
        "sink": [sink.reached(share) for share in columns["sinks.sink"]],
        "offset": [offset.reached(value / reach) for value, reach in shares],
    }


def named_by(known: Facts, *rules: str) -> list[bool]:
    """(A,) bool: the heads that sentences of ``look`` name."""
    heads = set()
    for rule in rules:
        heads |= {*getattr(sentences, rule)(known).heads}
    return [head in heads for head in range(known.layout.num_heads)]


@pytest.mark.parametrize("make", [planted, sharp])
@pytest.mark.parametrize(
    ("function", "rules"),
    [
        ("offset", ["offset", "itself"]),
        ("sink", ["sinks"]),
        ("local", ["reach"]),
        ("global", ["far"]),
        ("diffuse", ["even"]),
    ],
)
def test_look_names_the_heads_that_have_the_function(make, function, rules):
    known = measured(make)
    assert named_by(known, *rules) == called(known)[function]


@pytest.mark.parametrize("make", [planted, sharp])
def test_look_names_every_positional_head(make):
    """Who looks at one offset in nine tenths of all queries does so where the offset exists."""
    has = called(measured(make))
    positional = {head for head, on in enumerate(has["positional"]) if on}
    assert positional <= {head for head, on in enumerate(has["offset"]) if on}


def test_each_function_is_had_by_some_heads_of_these_networks_and_not_by_others():
    for function in ("positional", "offset", "sink", "local", "global", "diffuse"):
        has = called(measured(planted))[function] + called(measured(sharp))[function]
        assert 0 < sum(has) < len(has), function


@pytest.mark.parametrize("make", [planted, sharp])
def test_claims_count_the_heads_that_have_the_function(make):
    known = measured(make)
    has, of = called(known), SimpleNamespace(layout=known.layout)
    everywhere = torch.ones(known.layout.num_heads, dtype=torch.bool)
    third = third_of(known.layout)
    counts = [
        (claims.some_heads_are_positional, "position", "positional", everywhere, 0.0),
        (claims.some_heads_are_sinks, "sinks", "sink", everywhere, 0.0),
    ]
    if make is sharp:  # the other has too few heads in a third
        counts += [
            (claims.early_blocks_have_local_heads, "attention_distance", "local", third == 0, 0.0),
            (claims.late_heads_look_everywhere, "attention_distance", "global", third == 2, 0.5),
        ]
    for claim, measure, function, among, less in counts:
        share = torch.tensor(has[function])[among].double().mean().item() - less
        assert claim.effect(of, known.measures[measure]).effect == pytest.approx(share), function


@pytest.mark.parametrize("make", [planted, sharp])
def test_the_papers_page_marks_the_heads_that_have_the_function(make):
    known = measured(make)
    names = ("position", "entropy", "attention_distance")
    material = SimpleNamespace(layout=known.layout, names=names, columns=known.measures.__getitem__)
    table = panels.functions(material)["functions"].table
    has = called(known)
    for function in ("positional", "local", "global", "diffuse"):
        column = table.columns.index(function)
        assert [bool(row[column]) for row in table.rows] == has[function], function


def test_measures_have_the_limits_of_the_table():
    threshold = inspect.signature(Position).parameters["threshold"].default
    assert threshold == FUNCTIONS["positional"].limit
    table = measured(planted).measures["sinks"]
    silent = table["write"] < FUNCTIONS["no-op"].limit * table["write"].quantile(0.5)
    sink = torch.tensor(called(measured(planted))["sink"])
    assert (table["role"] == 1).equal(sink & silent) and silent.any()


def test_a_function_has_a_colour_in_every_figure():
    assert tuple(LABEL_SHADES) == LABELS
