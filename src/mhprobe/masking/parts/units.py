"""Units, the sets of heads that go together, and how far a path through them may go.

A unit is the same index in every layer, one layer, one head, or one stage. A layer is a site of the layout; layers
count from 0 through all stages, and negative numbers from the end. Excluded layers are never masked. (The curve
layer_max2 of Byun & Kim, "What does the multi-head do?", leaves out the last one.)

A unit that would take a layer below ``min_heads_per_layer`` is skipped, so the heads that an order likes best stay.
A target says what shall be left: a number of heads, or a share of the dense model's FLOPs or time; the path ends with
the first step that reaches it. Orders of heads and neurons follow a list of thousands of units to it (``until``),
whatever the list is sorted by.

Shapes: U units, A heads, L layers, M masks, G sets of units that go together. In every mask True means: head off.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from mhprobe.errors import UserError, fits, quoted
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import ROUNDING, Cost, Limits, Path, Target, Units


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


STEPS = 32  # of a path through thousands of neurons
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
        raise UserError(f"masking target: {unit}: expected the amount left, from 0 to {most}, got {quoted(value)}.")
    return Target(unit, float(value), known[unit])


def refuse_neurons(layout: HeadLayout, where: str) -> None:
    """UserError for units that are too many to be tried one after the other. where: the options, for the message."""
    if "neuron" in layout.kinds:
        raise UserError(
            f"{where}: expected gates on heads alone, got a model with {layout.counted}. To prune heads and neurons "
            f"together use prune/order=knapsack with target={{flops: <share left>}}."
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
    if target is not None:  # where the path ends that takes units as they come
        farthest = units.chosen(len(units), lambda order, left: left[0])
        check_reached(limits, units.masks[farthest].any(0), where)
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


def savings(limits: Limits | None, layout: HeadLayout) -> Tensor:
    """(A,) float64, what a unit saves of the target's cost on the way to its site's end; 1 where there is no target."""
    target = None if limits is None else limits.target
    if target is None:
        return torch.ones(layout.num_heads, dtype=torch.float64)
    site_of = torch.tensor([number for number, _, _ in layout])
    left = target.cost(site_of == torch.arange(-1, len(layout.sites))[:, None])
    return ((left[0] - left[1:]) / site_of.bincount())[site_of]


def shares_below(
    sets: Sequence[Tensor], score_G: Sequence[float], layout: HeadLayout, like: Literal["group", "layer"]
) -> list[float]:
    """The share of its like that scores lower than each set: those of its layer, or of all that are built alike."""
    site_of = [(number, site) for number, _, site in layout]
    members: dict[Hashable, list[int]] = defaultdict(list)
    for place, each in enumerate(sets):
        number, site = site_of[int(each[0])]
        members[number if like == "layer" else (site.kind, site.stage, site.head_dim)].append(place)
    found = [0.0] * len(sets)
    for places in members.values():
        for rank, place in enumerate(sorted(places, key=score_G.__getitem__)):
            found[place] = (rank + 0.5) / len(places)
    return found


def until(
    sets: Sequence[Tensor], ascending: Sequence[int], layout: HeadLayout, limits: Limits | None,
    steps: int | None = None,
) -> list[int]:  # fmt: skip
    """The sets that go, in their order, until the target is met, without those that then need not have gone."""
    number_of, floor = [number for number, _, _ in layout], 0 if limits is None else limits.min_heads_per_layer
    left_of_site = [site.num_heads for site in layout.sites]
    target = None if limits is None else limits.target
    wanted = -1.0 if target is None else target.value + ROUNDING
    off, gone = torch.zeros(layout.num_heads, dtype=torch.bool), list[int]()
    left = 1.0 if target is None else target.left(off)
    for number in ascending:
        if left <= wanted or len(gone) == steps:
            break
        sites = [number_of[flat] for flat in sets[number].tolist()]
        if any(left_of_site[site] - sites.count(site) < floor for site in sites):
            continue
        for site in sites:
            left_of_site[site] -= 1
        off[sets[number]] = True
        left = 1.0 if target is None else target.left(off)
        gone.append(number)
    if target is None or left > wanted:
        return gone
    for number in reversed(gone[:-1]):
        off[sets[number]] = False
        if target.left(off) <= wanted:
            gone.remove(number)
        else:
            off[sets[number]] = True
    return gone


def bundled(sets: Sequence[Tensor], layout: HeadLayout, seed: int | None = None) -> Path:
    """The path through these sets in at most STEPS steps, each of about as many."""
    heads, size = layout.of("head").num_heads, -(-len(sets) // STEPS) or 1
    bundles = [torch.cat(list(sets[start : start + size])) for start in range(0, len(sets), size)]
    added = torch.zeros(len(bundles), layout.num_heads, dtype=torch.bool)
    for step, each in zip(added, bundles, strict=True):
        step[each] = True
    counts = [(int((each < heads).sum()), int((each >= heads).sum())) for each in bundles]
    return Path(seed, added, tuple(f"{some} heads, {others} neurons" for some, others in counts))
