"""A value of pairs among a few heads out of many: one matrix of those heads only, named by block and head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    NAMELESS,
    Names,
    canvas,
    cells,
    control_of,
    mark_control,
    place,
    scale,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWS_CONTROL = True  # from the column "random_init"
CAPTION = (
    "A value for every pair among the heads that were compared. A dot: its 95 % interval excludes 0. Of many "
    "pairs one in twenty gets a dot by chance."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Heads that were compared with any other; with "low" and "high", a dot where the 95 % interval excludes 0.

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
        if "low" in columns and "high" in columns:
            low, high = (columns[name][heads[:, None], heads] for name in ("low", "high"))
            row, column = (((low > 0) | (high < 0)) & shown.isfinite()).nonzero().unbind(1)
            axes.plot(column.tolist(), row.tolist(), "o", color="black", markersize=2.5, linestyle="")
            axes.set_title("dot: 95 % interval excludes 0", loc="left", fontsize=7, pad=4)
        stride = max(1, round(0.2 / (side / count)))
        axes.set_xticks(range(0, count, stride), shown_names[::stride], rotation=90)
        axes.set_yticks(range(0, count, stride), shown_names[::stride])
        axes.set_xlabel("block.head")
        axes.set_ylabel("block.head")
        bar = figure.colorbar(image, cax=place(figure, left + side + beside, bottom, 0.1, side))
        bar.outline.set_visible(False)
        bar.set_label(wrapped(label, max(side, 1.6)))
        mark_control(bar.ax, control, value.new_empty(0))
    return figure
