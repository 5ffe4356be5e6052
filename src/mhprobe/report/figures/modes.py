"""Singular modes of the heads' circuits: how strong each is, and whether it ties like to like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Names, canvas, panel_grid, place, site_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = (
    "Every singular mode of every head, a panel per layer: across, its singular value as a share of the head's "
    "largest; up, the cosine of its two directions. Above 0 like is tied to like, below 0 to its opposite. The grey "
    "band holds 95 % of what chance, random directions, would give a head's mean."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """columns: "singular" and "cosine" (A, K), NaN where there is no mode; "value", "null_low" and "null_high" (A,)."""
    share = columns["singular"] / columns["singular"][:, :1]
    panels = len(layout.sites)
    deep, per_row = panel_grid(panels)
    wide, tall, across, down = 1.25, 1.0, 0.12, 0.32
    left, bottom, top = 0.6, 0.78, 0.25
    size = (left + per_row * wide + (per_row - 1) * across + 0.15, bottom + deep * tall + (deep - 1) * down + top)
    with canvas((max(size[0], 3.4), size[1])) as figure:
        for number in range(panels):
            row, column = divmod(number, per_row)
            at = left + column * (wide + across), size[1] - top - tall - row * (tall + down)
            axes = place(figure, *at, wide, tall)
            span = layout.span(number)
            low, high = columns["null_low"][span].mean().item(), columns["null_high"][span].mean().item()
            band = axes.axhspan(low, high, color="0.85", linewidth=0, zorder=0)
            x, y = share[span].flatten(), columns["cosine"][span].flatten()
            known = x.isfinite() & y.isfinite()
            dots = axes.scatter(x[known], y[known], s=4, linewidths=0, alpha=0.6, color=COLOURS[0])
            heads = columns["value"][span]
            marks = axes.scatter(torch.full_like(heads, 1.06), heads, s=14, marker="_", color=COLOURS[1], linewidths=1)
            axes.set_title(site_title(layout, number), pad=3)
            axes.set_xlim(-0.02, 1.12)
            axes.set_ylim(-1.05, 1.05)
            axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
            axes.set_yticks([-1, 0, 1], None if column == 0 else [""] * 3)
            if column == 0:
                axes.set_ylabel("cosine")
            if number + per_row >= panels:
                axes.set_xlabel("singular value\n(share of largest)")
            else:
                axes.tick_params(labelbottom=False)
        figure.legend(
            [dots, marks, band], ["a mode", "a head's mean", "chance"], loc="lower center", ncols=3, borderaxespad=0.2
        )
    return figure
