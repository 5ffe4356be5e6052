"""Singular modes of the heads' circuits: how strong each is, and whether it ties like to like."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Figure, Names, layer_panels

CAPTION = (
    "Every singular mode of every head, a panel per layer: across, its singular value as a share of the head's "
    "largest; up, the cosine of its two directions. Above 0 like is tied to like, below 0 to its opposite. The grey "
    "band holds 95 % of what chance, random directions, would give a head's mean."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Return the figure.

    columns: "singular" and "cosine" (A, K), NaN where there is no mode; "value", "null_low" and "null_high" (A,).
    """
    share = columns["singular"] / columns["singular"][:, :1]
    labels = ("singular value\n(share of largest)", "cosine")
    with layer_panels(layout, (1.25, 1.0), (0.6, 0.78), labels, least=3.4) as (figure, panels):
        for number, axes in enumerate(panels):
            span = layout.span(number)
            low, high = columns["null_low"][span].mean().item(), columns["null_high"][span].mean().item()
            band = axes.axhspan(low, high, color="0.85", linewidth=0, zorder=0)
            x, y = share[span].flatten(), columns["cosine"][span].flatten()
            known = x.isfinite() & y.isfinite()
            dots = axes.scatter(x[known], y[known], s=4, linewidths=0, alpha=0.6, color=COLOURS[0])
            heads = columns["value"][span]
            marks = axes.scatter(torch.full_like(heads, 1.06), heads, s=14, marker="_", color=COLOURS[1], linewidths=1)
            axes.set(xlim=(-0.02, 1.12), ylim=(-1.05, 1.05), yticks=[-1, 0, 1])
            axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        figure.legend(
            [dots, marks, band], ["a mode", "a head's mean", "chance"], loc="lower center", ncols=3, borderaxespad=0.2
        )
    return figure
