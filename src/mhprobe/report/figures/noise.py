"""Accuracy under noise of one band of frequencies, over the bands."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Axes, Figure, canvas, place

CAPTION = (
    "Accuracy with equally strong noise in one band of frequencies at a time; bars are 95 % intervals over images. "
    "Where it falls most, the network relies on these frequencies. Dashed: clean images. Dotted: guessing."
)


def draw(rows: Sequence[Mapping[str, Any]], strength: float, chance: float) -> Figure:
    """Return the figure.

    rows: the clean images first, then a band each: low, high, accuracy, accuracy_low, accuracy_high.
    """
    with canvas((5.0, 2.8)) as figure:
        axes = place(figure, 0.55, 0.5, 3.45, 2.1)
        middles = [(row["low"] + row["high"]) / 2 for row in rows[1:]]
        accuracies(axes, middles, rows[1:], "o-", COLOURS[0])
        axes.axhline(100 * rows[0]["accuracy"], color="0.3", linestyle="--", linewidth=0.8, label="clean")
        axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, label="chance")
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.set(xlabel=f"frequency of the noise (units of π; deviation {strength:g})", ylabel="test accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.03, 0.5), borderaxespad=0)
    return figure


def accuracies(
    axes: Axes, x: Sequence[float], rows: Sequence[Mapping[str, Any]], look: str, shade: str, label: str = ""
) -> None:
    """A line over x with whiskers. rows: accuracy, accuracy_low, accuracy_high of each point. look: marker and line."""
    y, low, high = ([100 * row[name] for row in rows] for name in ("accuracy", "accuracy_low", "accuracy_high"))
    spread = [[a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
    axes.errorbar(x, y, spread, fmt=look, color=shade, markersize=2.5, linewidth=1, capsize=3, label=label or None)
