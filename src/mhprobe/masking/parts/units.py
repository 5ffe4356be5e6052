"""Units, the sets of heads that go together: the same index in every layer, one layer, one head, or one stage.

A layer is a site of the layout; layers count from 0 through all stages, and negative numbers from the end. Excluded
layers are never masked. (The curve layer_max2 of Byun & Kim, "What does the multi-head do?", leaves out the last one.)

Shapes: U units, A heads.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Units


def index(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """Head i of every layer; where stages differ in their number of heads, head i of every layer of one stage.

    Layers of one stage that have fewer heads (after pruning) are simply not in the units of the later indices.
    """
    most = {layout.sites[i].stage: 0 for i in layers}
    for i in layers:
        site = layout.sites[i]
        most[site.stage] = max(most[site.stage], site.num_heads)
    if len(set(most.values())) == 1:
        heads = {
            f"index {h}": [layout.flat(i, h) for i in layers if h < layout.sites[i].num_heads]
            for h in range(max(most.values()))
        }
        return _units(layout, heads)
    heads = {
        f"stage {stage} index {h}": [
            layout.flat(i, h) for i in layers if layout.sites[i].stage == stage and h < layout.sites[i].num_heads
        ]
        for stage, count in most.items()
        for h in range(count)
    }
    return _units(layout, heads, per_stage=True)


def layer(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """All heads of one layer."""
    return _units(layout, {layout.sites[i].name: range(layout.offsets[i], layout.offsets[i + 1]) for i in layers})


def head(layout: HeadLayout, layers: Sequence[int]) -> Units:
    """One head."""
    return _units(
        layout,
        {
            f"{layout.sites[i].name} head {h}": [layout.flat(i, h)]
            for i in layers
            for h in range(layout.sites[i].num_heads)
        },
    )


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
