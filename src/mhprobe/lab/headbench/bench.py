"""Measures against plants: how well each measure tells the heads of each plant from all others.

A detector is a measure's value, or another of its columns that a plant names. Its AUROC over the
heads of a model (over pairs of heads of one layer for measures of pairs) is averaged over seeds,
with Student's interval over seeds. NaN for a planted head, or for all others, counts 0.5. Images
are others than the weights were calibrated on.
"""

import importlib
import inspect
import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe import measures as all_measures
from mhprobe.backbones import attach
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError, quoted, refusing
from mhprobe.heads import HeadLayout
from mhprobe.lab.headbench.canvas import draw_images
from mhprobe.lab.headbench.plants import Plant, Planted, all_plants, grow
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import Columns, measure_columns
from mhprobe.stats.agreement import auroc
from mhprobe.stats.significance import t_interval

Make = Callable[[HeadLayout], Measure]


class DetectorRow(NamedTuple):
    """One detector of one plant.

    direction: +1 for large values expected, -1 for small ones, 0 for no expectation.

    auroc, low, high: in that direction (+1 for 0), with the 95 % interval over seeds. seeds: number
    of those in which the plant was verified. numbers: of these, those in which the detector had a
    number for the planted heads.
    """

    family: str
    plant: str
    measure: str
    direction: int
    auroc: float
    low: float
    high: float
    seeds: int
    numbers: int


class Told(NamedTuple):
    """AUROC of one detector for one plant, for large values.

    complete: True if every planted head has a number.
    """

    auroc: float
    complete: bool


def bench(
    makes: Mapping[str, Make],
    families: Sequence[str],
    seeds: Sequence[int],
    images: int = 64,
    say: Callable[[str], None] = lambda line: None,
) -> list[DetectorRow]:
    """Score every measure on every plant.

    images: to measure, and as many to choose on. UserError: a missing column.
    """
    scores: dict[tuple[str, str, str], list[Told]] = defaultdict(list)
    plants = all_plants()
    named = _named_columns(plants.values())
    for family, seed in itertools.product(families, seeds):
        canvas, planted = grow(family, seed)
        look, choose = (draw_images(images, first + seed).batch() for first in (1000, 2000))
        attach(canvas.model)  # it is finished
        columns, refused = columns_on(canvas.model, canvas.layout, makes, look, choose)
        values: dict[str, Tensor] = {}
        for name, of_measure in columns.items():
            values |= detectors(name, of_measure, named.get(name, []))
        for plant in planted:
            if plant.verified:
                for name, score in _scores(canvas.layout, values, plant, planted).items():
                    scores[family, plant.name, name].append(score)
        failed = [plant.name for plant in planted if not plant.verified]
        say(
            f"{family} seed {seed}: not verified: {_listed(failed)}; "
            f"measures that refused: {_listed(sorted(refused))}"
        )
    return [
        _row(plants[key[1]].signs.get(key[2], 0), *key, of_seeds)
        for key, of_seeds in scores.items()
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _named_columns(plants: Iterable[Plant]) -> dict[str, list[str]]:
    """Return the columns that plants name beside a measure's value, by the measure."""
    signs = sorted({sign for plant in plants for sign in plant.signs if "." in sign})
    columns: dict[str, list[str]] = {}
    for measure, column in (sign.split(".", 1) for sign in signs):
        columns.setdefault(measure, []).append(column)
    return columns


def _scores(
    layout: HeadLayout, values: Mapping[str, Tensor], plant: Planted, planted: Sequence[Planted]
) -> dict[str, Told]:
    """Return how well each detector tells a plant, without those that have no number for it.

    planted: all of the model; those that a detector may take for this one are left out.
    """
    alike = [other.heads for other in planted if other.name in plant.plant.like]
    told = {name: told_of(layout, value, plant.heads, alike) for name, value in values.items()}
    return {name: score for name, score in told.items() if score is not None}


def detectors(name: str, columns: Columns, extra: Sequence[str]) -> dict[str, Tensor]:
    """Return the numbers of a measure that detect a plant, (A,) or (A, A) each, by their names.

    extra: columns beside "value" that plants name. UserError for one that the measure has not.
    """
    values = {name: columns["value"]}
    for column in extra:
        if column not in columns:
            raise UserError(
                f"headbench: {name} has no column {column}, which a plant names; it has "
                f"{list(columns)}."
            )
        values[f"{name}.{column}"] = columns[column]
    return values


def columns_on(
    model: torch.nn.Module,
    layout: HeadLayout,
    makes: Mapping[str, Make],
    look: Batch,
    choose: Batch,
) -> tuple[dict[str, Columns], dict[str, UserError]]:
    """Columns by measure on the images ``look``, and the refusals; ``choose``: images for measures that choose."""
    measures = {name: make(layout) for name, make in makes.items()}
    with warnings.catch_warnings(action="ignore"):  # some measures warn of heads that are alike
        return measure_columns(model, measures, lambda: [look], lambda: [choose])


def told_of(
    layout: HeadLayout, value: Tensor, heads: Sequence[int], left_out: Sequence[Sequence[int]] = ()
) -> Told | None:
    """AUROC of planted heads among all other heads, or of a planted pair among all pairs within layers.

    value: (A,) of heads or (A, A) of pairs; None for another shape. left_out: heads, or pairs, that
    are not compared with. A planted head without a number counts 0.5.
    """
    if value.shape == (layout.num_heads,):
        outside = torch.ones(len(value), dtype=torch.bool)
        outside[[*heads, *itertools.chain(*left_out)]] = False
        inside, others = value[list(heads)], value[outside]
    elif value.shape == (layout.num_heads,) * 2 and len(heads) == 2:
        site = layout.site_of_head
        pairs = (site[:, None] == site[None]).triu(1)
        for one, other in (heads, *(group for group in left_out if len(group) == 2)):
            pairs[one, other] = pairs[other, one] = False
        inside, others = value[heads[0], heads[1]][None], value[pairs]
    else:
        return None
    numbers = inside[~inside.isnan()]
    if not len(numbers) or others.isnan().all():
        return Told(0.5, False)
    share = len(numbers) / len(inside)
    return Told(share * auroc(numbers, others) + (1 - share) / 2, share == 1)


def _row(direction: int, family: str, plant: str, name: str, scores: Sequence[Told]) -> DetectorRow:
    values = torch.tensor([score.auroc for score in scores], dtype=torch.float64)
    values = 1 - values if direction < 0 else values
    mean, low, high = torch.stack(t_interval(values[:, None])).clamp(0, 1).flatten().tolist()
    numbers = sum(score.complete for score in scores)
    return DetectorRow(family, plant, name, direction, mean, low, high, len(values), numbers)


def entries(names: Sequence[str] | None, entered: Sequence[str] = ()) -> dict[str, Make]:
    """Makers of measures by name, with their defaults. UserError for an unknown name or class."""
    kinds = (getattr(all_measures, name) for name in dir(all_measures))
    shipped = {kind.__new__(kind).name: kind for kind in kinds if not inspect.isabstract(kind)}
    if unknown := sorted(set(names or ()) - set(shipped)):
        raise UserError(
            f"headbench: no measures {', '.join(unknown)}; there are {', '.join(sorted(shipped))}."
        )
    chosen = {name: shipped[name] for name in (shipped if names is None else names)}
    return chosen | {kind.__new__(kind).name: kind for kind in map(_imported, entered)}


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    kinds = (ImportError, AttributeError, ValueError)
    with refusing(
        lambda error: f"headbench: cannot import {quoted(path)} ({error}); expected module.Class.",
        kinds,
    ):
        kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Measure)):
        raise UserError(
            f"headbench: {path} is no measure; expected a subclass of "
            "mhprobe.measures.base.Measure."
        )
    return kind
