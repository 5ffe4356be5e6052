"""A value of pairs among a few heads out of many: one matrix of those heads only, named by block and head."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    NAMELESS,
    Figure,
    Names,
    canvas,
    cells,
    colour_bar,
    control_of,
    mark_control,
    place,
    scale,
    wrapped,
)

DRAWS_CONTROL = True  # from the column "random_init"
CAPTION = (
    "A value for every pair among the heads that were compared. A dot: it differs from 0 by more than chance, with "
    "Holm's correction over all pairs that were looked at (5 %). Where a measure has no such p, a dot says that the "
    "95 % interval of this pair excludes 0 (or chance, where that is not 0), which one pair in twenty does by chance."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Heads that were compared with any other; a dot where "p_holm" is below .05.

    Without "p_holm" the dot is where the 95 % interval from "low" to "high" excludes "null", or 0 where there is none.
    With "random_init", the mean over the pairs of the untrained control is marked on the colour bar.
    """
    value = columns["value"].double().clone()
    value.fill_diagonal_(torch.nan)
    heads = value.isfinite().any(1).nonzero().flatten()
    shown = value[heads[:, None], heads]
    places = list(layout)
    shown_names = [f"{places[head][2].block}.{places[head][1]}" for head in heads.tolist()]
    count = len(shown_names)
    cell = 0.32 if count <= 16 else 5.0 / count
    side = max(1.2, cell * count)
    left, bottom = 0.7, 0.65
    control = control_of(columns)
    beside = 0.8 if len(control) else 0.15  # the control is written there
    with canvas((left + side + beside + 1.25, bottom + max(side, 1.4) + 0.35)) as figure:
        axes = place(figure, left, bottom, side, side)
        cmap, norm = scale(shown)
        image = axes.imshow(shown.numpy(), cmap=cmap, norm=norm)
        if count <= 24:
            cells(axes, count, count)
        if (found := _beyond_chance(columns)) is not None:
            beyond, how = found
            row, column = (beyond[heads[:, None], heads] & shown.isfinite()).nonzero().unbind(1)
            axes.plot(column.tolist(), row.tolist(), "o", color="black", markersize=2.5, linestyle="")
            axes.set_title(f"dot: {how}", loc="left", fontsize=7, pad=4)
        stride = max(1, round(0.2 / (side / count)))
        axes.set_xticks(range(0, count, stride), shown_names[::stride], rotation=90)
        axes.set_yticks(range(0, count, stride), shown_names[::stride])
        axes.set(xlabel="block.head", ylabel="block.head")
        bar = colour_bar(figure, image, left + side + beside, bottom, side, wrapped(label, max(side, 1.6)))
        mark_control(bar.ax, control, value.new_empty(0))
    return figure


def _beyond_chance(columns: Mapping[str, Tensor]) -> tuple[Tensor, str] | None:
    """(A, A) bool, which pairs differ from 0, and what that means; None where nothing tells."""
    if "p_holm" in columns:
        return columns["p_holm"] < 0.05, "not 0 (Holm, 5 %)"
    if {"low", "high"} <= set(columns):
        level = columns.get("null", torch.zeros_like(columns["value"]))
        said = "95 % interval excludes " + ("chance" if "null" in columns else "0")
        return (columns["low"] > level) | (columns["high"] < level), said
    return None
