"""Following a list of units until a budget is met, whatever the list is sorted by."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Path
from mhprobe.masking.parts.limits import ROUNDING, Limits

STEPS = 32  # of a path through thousands of neurons


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
