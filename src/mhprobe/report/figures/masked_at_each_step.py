"""Heads that are off at each step of masking curves: a row of small grids per curve."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import Figure, canvas, place

CAPTION = (
    "What is masked in each way: a row per curve, a small grid of blocks by heads per step. Dark heads are off, "
    "orange ones have just gone."
)
ON, OFF, GONE = "#DCE6EE", "#24425C", "#D55E00"


def draw(layout: HeadLayout, curves: Mapping[str, Tensor], most: int = 8) -> Figure:
    """Return the figure.

    curves: by name the masks (steps + 1, A) bool, True off, step 0 first. most: grids in a row, evenly chosen.
    """
    from matplotlib.colors import ListedColormap

    deep, heads = len(layout.sites), max(site.num_heads for site in layout.sites)
    wide, tall = 0.85, min(0.85, max(0.35, 0.85 * deep / heads))
    left, gap, down, top = 1.0, 0.14, 0.24, 0.1
    columns = max(len(_shown(masks, most)) for masks in curves.values())
    size = (left + columns * (wide + gap), top + len(curves) * (tall + down) + 0.1)
    with canvas(size) as figure:
        for row, (name, masks) in enumerate(curves.items()):
            y = size[1] - top - (row + 1) * (tall + down) + 0.05
            for column, step in enumerate(_shown(masks, most)):
                axes = place(figure, left + column * (wide + gap), y, wide, tall)
                state = masks[step].int() + (masks[step] & ~masks[max(0, step - 1)]).int()
                grid = torch.full((deep, heads), torch.nan)
                for number, site in enumerate(layout.sites):
                    grid[number, : site.num_heads] = state[layout.span(number)].float()
                axes.imshow(grid.numpy(), cmap=ListedColormap([ON, OFF, GONE]), vmin=0, vmax=2, aspect="auto")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                axes.set_title(f"step {step}", pad=2, fontsize=7)
                if column == 0:
                    axes.set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def _shown(masks: Tensor, most: int) -> Sequence[int]:
    """Steps that are drawn: from the first to the last, evenly."""
    last = len(masks) - 1
    if last <= most:
        return range(1, last + 1)
    return sorted({round(1 + number * (last - 1) / (most - 1)) for number in range(most)})
