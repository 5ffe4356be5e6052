"""Spectra along the diagonal: of the residual stream behind every block, and of what every head writes into it."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Axes, Figure, Names, canvas, panel_grid, place, site_title

_AFTER_MLP = 2
_WHITE = math.log(2) / 2  # real white noise, against its frequency 0

CAPTION = (
    "How much each frequency is damped, relative to the lowest: the residual stream behind every block, and what "
    "every head writes. Lower means smoother; a flat line, white noise, is what chance would give."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Left: the stream after each block, light to dark with depth. Right: a panel per layer, a line per head.

    columns: "spectrum" (A, K), "stream" (L, 3, K), "frequencies" (1, K); NaN is left out. Dotted: white noise.
    """
    from matplotlib import colormaps

    (frequencies,) = columns["frequencies"].tolist()
    spectra, stream = columns["spectrum"].double(), columns["stream"][:, _AFTER_MLP].double()
    shown = torch.cat([spectra.flatten(), stream.flatten()])
    shown = shown[shown.isfinite()]
    room = 0.05 * float(shown.max() - shown.min()) or 1.0
    limits = (min(0.0, float(shown.min())) - room, max(_WHITE, float(shown.max())) + room)
    deep, per_row = panel_grid(len(layout.sites))
    side, gap, left, bottom, top = 1.05, 0.3, 0.55, 0.45, 0.3
    tall = max(deep * side + (deep - 1) * gap, 1.9)
    heads_at = left + 1.9 + 0.9
    with canvas((heads_at + per_row * side + (per_row - 1) * 0.12 + 0.15, bottom + tall + top)) as figure:
        axes = place(figure, left, bottom, 1.9, tall)
        shade = colormaps["viridis_r"]
        for block, row in enumerate(stream):
            _line(axes, frequencies, row, color=shade(0.1 + 0.9 * block / max(1, len(stream) - 1)), linewidth=1.3)
        _frame(axes, limits)
        axes.set_title(f"stream after block 0 (light) to {len(stream) - 1} (dark)", pad=4)
        axes.set(ylabel="Δ ln amplitude (nats)", xlabel="frequency (π per token)")
        for number in range(len(layout.sites)):
            row, column = divmod(number, per_row)
            at = heads_at + column * (side + 0.12), bottom + tall - side - row * (side + gap)
            axes = place(figure, *at, side, side)
            for spectrum in spectra[layout.span(number)]:
                _line(axes, frequencies, spectrum, color="#0072B2", linewidth=0.8, alpha=0.7)
            _frame(axes, limits)
            axes.set_title(site_title(layout, number), pad=3)
            if column:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel("heads: Δ ln")
            if number + per_row < len(layout.sites):
                axes.tick_params(labelbottom=False)
            else:
                axes.set_xlabel("frequency (π)")
    return figure


def _line(axes: Axes, frequencies: list[float], values: Tensor, **look: Any) -> None:
    points = [(f, v) for f, v in zip(frequencies, values.tolist(), strict=True) if math.isfinite(v)]
    axes.plot([f for f, _ in points], [v for _, v in points], **look)


def _frame(axes: Axes, limits: tuple[float, float]) -> None:
    axes.axhline(_WHITE, color="0.4", linestyle=":", linewidth=0.8, zorder=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(*limits)
    axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
