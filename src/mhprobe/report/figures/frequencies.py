"""Figures over frequency: spectra along the diagonal, and accuracy under damage of one band."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, NAMELESS, Axes, Figure, Names

_AFTER_MLP = 2
_WHITE = math.log(2) / 2  # real white noise, against its frequency 0


@captioned(
    "How much each frequency is damped, relative to the lowest: the residual stream behind every "
    "block, and what "
    "every head writes. Lower means smoother; a flat line, white noise, is what chance would give."
)
def spectrum(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Spectra from "spectrum" (A, K), "stream" (L, 3, K), "frequencies" (1, K); NaN is left out."""
    frequencies = columns["frequencies"][0]
    spectra = columns["spectrum"].double()
    stream = columns["stream"][:, _AFTER_MLP].double()
    shown = torch.cat([spectra.flatten(), stream.flatten()])
    shown = shown[shown.isfinite()]
    room = 0.05 * float(shown.max() - shown.min()) or 1.0
    limits = (min(0.0, float(shown.min())) - room, max(_WHITE, float(shown.max())) + room)
    size, left, bottom = (1.05, 1.05), 0.55, 0.45
    _, deep = style.grid_size(len(layout.sites), size, style.LAYER_GAP)
    tall = max(deep, 1.9)
    edge, labels = (left + 1.9 + 0.9, bottom + tall - deep), ("frequency (π)", "heads: Δ ln")
    with style.layer_panels(layout, size, edge, labels, least=0) as (figure, panels):
        axes = style.axes_at(figure, left, bottom, 1.9, tall)
        for block, row in enumerate(stream):
            shade = style.shades("viridis_r")(0.1 + 0.9 * block / max(1, len(stream) - 1))
            finite = row.isfinite()
            axes.plot(frequencies[finite], row[finite], color=shade, linewidth=1.3)
        _frequency_frame(axes, limits)
        axes.set_title(f"stream after block 0 (light) to {len(stream) - 1} (dark)", pad=4)
        axes.set(ylabel="Δ ln amplitude (nats)", xlabel="frequency (π per token)")
        for number, axes in enumerate(panels):
            for spectrum in spectra[layout.span(number)]:
                finite = spectrum.isfinite()
                axes.plot(
                    frequencies[finite],
                    spectrum[finite],
                    color=COLOURS[0],
                    linewidth=0.8,
                    alpha=0.7,
                )
            _frequency_frame(axes, limits)
    return figure


def _frequency_frame(axes: Axes, limits: tuple[float, float]) -> None:
    axes.axhline(_WHITE, color="0.4", linestyle=":", linewidth=0.8, zorder=0)
    axes.set(xlim=(0, 1), ylim=limits)
    axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])


@captioned(
    "What attention and MLPs do to the maps on their way through the network: variance over the "
    "grid (left), "
    "share of the highest frequency (right). A step down at attention means that it smooths. The "
    "dotted line is "
    "white noise."
)
def depth_variance(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Depth profiles from "variance" (L, 3) and "stream" (L, 3, K), a line per stage."""
    variance = columns["variance"].double()
    stream = columns["stream"].double()
    last = (stream[:, 0].isfinite() * torch.arange(1, 1 + stream.shape[2])).argmax(
        1
    )  # highest frequency of the grid
    high = stream[torch.arange(len(stream)), :, last]
    with style.grid(2, (2.6, 1.9), (0.85, 0), (0.65, 0.5, 1.15, 0.25)) as (figure, places):
        (left, *_), (right, *_) = places
        for axes, values, name in ((left, variance, "feature-map variance"), (right, high, label)):
            _steps(axes, layout, values)
            axes.set_ylabel(name)
        left.set_yscale("log")
        style.log_ticks(left.yaxis)
        right.axhline(_WHITE, color="0.4", linestyle=":", linewidth=0.8, label="white noise")
        style.legend_beside(right)
    return figure


def _steps(axes: Axes, layout: HeadLayout, values: Tensor) -> None:
    """Draw a step of attention and one of the MLP per block, in two colours."""
    for stage in range(1 + max(block.stage for block in layout.blocks)):
        numbers = [number for number, block in enumerate(layout.blocks) if block.stage == stage]
        for block in numbers:
            before, middle, after = values[block].tolist()
            first = block == 0
            names = ("attention", "MLP") if first else (None, None)
            axes.plot([block, block + 0.5], [before, middle], color=COLOURS[1], label=names[0])
            axes.plot([block + 0.5, block + 1], [middle, after], color=COLOURS[0], label=names[1])
            axes.plot(
                [block],
                [before],
                "o",
                color="0.2",
                markersize=2.5,
                label="block input" if first else None,
            )
        axes.axvline(numbers[-1] + 1, color="0.85", linewidth=0.6, zorder=0)
    count = len(layout.blocks)
    axes.set(xticks=range(0, count + 1, 1 if count <= 12 else 4), xlabel="block")


@captioned(
    "Accuracy with equally strong noise in one band of frequencies at a time; bars are 95 % "
    "intervals over images. "
    "Where it falls most, the network relies on these frequencies. Dashed: clean images. Dotted: "
    "guessing."
)
def noise(rows: Sequence[Mapping[str, Any]], strength: float, chance: float) -> Figure:
    """Accuracy under noise of one band.

    rows: clean images, then bands: from, to, accuracy, accuracy_low/_high.
    """
    with style.panel((3.45, 2.1), (0.55, 0.5, 1.0, 0.2)) as (figure, axes):
        _over_frequency(axes, {"": rows[1:]}, rows[0], "clean", chance)
        axes.set_xlabel(f"frequency of the noise (units of π; deviation {strength:g})")
        style.legend_beside(axes, 1.03)
    return figure


def _over_frequency(
    axes: Axes,
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    whole: Mapping[str, Any],
    name: str,
    chance: float,
) -> None:
    """Draw lines with whiskers by their labels, and the levels of undamaged images (``whole``) and of guessing."""
    for number, (label, rows) in enumerate(lines.items()):
        shade, marker = style.colour(number)
        aside = 0.012 * (number - 0.5) if len(lines) > 1 else 0  # bars side by side
        x, ends = (
            [(row["from"] + row["to"]) / 2 + aside for row in rows],
            ("accuracy", "accuracy_low", "accuracy_high"),
        )
        look: Any = {
            "color": shade,
            "markersize": 2.5,
            "linewidth": 1,
            "capsize": 3,
            "label": label or None,
        }
        style.whiskers(axes, x, style.in_percent(rows, *ends), fmt=marker + "-", **look)
    style.level(axes, 100 * whole["accuracy"], name)
    style.level(axes, 100 * chance, "chance", ":")
    axes.set(xlim=(0, 1), ylim=(0, None), ylabel="test accuracy (%)")


@captioned(
    "Accuracy when the phases, or the amplitudes, of one band of frequencies are those of noise; "
    "bars are 95 % "
    "intervals over images. Where the phase costs more than the amplitude, the network reads where "
    "things are; a star "
    "stands above a band where the two differ significantly (paired, Holm over bands). Dashed: "
    "whole images. "
    "Dotted: guessing."
)
def phase(rows: Sequence[Mapping[str, Any]], differ: Sequence[bool], chance: float) -> Figure:
    """Accuracy without the phases, or without the amplitudes, of one band of frequencies at a time.

    rows: the whole images first, then damage, from, to, accuracy, accuracy_low, accuracy_high.
    differ: for each band, from low to high, whether the two damages cost significantly unlike
    amounts.
    """
    with style.panel((2.75, 2.1), (0.55, 0.5, 1.6, 0.2)) as (figure, axes):
        damages = dict.fromkeys(row["damage"] for row in rows[1:])
        lines = {
            f"without {damage}": [row for row in rows if row["damage"] == damage]
            for damage in damages
        }
        _over_frequency(axes, lines, rows[0], "whole images", chance)
        for row in (row for row, star in zip(rows[1:], differ, strict=False) if star):
            axes.text(
                (row["from"] + row["to"]) / 2,
                1.0,
                "*",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
            )
        axes.set_xlabel("frequency (units of π)")
        star = "the two differ\n(p < .05, Holm)" if any(differ) else ""
        style.legend_beside(axes, star=star)
    return figure
