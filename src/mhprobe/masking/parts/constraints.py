"""Limits of a curve: a floor under every layer, and a target at which it stops.

A unit that would take a layer below ``min_heads_per_layer`` is skipped, so the heads that an order likes best stay.
A target says what shall be left: a number of heads, or a share of the dense model's FLOPs or time; the path ends with
the first step that reaches it.

Shapes: A heads, L layers, M masks. In every mask True means: head off.
"""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.options import fits
from mhprobe.masking.base import Units
from mhprobe.masking.parts.limits import ROUNDING, Cost, Limits, Target


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
            f"alone. A mix of both is pruned by prune/order=knapsack with prune.target={{flops: <share left>}}."
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
    order: list[int] = []
    while left := units.candidates(order):
        order.append(left[0])
    return units.masks[order].any(0)
