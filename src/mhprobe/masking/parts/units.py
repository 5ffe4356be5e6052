"""Units, the sets of heads that go together, and how far a path through them may go.

A unit is the same index in every layer, one layer (a site), one head, or one stage. Layers count
from 0 through all stages, negative numbers from the end. Excluded layers are never masked
(layer_max2 of Byun & Kim, "What does the multi-head do?", leaves out the last one). A unit that
would take a layer below ``min_heads_per_layer`` is skipped. A path ends with the first step that
reaches the target: a number of heads, or a share of the dense model's FLOPs, parameters, time or
memory.

Shapes: U units, A heads, L layers, M masks, G sets of units that go together. In every mask True
means: head off.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import Tensor

from mhprobe.errors import UserError, fits, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.written import counted
from mhprobe.masking.base import ROUNDING, SHARES, Cost, Limits, Path, PathTarget, Units


def index(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """Head i of every layer; where stages differ in their number of heads, head i of every layer of one stage.

    Layers of one stage that have fewer heads (after pruning) are not in the units of the later
    indices.
    """
    sites = [(i, layout.sites[i]) for i in layers]
    most = {
        site.stage: max(other.num_heads for _, other in sites if other.stage == site.stage)
        for _, site in sites
    }
    per_stage = len(set(most.values())) > 1
    heads: dict[str, list[int]] = defaultdict(list)
    for stage, h in ((stage, h) for stage, count in most.items() for h in range(count)):
        name = f"stage {stage} index {h}" if per_stage else f"index {h}"
        heads[name] += [
            layout.flat(i, h) for i, site in sites if site.stage == stage and h < site.num_heads
        ]
    return _units(layout, heads, per_stage)


def layer(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """All heads of one layer."""
    return _units(
        layout,
        {layout.sites[i].name: range(layout.offsets[i], layout.offsets[i + 1]) for i in layers},
    )


def head(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """One head."""
    sites = [(i, layout.sites[i]) for i in layers]
    return _units(
        layout,
        {f"{s.name} head {h}": [layout.flat(i, h)] for i, s in sites for h in range(s.num_heads)},
    )


def stage(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """All heads of one stage."""
    heads: dict[str, list[int]] = defaultdict(list)
    for i in layers:
        heads[f"stage {layout.sites[i].stage}"] += range(layout.offsets[i], layout.offsets[i + 1])
    return _units(layout, heads)


STEPS = 32  # of a path through thousands of neurons
UNITS: dict[str, Callable[[HeadLayout, Sequence[int]], Units]] = {
    f.__name__: f for f in (index, layer, head, stage)
}


def make_units(name: str, layout: HeadLayout, exclude_layers: Sequence[int] = ()) -> Units:
    """The units called ``name`` of a layout, without the heads of the excluded layers."""
    if name not in UNITS:
        raise UserError(f"masking units: expected one of {', '.join(UNITS)}, got {quoted(name)}.")
    count = len(layout.sites)
    for number in exclude_layers:
        if type(number) is not int or not -count <= number < count:
            raise UserError(
                f"exclude_layers: the model has {count} layers, expected numbers from {-count} to "
                f"{count - 1}, "
                f"got {number}."
            )
    excluded = {number % count for number in exclude_layers}
    if len({*exclude_layers}) < len(exclude_layers):  # a mask of layers would be a list of 0 and 1
        raise UserError(
            f"exclude_layers: expected layers, each once, got {quoted(list(exclude_layers))}."
        )
    layers = [i for i in range(count) if i not in excluded]
    if not layers:
        raise UserError(
            f"exclude_layers: of {count} layers {len(excluded)} are excluded, so nothing is left "
            "to mask."
        )
    return UNITS[name](layout, layers)


def _units(
    layout: HeadLayout, heads: Mapping[str, Sequence[int]], per_stage: bool = False
) -> Units:
    return Units(
        tuple(heads),
        torch.stack([layout.mask(list(members)) for members in heads.values()]),
        per_stage,
    )


def targets_of(
    setting: Mapping[str, float], layout: HeadLayout, costs: Mapping[str, Cost]
) -> tuple[PathTarget, ...]:
    """The target that ``{heads: 36}`` or ``{flops: 0.8}`` (one of SHARES) asks for; no heads beside neurons.

    ``{head: 0.9, neuron: 0.75}``, for all kinds of the layout, is a target each: the share of the
    kind that may be left. costs: what masks leave, by unit but for heads. UserError for another
    unit, and a value out of range.
    """
    if {*setting} == layout.kinds and all(
        fits(share, float) and 0 <= share <= 1 for share in setting.values()
    ):
        return tuple(
            PathTarget(kind, float(share), _share_of(kind, layout))
            for kind, share in setting.items()
        )
    heads: dict[str, Cost] = {"heads": lambda masks: (~masks).sum(-1).double()}
    targets = {**(heads if layout.kinds <= {"head"} else {}), **costs}
    if len(setting) != 1 or not set(setting) <= set(targets):
        names = ", ".join((*({*targets} - {*SHARES}), " and ".join(sorted(layout.kinds)), *SHARES))
        raise UserError(
            f"masking target: expected one of {names} with its value, got {quoted(dict(setting))}."
        )
    ((unit, value),) = setting.items()
    most = layout.num_heads if unit == "heads" else 1
    if not fits(value, float) or not 0 <= value <= most:
        raise UserError(
            f"masking target: {unit}: expected the amount left, from 0 to {most}, got "
            f"{quoted(value)}."
        )
    if unit == "heads" and value != int(value):
        raise UserError(f"masking target: heads: expected a whole number, got {quoted(value)}.")
    return (PathTarget(unit, float(value), targets[unit]),)


def _share_of(kind: str, layout: HeadLayout) -> Cost:
    of_kind = torch.tensor([site.kind == kind for _, _, site in layout])
    return lambda masks: (~masks[..., of_kind]).double().mean(-1)


def refuse_neurons(layout: HeadLayout, where: str) -> None:
    """UserError for a layout with neurons: too many to be tried one by one.

    where: the options, for the message.
    """
    if "neuron" in layout.kinds:
        raise UserError(
            f"{where}: expected gates on heads alone, got a model with {layout.counted}. To prune "
            "heads and neurons "
            f"together use prune/order=fisher with target={{flops: <share left>}}."
        )


def constrain(units: Units, limits: Limits, where: str, multiple: int | None = None) -> Units:
    """Put ``units`` under ``limits``; UserError, with ``where``, if nothing may be masked or the target is too low.

    In a layout with neurons ``units`` only says which may go, one by one. multiple: so many neurons
    go together, and one step's units stay, so that a network is left; None where all may go.
    """
    floor, targets, layout = limits.min_heads_per_layer, limits.targets, limits.layout
    _refuse_floor(floor, where)
    together = multiple or 1
    units = dataclasses.replace(units, limits=limits if floor or targets else None)
    most_A = units.masks.any(0)
    kept_UA = units.masks
    if "neuron" in layout.kinds:
        kept_UA = kept_UA & _first_of_each_site(layout, together)
        _keep_floor(most_A, layout, floor, together)
    elif not limits.reached(torch.zeros_like(most_A)) and not units.candidates([]):
        raise UserError(
            f"{where}: min_heads_per_layer={floor} leaves no unit to mask: each would take a layer "
            f"below it. Lower it, or mask smaller units (units=head)."
        )
    elif floor:
        most_A = units.masks[units.chosen(len(units), lambda order, left: left[0])].any(0)
    if multiple is not None and most_A.all():
        most_A = _all_but_costliest(most_A, kept_UA, targets)
    check_reached(units, most_A, where)
    return units


def _refuse_floor(floor: int, where: str) -> None:
    if floor < 0:
        raise UserError(
            f"{where}.min_heads_per_layer: expected a whole number from 0, got {quoted(floor)}."
        )


def _first_of_each_site(layout: HeadLayout, multiple: int) -> Tensor:
    """(A,) bool, the first head of each site with heads, and the first ``multiple`` of each with neurons."""
    return torch.tensor(
        [unit < (1 if site.kind == "head" else multiple) for _, unit, site in layout]
    )


def _keep_floor(most_A: Tensor, layout: HeadLayout, floor: int, multiple: int) -> None:
    """Keep the first units of every site out of ``most_A``, at least ``floor``, neurons in whole multiples.

    Units of one site cost the same, so that it does not matter which stay.
    """
    for site, part in zip(layout.sites, layout.split(most_A), strict=True):  # views
        size = multiple if site.kind == "neuron" else 1
        part[: -(-floor // size) * size] = False


def _all_but_costliest(most_A: Tensor, kept_UA: Tensor, targets: Sequence[PathTarget]) -> Tensor:
    """Return (A,) bool, all but the costliest unit, which may be the last: no order stops later.

    ``most_A`` where some target is above what every single unit leaves.
    """
    left_TU = torch.stack([target.cost(~kept_UA) for target in targets])
    below = (
        target.value + ROUNDING < left_U.max()
        for target, left_U in zip(targets, left_TU, strict=True)
    )
    return ~kept_UA[left_TU[0].argmax()] if all(below) else most_A


class Unreached(UserError):
    """A target below what limits let go.

    reason: the message without its place and what lifting the limits would do.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def check_reached(units: Units, off: Tensor, where: str) -> None:
    """UserError (``Unreached``) with the nearest value if the (A,) mask at the end of a path misses a target."""
    floor = units.limits.min_heads_per_layer if units.limits else 0
    named = ["exclude_layers"] * (not units.masks.any(0).all()) + [
        f"min_heads_per_layer={floor}"
    ] * (floor > 0)
    held, lift = (f" ({', '.join(named)})", ", or lift these limits") if named else ("", "")
    for target in units.limits.targets if units.limits else ():
        nearest = (
            math.ceil((target.left(off) - ROUNDING) * 1e4) / 1e4
        )  # rounded up, so that asking for it works
        if target.left(off) > target.value + ROUNDING:
            reason = (
                f"{target.unit}={target.value:g} can't be met: with every unit masked that may "
                f"be{held}, {nearest:g} "
                f"is left. Ask for at least that"
            )
            raise Unreached(f"{where}.target: {reason}{lift}.", reason)


def savings(limits: Limits | None, layout: HeadLayout) -> Tensor:
    """(A,) float64, share of the targets' cost that a unit saves, its site's mean; 1 without a target."""
    if limits is None or not limits.targets:
        return torch.ones(layout.num_heads, dtype=torch.float64)
    return saving_of_each(limits).sum(0)


def saving_of_each(limits: Limits | None) -> Tensor:
    """(T, A) float64, share of the cost of each of T targets that a unit saves, its site's mean."""
    assert limits is not None and limits.targets
    site_of = limits.layout.site_of_head
    without = site_of == torch.arange(-1, len(limits.layout.sites))[:, None]
    left_TL = torch.stack([target.cost(without) for target in limits.targets]).double()
    return ((left_TL[:, :1] - left_TL[:, 1:]) / site_of.bincount())[:, site_of]


def shares_below(
    sets: Sequence[Tensor], score_G: Sequence[float], layout: HeadLayout, like: str
) -> list[float]:
    """(G,) rank of each set among the sets of its "layer", or of its "group": one kind, stage and width; 0 to 1.

    Ranks are shares, (rank + 1/2) / number of sets, so that groups of any size compare.
    """
    site_of = [(number, site) for number, _, site in layout]
    members: dict[Hashable, list[int]] = defaultdict(list)
    for place, units in enumerate(sets):
        number, site = site_of[int(units[0])]
        members[number if like == "layer" else (site.kind, site.stage, site.head_dim)].append(place)
    shares = [0.0] * len(sets)
    for places in members.values():
        for rank, place in enumerate(sorted(places, key=score_G.__getitem__)):
            shares[place] = (rank + 0.5) / len(places)
    return shares


def until(
    sets: Sequence[Tensor],
    price_G: Sequence[float],
    layout: HeadLayout,
    limits: Limits | None,
    steps: int | None = None,
) -> list[int]:
    """Numbers of the sets to remove: the lowest price first until the target is met, less those not needed for it.

    A set stays if it would take a layer below the floor. At the target each set but the last is
    tried again, the latest
    first: it stays if the target is met without it, unless its price is below 0: without such a set
    the network gains.
    """
    limits = limits or Limits(layout)
    gone = _cheapest_first(sets, price_G, layout, limits, steps)
    off = torch.zeros(layout.num_heads, dtype=torch.bool)
    for number in gone:
        off[sets[number]] = True
    if not limits.reached(off):
        return gone
    for number in reversed([number for number in gone[:-1] if price_G[number] >= 0]):
        off[sets[number]] = False
        if limits.reached(off):
            gone.remove(number)
        else:
            off[sets[number]] = True
    return gone


def _cheapest_first(
    sets: Sequence[Tensor],
    price_G: Sequence[float],
    layout: HeadLayout,
    limits: Limits,
    steps: int | None,
) -> list[int]:
    """Return the sets that go, lowest price first, until the target is met or so many steps are made.

    A set that would take a layer below the floor is passed over.
    """
    site_of = layout.site_of_head.tolist()
    left_of_site = [site.num_heads for site in layout.sites]
    off = torch.zeros(layout.num_heads, dtype=torch.bool)
    gone = list[int]()
    for number in sorted(range(len(sets)), key=price_G.__getitem__):
        if limits.reached(off) or len(gone) == steps:
            break
        sites = [site_of[flat] for flat in sets[number].tolist()]
        if any(
            left_of_site[site] - sites.count(site) < limits.min_heads_per_layer for site in sites
        ):
            continue
        for site in sites:
            left_of_site[site] -= 1
        off[sets[number]] = True
        gone.append(number)
    return gone


def bundled(sets: Sequence[Tensor], layout: HeadLayout) -> Path:
    """The path through these sets in at most STEPS steps, each of about as many."""
    heads = layout.of("head").num_heads
    size = -(-len(sets) // STEPS) or 1
    starts = range(0, len(sets), size)
    added = torch.zeros(len(starts), layout.num_heads, dtype=torch.bool)
    for step, start in zip(added, starts, strict=True):
        step[torch.cat(list(sets[start : start + size]))] = True
    counts = ((int(step[:heads].sum()), int(step[heads:].sum())) for step in added)
    return Path(
        None,
        added,
        tuple(f"{counted(some, 'head')}, {counted(others, 'neuron')}" for some, others in counts),
    )
