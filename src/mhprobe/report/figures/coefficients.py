"""Canonical correlations against their index: how many directions two heads share, and how well."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Axes, Figure, Names, layer_panels

CAPTION = (
    "Canonical correlations of the heads of a block, from the best shared direction to the last: the mean of the "
    "pairs and their range. The dotted line is chance for as many images and directions; only what stands above "
    "it is shared."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """One panel per layer: mean and range of "rho" over the pairs of its heads, and "null_rho", what chance gives.

    A pair has as many correlations as the head with fewer directions has; the mean at an index is over pairs that
    reach it. Pairs across layers are not drawn.
    """
    reached = (~columns["rho"].isnan()).flatten(0, 1).any(0).nonzero()
    last = int(reached.max()) + 1 if len(reached) else 1
    step = 5 * math.ceil(last / 20) if last > 6 else 1
    labels = ("coefficient", "correlation")
    with layer_panels(layout, (1.25, 0.95), (0.55, 0.75), labels, least=3.2) as (figure, panels):
        for number, axes in enumerate(panels):
            span = layout.span(number)
            lines = _panel(axes, columns["rho"][span, span], columns["null_rho"][span, span])
            axes.set(xlim=(0.5, last + 0.5), ylim=(0, 1.02), yticks=[0, 0.5, 1])
            axes.set_xticks(sorted({1, *range(step, last + 1, step)}))
        figure.legend(
            lines, ["mean of the pairs", "their range", "chance"], loc="lower center", ncols=3, borderaxespad=0.3
        )
    return figure


def _panel(axes: Axes, rho_HHR: Tensor, null_HHR: Tensor) -> list:
    """The mean's line, the range's band and chance's line."""
    a, b = torch.triu_indices(len(rho_HHR), len(rho_HHR), 1)
    rho_PR, null_PR = rho_HHR[a, b], null_HHR[a, b]
    index = range(1, rho_PR.shape[1] + 1)
    missing = rho_PR.isnan()
    # where no pair gets that far there is nothing to draw
    low = torch.where(missing, torch.inf, rho_PR).amin(0) if len(a) else rho_PR.new_zeros(len(index))
    high = torch.where(missing, -torch.inf, rho_PR).amax(0) if len(a) else rho_PR.new_zeros(len(index))
    reached = (~missing).any(0)
    band = axes.fill_between(index, low, high, where=reached.tolist(), color=COLOURS[0], alpha=0.25, linewidth=0)
    (mean,) = axes.plot(index, rho_PR.nanmean(0), color=COLOURS[0], marker="o", markersize=2)
    (chance,) = axes.plot(index, null_PR.nanmean(0), color="black", linestyle=":", linewidth=1.2)
    return [mean, band, chance]
