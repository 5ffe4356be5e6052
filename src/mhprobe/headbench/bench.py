"""Measures against plants: how well each measure tells the heads of each plant from all others.

A model's measures are found in one pass on images that its weights were not calibrated on. A detector is a measure's
value or another of its columns that a plant names. Its AUROC over the heads of a model (over pairs of heads of one
layer, for measures of pairs and plants of two) is averaged over seeds; the interval is by bootstrap over seeds.

Shapes: A heads of all sites.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.headbench import world
from mhprobe.headbench.canvas import gated
from mhprobe.headbench.grow import Planted, grow, known
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import measure
from mhprobe.stats.auroc import auroc
from mhprobe.stats.bootstrap import bootstrap

Make = Callable[[HeadLayout], Measure]


class Row(NamedTuple):
    """One detector of one plant. direction: +1 if large values are expected of it, -1 small ones, 0 if nothing was.

    auroc, low, high: for that direction (+1 for 0), with its 95 % interval over seeds. seeds: in which the plant was
    verified and the measure had a number.
    """

    family: str
    plant: str
    measure: str
    direction: int
    auroc: float
    low: float
    high: float
    seeds: int


def bench(
    makes: Mapping[str, Make],
    families: Sequence[str],
    seeds: Sequence[int],
    images: int = 64,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Every measure on every plant. makes: measure's name -> what makes it of a layout.

    images: that are measured; as many others for measures that have to choose first.
    """
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for family in families:
        for seed in seeds:
            canvas, planted = grow(family, seed)
            values, refused = _values(canvas.layout, gated(canvas), makes, seed, images)
            there = [each for each in planted if each.verified]
            for plant in there:
                for name, score in _scores(canvas.layout, plant, planted, values):
                    found[family, plant.name, name].append(score)
            failed = ", ".join(each.name for each in planted if not each.verified) or "none"
            left_out = ", ".join(sorted(refused)) or "none"
            say(f"{family} seed {seed}: not verified: {failed}; measures that refused: {left_out}")
    plants = known()
    return [_row(plants, *key, scores) for key, scores in found.items()]


def _values(
    layout: HeadLayout, model: torch.nn.Module, makes: Mapping[str, Make], seed: int, images: int
) -> tuple[dict[str, Tensor], list[str]]:
    """(A,) or (A, A) per detector, and the names of measures that refused."""
    made = {name: make(layout) for name, make in makes.items()}
    look, choose = (world.draw(images, first + seed).batch() for first in (1000, 2000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # planted duplicates are what some measures warn of
        columns, refused = measure(model, made, lambda: [look], lambda: [choose])
    found = {}
    for name, each in columns.items():
        found[name] = each["value"]
        for detector in {d for plant in known().values() for d in plant.signs if d.startswith(f"{name}.")}:
            column = detector.partition(".")[2]
            if column not in each:
                raise UserError(f"headbench: {name} has no column {column}, which a plant names; it has {list(each)}.")
            found[detector] = each[column]
    return found, list(refused)


def _scores(
    layout: HeadLayout, plant: Planted, planted: Iterable[Planted], values: Mapping[str, Tensor]
) -> Iterable[tuple[str, float]]:
    """The AUROC of each detector for large values; what has no number there is left out."""
    alike = [each.heads for each in planted if each.name in plant.plant.like]
    for name, value in values.items():
        if value.shape == (layout.num_heads,):
            outside = torch.ones(layout.num_heads, dtype=torch.bool)
            outside[list(plant.heads) + [head for heads in alike for head in heads]] = False
            score = auroc(value[list(plant.heads)], value[outside])
        elif value.dim() == 2 and len(value) == layout.num_heads and plant.plant.heads == 2:
            pairs = _pairs(layout)
            for heads in [plant.heads, *(each for each in alike if len(each) == 2)]:
                pairs[heads[0], heads[1]] = pairs[heads[1], heads[0]] = False
            score = auroc(value[plant.heads[0], plant.heads[1]][None], value[pairs])
        else:
            continue
        if score == score:
            yield name, score


def _pairs(layout: HeadLayout) -> Tensor:
    """(A, A) bool: a head before another one of the same layer."""
    site = torch.tensor([number for number, _, _ in layout])
    return (site[:, None] == site[None]).triu(1)


def _row(plants: Mapping[str, object], family: str, plant: str, name: str, scores: Sequence[float]) -> Row:
    direction = plants[plant].signs.get(name, 0)  # type: ignore[attr-defined]
    values = torch.tensor(scores, dtype=torch.float64)
    values = 1 - values if direction < 0 else values
    low, high = (float(end) for end in bootstrap(values[None]))
    return Row(family, plant, name, direction, float(values.mean()), low, high, len(values))
