"""Measures against plants: how well each measure tells the heads of each plant from all others.

A model's measures are found in one pass on images that its weights were not calibrated on. A detector is a measure's
value or another of its columns that a plant names. Its AUROC over the heads of a model (over pairs of heads of one
layer, for measures of pairs and plants of two) is averaged over seeds; the interval is by bootstrap over seeds.

A detector without a number for a planted head, or for any other head, has not found it: NaN counts as a coin, 0.5.
"""

import importlib
import inspect
import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe import measures as all_measures
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError, quoted
from mhprobe.headbench.canvas import draw, gated
from mhprobe.headbench.plants import grow, known
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import Columns, measure
from mhprobe.stats.agreement import auroc
from mhprobe.stats.intervals import bootstrap

Make = Callable[[HeadLayout], Measure]


class Row(NamedTuple):
    """One detector of one plant. direction: +1 if large values are expected of it, -1 small ones, 0 if nothing was.

    auroc, low, high: for that direction (+1 for 0), with its 95 % interval over seeds. seeds: in which the plant was
    verified. numbers: in how many of them the measure had a number for the planted heads; elsewhere 0.5 counts.
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
    """The AUROC of one detector for one plant against the other heads of its model, for large values.

    known: whether it had a number for every planted head, and for another head to compare it with.
    """

    auroc: float
    known: bool


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
    found: dict[tuple[str, str, str], list[Told]] = defaultdict(list)
    for family, seed in itertools.product(families, seeds):
        canvas, planted = grow(family, seed)
        values, refused = _values(canvas.layout, gated(canvas), makes, seed, images)
        for plant in (each for each in planted if each.verified):
            alike = [each.heads for each in planted if each.name in plant.plant.like]
            for name, value in values.items():
                if (score := told_of(canvas.layout, value, plant.heads, alike)) is not None:
                    found[family, plant.name, name].append(score)
        failed = ", ".join(each.name for each in planted if not each.verified) or "none"
        left_out = ", ".join(sorted(refused)) or "none"
        say(f"{family} seed {seed}: not verified: {failed}; measures that refused: {left_out}")
    plants = known()
    return [_row(plants[key[1]].signs.get(key[2], 0), *key, all_told) for key, all_told in found.items()]


def _values(
    layout: HeadLayout, model: torch.nn.Module, makes: Mapping[str, Make], seed: int, images: int
) -> tuple[dict[str, Tensor], list[str]]:
    """(A,) or (A, A) per detector, and the names of measures that refused."""
    # others than the canvas was calibrated on, and other ones to choose on than to measure on
    look, choose = (draw(images, first + seed).batch() for first in (1000, 2000))
    columns, refused = measured(model, layout, makes, look, choose)
    named = sorted({detector for plant in known().values() for detector in plant.signs})
    found = {}
    for name, each in columns.items():
        found[name] = each["value"]
        for detector in (detector for detector in named if detector.startswith(f"{name}.")):
            column = detector.partition(".")[2]
            if column not in each:
                raise UserError(f"headbench: {name} has no column {column}, which a plant names; it has {list(each)}.")
            found[detector] = each[column]
    return found, list(refused)


def measured(
    model: torch.nn.Module, layout: HeadLayout, makes: Mapping[str, Make], look: Batch, choose: Batch
) -> tuple[dict[str, Columns], dict[str, UserError]]:
    """Columns by measure, of ``look``, and why others refused; ``choose``: for measures that have to choose first."""
    made = {name: make(layout) for name, make in makes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # heads that are alike, as planted ones, are what some measures warn of
        return measure(model, made, lambda: [look], lambda: [choose])


def told_of(
    layout: HeadLayout, value: Tensor, heads: Sequence[int], left_out: Sequence[Sequence[int]] = ()
) -> Told | None:
    """AUROC of planted heads among all other heads, or of a planted pair among all pairs within layers.

    value: (A,) numbers of heads, or (A, A) of pairs; None where the numbers are of neither. left_out: heads, or pairs,
    that are not compared with. 0.5 counts for each planted head without a number.
    """
    if value.shape == (layout.num_heads,):
        outside = torch.ones(len(value), dtype=torch.bool)
        outside[[*heads, *itertools.chain(*left_out)]] = False
        inside, others = value[list(heads)], value[outside]
    elif value.shape == (layout.num_heads,) * 2 and len(heads) == 2:
        site = torch.tensor([number for number, _, _ in layout])
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


def _row(direction: int, family: str, plant: str, name: str, all_told: Sequence[Told]) -> Row:
    values = torch.tensor([each.auroc for each in all_told], dtype=torch.float64)
    values = 1 - values if direction < 0 else values
    low, high = (float(end) for end in bootstrap(values[None]))
    known = sum(each.known for each in all_told)
    return Row(family, plant, name, direction, float(values.mean()), low, high, len(values), known)


def entries(names: Sequence[str] | None, entered: Sequence[str] = ()) -> dict[str, Make]:
    """Measure's name -> what makes it, with its own defaults. UserError for a name or a class that there is not."""
    kinds = (getattr(all_measures, name) for name in dir(all_measures))
    shipped = {_name(kind): kind for kind in kinds if not inspect.isabstract(kind)}
    if unknown := sorted(set(names or ()) - set(shipped)):
        raise UserError(f"headbench: no measures {', '.join(unknown)}; there are {', '.join(sorted(shipped))}.")
    chosen = {name: shipped[name] for name in (shipped if names is None else names)}
    for path in entered:
        kind = _imported(path)
        chosen[_name(kind)] = kind
    return chosen


def _name(kind: Any) -> str:
    """Read an attribute of a measure's class, without a layout."""
    said = kind.__dict__.get("name")
    return said if isinstance(said, str) else Measure.name.fget(kind.__new__(kind))  # type: ignore[attr-defined]


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"headbench: cannot import {quoted(path)} ({error}); expected module.Class.") from error
    if not (isinstance(kind, type) and issubclass(kind, Measure)):
        raise UserError(f"headbench: {path} is no measure; expected a subclass of mhprobe.measures.base.Measure.")
    return kind
