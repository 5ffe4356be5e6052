"""Slope of the loss along attention to each kind of key, block by block: a line per kind."""

import math
from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Figure, Names, canvas, colour, place, ticks

CAPTION = (
    "The mean size of the loss's slope along attention to each kind of key, a line per kind. Attention to a kind "
    "with small slopes could go elsewhere without effect (a no-op). Slopes of exactly 0 have no "
    "place on the log scale."
)
SUMS = ("special", "other")  # kinds pooled: a line each would hide which of them it is


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """The mean over a block's heads of every column "gradient_<kind>", on a log scale, which has no place for 0."""
    kinds = [name for name in columns if name.startswith("gradient_") and columns[name].isfinite().any()]
    kinds = [name for name in kinds if name.removeprefix("gradient_") not in SUMS]
    blocks = [site.block for site in layout.sites]
    wide = max(2.4, min(4.5, 0.35 * len(blocks)))
    tall = max(2.2, 0.17 * len(kinds) + 0.2)
    with canvas((0.75 + wide + 1.4, tall + 0.7)) as figure:
        axes = place(figure, 0.75, 0.5, wide, tall)
        for number, name in enumerate(kinds):
            shade, marker = colour(number)
            means = [columns[name].double()[layout.span(i)].nanmean().item() for i in range(len(blocks))]
            means = [mean or math.nan for mean in means]
            kind = name.removeprefix("gradient_").replace("cls", "class token").replace("_", " ")
            dashes = "-" if number < 7 else "--"
            axes.plot(blocks, means, dashes, color=shade, marker=marker, markersize=3, label=kind)
        axes.set_yscale("log")
        axes.set_xticks([blocks[i] for i in ticks(len(blocks), wide / len(blocks))])
        axes.set_xlabel("block")
        axes.set_ylabel("|dL/dA|, mean over heads (nats)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
