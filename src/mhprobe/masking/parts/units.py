"""Units, the sets of heads that go together, and how far a path through them may go.

A unit is the same index in every layer, one layer, one head, or one stage. A layer is a site of the layout; layers
count from 0 through all stages, and negative numbers from the end. Excluded layers are never masked. (The curve
layer_max2 of Byun & Kim, "What does the multi-head do?", leaves out the last one.)

A unit that would take a layer below ``min_heads_per_layer`` is skipped, so the heads that an order likes best stay.
A target says what shall be left: a number of heads, or a share of the dense model's FLOPs or time; the path ends with
the first step that reaches it.

Shapes: U units, A heads, L layers, M masks. In every mask True means: head off.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.options import fits
from mhprobe.masking.base import Units
from mhprobe.masking.parts.limits import ROUNDING, Cost, Limits, Target


def index(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """Head i of every layer; where stages differ in their number of heads, head i of every layer of one stage.

    Layers of one stage that have fewer heads (after pruning) are simply not in the units of the later indices.
    """
    most: dict[int, int] = {}
    for i in layers:
        site = layout.sites[i]
        most[site.stage] = max(most.get(site.stage, 0), site.num_heads)
    per_stage = len(set(most.values())) > 1
    heads: dict[str, list[int]] = {}
    for stage, h in ((stage, h) for stage, count in most.items() for h in range(count)):
        there = [i for i in layers if layout.sites[i].stage == stage and h < layout.sites[i].num_heads]
        heads.setdefault(f"stage {stage} index {h}" if per_stage else f"index {h}", []).extend(
            layout.flat(i, h) for i in there
        )
    return _units(layout, heads, per_stage)


def layer(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """All heads of one layer."""
    return _units(layout, {layout.sites[i].name: range(layout.offsets[i], layout.offsets[i + 1]) for i in layers})


def head(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """One head."""
    sites = [(i, layout.sites[i]) for i in layers]
    return _units(layout, {f"{s.name} head {h}": [layout.flat(i, h)] for i, s in sites for h in range(s.num_heads)})


def stage(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """All heads of one stage."""
    heads: dict[str, list[int]] = {}
    for i in layers:
        heads.setdefault(f"stage {layout.sites[i].stage}", []).extend(range(layout.offsets[i], layout.offsets[i + 1]))
    return _units(layout, heads)


UNITS: dict[str, Callable[[HeadLayout, Sequence[int]], Units]] = {f.__name__: f for f in (index, layer, head, stage)}


def make_units(name: str, layout: HeadLayout, exclude_layers: Sequence[int] = ()) -> Units:
    """The units called ``name`` of a layout, without the heads of the excluded layers."""
    if name not in UNITS:
        raise UserError(f"masking units: expected one of {', '.join(UNITS)}, got {quoted(name)}.")
    count = len(layout.sites)
    for number in exclude_layers:
        if type(number) is not int or not -count <= number < count:
            raise UserError(
                f"exclude_layers: the model has {count} layers, expected numbers from {-count} to {count - 1}, "
                f"got {number}."
            )
    excluded = {number % count for number in exclude_layers}
    if len({*exclude_layers}) < len(exclude_layers):  # a mask of layers would be a list of 0 and 1
        raise UserError(f"exclude_layers: expected layers, each once, got {quoted(list(exclude_layers))}.")
    layers = [i for i in range(count) if i not in excluded]
    if not layers:
        raise UserError(f"exclude_layers: all {count} layers are excluded, nothing is left to mask. Leave one out.")
    return UNITS[name](layout, layers)


def _units(layout: HeadLayout, heads: Mapping[str, Sequence[int]], per_stage: bool = False) -> Units:
    return Units(tuple(heads), torch.stack([layout.mask(list(members)) for members in heads.values()]), per_stage)


def target_of(setting: Mapping[str, float], layout: HeadLayout, costs: Mapping[str, Cost]) -> Target:
    """The target that ``{heads: 36}``, ``{flops: 0.8}`` or ``{latency: 0.8}`` asks for.

    A number of heads says nothing of neurons: a mix of both is asked for by what it costs.

    costs: what is left by masks, by unit; the number of heads is known here.
    """
    known: dict[str, Cost] = {**costs}
    if layout.kinds <= {"head"}:
        known = {"heads": lambda masks: (~masks).sum(-1).double(), **costs}
    if len(setting) != 1 or not set(setting) <= set(known):
        raise UserError(
            f"masking target: expected one of {', '.join(known)} with its value, got {quoted(dict(setting))}."
        )
    ((unit, value),) = setting.items()
    most = layout.num_heads if unit == "heads" else 1
    if not fits(value, float) or not 0 <= value <= most:
        raise UserError(f"masking target: {unit} is what shall be left, from 0 to {most}, got {quoted(value)}.")
    return Target(unit, float(value), known[unit])


def refuse_neurons(layout: HeadLayout, where: str) -> None:
    """UserError for units that are too many to be tried one after the other. where: the options, for the message."""
    if "neuron" in layout.kinds:
        raise UserError(
            f"{where}: looks at one unit after the other, and the model has {layout.counted}; expected gates on heads "
            f"alone. A mix of both is pruned by prune/order=knapsack with target={{flops: <share left>}}."
        )


def constrain(units: Units, limits: Limits, where: str) -> Units:
    """Put ``units`` under ``limits``; UserError if nothing may be masked, or if the target is out of reach.

    where: the options that limit, for messages.
    """
    floor, target = limits.min_heads_per_layer, limits.target
    if floor < 0:
        raise UserError(f"{where}.min_heads_per_layer: expected a whole number from 0, got {quoted(floor)}.")
    units = dataclasses.replace(units, limits=limits if floor or target is not None else None)
    nothing = torch.zeros(limits.layout.num_heads, dtype=torch.bool)
    if not limits.reached(nothing) and not units.candidates([]):
        raise UserError(
            f"{where}: min_heads_per_layer={floor} leaves no unit to mask: each would take a layer "
            f"below it. Lower it, or mask smaller units (units=head)."
        )
    if target is not None:
        check_reached(limits, _farthest(units), where)
    return units


def check_reached(limits: Limits, off: Tensor, where: str) -> None:
    """UserError with the nearest value if the (A,) mask, where a path ends, misses the target."""
    target = limits.target
    if target is None or limits.reached(off):
        return
    nearest = math.ceil((target.left(off) - ROUNDING) * 1e4) / 1e4  # rounded up, so that asking for it works
    raise UserError(
        f"{where}.target: {target.unit}={target.value:g} can't be met: with every unit masked that may "
        f"be (min_heads_per_layer={limits.min_heads_per_layer}) {nearest:g} is left. Ask for at least "
        f"that, or lift the limits (exclude_layers, min_heads_per_layer)."
    )


def _farthest(units: Units) -> Tensor:
    """(A,) the mask at the end of the path that takes units as they come."""
    return units.masks[units.chosen(len(units), lambda order, left: left[0])].any(0)
