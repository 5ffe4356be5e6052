"""Heads of every layer sorted by one value, and another value of the same heads beside it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import Figure, canvas, cells, place, readable, scale

CAPTION = (
    "Heads of each block from the highest to the lowest value of the left matrix; right the other value of the same "
    "heads in the same order. Small numbers are heads. If both go together, the right one fades from left to right."
)


def draw(layout: HeadLayout, values: Mapping[str, Tensor]) -> Figure:
    """Return the figure. values: (A,) each by their label; heads are sorted by the first."""
    first = next(iter(values.values())).double()
    heads, deep = max(site.num_heads for site in layout.sites), len(layout.sites)
    cell = max(0.14, min(0.28, 3.2 / heads))
    wide, tall, left, gap = cell * heads, cell * deep, 0.55, 0.95
    orders = [first[layout.span(i)].nan_to_num(-torch.inf).argsort(descending=True, stable=True) for i in range(deep)]
    with canvas((left + len(values) * (wide + gap), max(tall, 1.2) + 0.85)) as figure:
        for number, (label, value) in enumerate(values.items()):
            grid = torch.full((deep, heads), torch.nan, dtype=torch.float64)
            for row, order in enumerate(orders):
                grid[row, : len(order)] = value.double()[layout.span(row)][order]
            at = left + number * (wide + gap)
            axes = place(figure, at, 0.45, wide, tall)
            cmap, norm = scale(grid)
            image = axes.imshow(grid.numpy(), cmap=cmap.with_extremes(bad="white"), norm=norm, aspect="auto")
            cells(axes, deep, heads)
            for row, order in enumerate(orders if cell >= 0.2 else ()):
                for column, head in enumerate(order.tolist()):
                    axes.text(column, row, str(head), ha="center", va="center", fontsize=5)
            readable(axes)
            axes.set(xticks=[], xlabel=f"heads, by {next(iter(values))}" if number == 0 else "the same heads")
            axes.set_yticks(range(deep), [str(site.block) for site in layout.sites] if number == 0 else [""] * deep)
            axes.set_ylabel("block" if number == 0 else "")
            axes.set_title(label, pad=4)
            bar = figure.colorbar(image, cax=place(figure, at + wide + 0.08, 0.45, 0.08, tall))
            bar.outline.set_visible(False)
    return figure
