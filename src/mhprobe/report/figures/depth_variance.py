"""Variance and share of high frequency of feature maps, before and after attention and MLPs of each block."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Axes, Figure, Names, canvas, place

CAPTION = (
    "What attention and MLPs do to the maps on their way through the network: variance over the grid (left), "
    "share of the highest frequency (right). A step down at attention means that it smooths. The dotted line is "
    "white noise."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Against depth, from each block's input through its attention to its MLP: variance over the grid, and ``label``.

    columns: "variance" (L, 3), "stream" (L, 3, K). A stage is a line of its own: merging patches changes the grid.
    """
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    variance, stream = columns["variance"].double(), columns["stream"].double()
    # the highest frequency that a block's grid has: the last that is there
    there = stream[:, 0].isfinite()
    last = (there * torch.arange(1, 1 + there.shape[1])).argmax(1)
    high = stream[torch.arange(len(stream)), :, last]
    wide, tall = 2.6, 1.9
    with canvas((0.65 + wide + 0.85 + wide + 1.15, tall + 0.75)) as figure:
        panels = [place(figure, 0.65 + i * (wide + 0.85), 0.5, wide, tall) for i in (0, 1)]
        for axes, values, name in zip(panels, (variance, high), ("feature-map variance", label), strict=True):
            _depth(axes, layout, values)
            axes.set_ylabel(name)
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panels[0].yaxis.set_major_formatter(FormatStrFormatter("%g"))
        panels[0].yaxis.set_minor_formatter(NullFormatter())
        panels[1].axhline(math.log(2) / 2, color="0.4", linestyle=":", linewidth=0.8, label="white noise")
        panels[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure


def _depth(axes: Axes, layout: HeadLayout, values: Tensor) -> None:
    """A step of attention and one of the MLP per block, in two colours; tick = block input."""
    for stage in range(1 + max(block.stage for block in layout.blocks)):
        numbers = [number for number, block in enumerate(layout.blocks) if block.stage == stage]
        for block in numbers:
            before, middle, after = values[block].tolist()
            first = block == 0
            names = ("attention", "MLP") if first else (None, None)
            axes.plot([block, block + 0.5], [before, middle], color=COLOURS[1], label=names[0])
            axes.plot([block + 0.5, block + 1], [middle, after], color=COLOURS[0], label=names[1])
            axes.plot([block], [before], "o", color="0.2", markersize=2.5, label="block input" if first else None)
        axes.axvline(numbers[-1] + 1, color="0.85", linewidth=0.6, zorder=0)
    count = len(layout.blocks)
    axes.set(xticks=range(0, count + 1, 1 if count <= 12 else 4), xlabel="block")
