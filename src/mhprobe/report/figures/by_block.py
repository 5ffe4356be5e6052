"""Pairs of heads summed up per block: the mean with the range, and chance."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Figure, Names, canvas, place, ticks

CAPTION = (
    "The pairs of heads of each block: a point is their mean, the bar their range, the dash what chance gives. "
    "A mean on the dash says that the heads have nothing in common."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Mean, least and greatest "value" (A, A) of the pairs within each block, and the mean of "null"."""
    blocks = [site.block for site in layout.sites]
    step = min(0.4, 6.0 / len(blocks))
    wide = max(2.2, step * len(blocks))
    with canvas((0.7 + wide + 0.15, 2.7)) as figure:
        axes = place(figure, 0.6, 0.5, wide, 1.85)
        for number, site in enumerate(layout.sites):
            span = layout.span(number)
            pairs = torch.triu_indices(site.num_heads, site.num_heads, 1)
            found = columns["value"].double()[span, span][pairs[0], pairs[1]]
            found = found[found.isfinite()]
            if not len(found):
                continue
            first = "mean of the pairs" if number == 0 else ""
            axes.vlines(site.block, found.min(), found.max(), color="#56B4E9", linewidth=2)
            axes.plot(site.block, found.mean(), "o", color=COLOURS[0], markersize=4, label=first)
            if "null" in columns:
                level = columns["null"].double()[span, span][pairs[0], pairs[1]].nanmean()
                text = "chance" if number == 0 else ""
                axes.plot(site.block, level, "_", color="black", markersize=9, label=text)
        for edge in (b for a, b in zip(layout.sites, layout.sites[1:], strict=False) if a.stage != b.stage):
            axes.axvline(edge.block - 0.5, color="0.8", linewidth=0.8, zorder=0)
        axes.set_xticks([blocks[i] for i in ticks(len(blocks), step)])
        axes.set_xlim(blocks[0] - 0.6, blocks[-1] + 0.6)
        axes.set_xlabel("block")
        axes.set_ylabel(label)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return figure
