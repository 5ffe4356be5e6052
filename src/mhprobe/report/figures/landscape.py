"""The loss over two directions in the space of weights: contours, a panel per pair of directions."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.report.figures.style import Figure, canvas, colour_bar, place

CAPTION = (
    "The loss around the trained weights (cross) along two random directions, in norms of the filters; a panel per "
    "draw of the directions. A wide, round bowl is flat; where panels differ, two directions out of very many decide. "
    "Colours are of the logarithm of the loss."
)


def draw(places: Sequence[float], losses: Sequence[Tensor]) -> Figure:
    """Return the figure.

    places: S steps along each direction. losses: (S, S) of each draw, the first direction down.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    every = torch.stack(list(losses)).clamp(min=1e-6)
    every = torch.where(every.isfinite(), every, every[every.isfinite()].max())
    norm: Any = LogNorm(every.min().item(), max(every.max().item(), 1.01 * every.min().item()))
    levels = torch.logspace(math.log10(norm.vmin), math.log10(norm.vmax), 13).tolist()
    side, left, gap, bottom = 2.1, 0.6, 0.4, 0.5
    wide = len(losses) * side + (len(losses) - 1) * gap
    with canvas((left + wide + 0.95, bottom + side + 0.3)) as figure:
        for number, values in enumerate(every):
            axes = place(figure, left + number * (side + gap), bottom, side, side)
            axes.pcolormesh(places, places, values.T.numpy(), cmap="viridis", norm=norm, shading="gouraud",
                            rasterized=True)  # fmt: skip
            axes.contour(places, places, values.T.numpy(), levels=levels, colors="white", linewidths=0.5)
            axes.plot(0, 0, "+", color="#D55E00", markersize=8, markeredgewidth=1.4)
            axes.set(xticks=[places[0], 0, places[-1]], yticks=[places[0], 0, places[-1]], xlabel="first direction")
            if number == 0:
                axes.set_ylabel("second direction")
            else:
                axes.set_yticklabels([])
            axes.set_title(f"draw {number + 1}", loc="left", pad=3)
        bar = colour_bar(figure, ScalarMappable(norm, colormaps["viridis"]), left + wide + 0.12, bottom, side)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter("{x:.4g}")
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.tick_params(which="both", labelsize=6.5)
        bar.set_label("mean loss (nats)")
    return figure
