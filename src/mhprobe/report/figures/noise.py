"""Accuracy under noise of one band of frequencies, over the bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place

CAPTION = (
    "Accuracy with equally strong noise in one band of frequencies at a time; bars are 95 % intervals over images. "
    "Where it falls most, the network relies on these frequencies. Dashed: clean images. Dotted: guessing."
)


def draw(rows: Sequence[Mapping[str, Any]], strength: float, chance: float) -> Figure:
    """rows: the clean images first, then a band each: low, high, accuracy, accuracy_low, accuracy_high."""
    with canvas((5.0, 2.8)) as figure:
        axes = place(figure, 0.55, 0.5, 3.45, 2.1)
        for row in rows[1:]:
            middle = (row["low"] + row["high"]) / 2
            axes.vlines(middle, 100 * row["accuracy_low"], 100 * row["accuracy_high"], color="#56B4E9", linewidth=2)
        middles = [(row["low"] + row["high"]) / 2 for row in rows[1:]]
        axes.plot(middles, [100 * row["accuracy"] for row in rows[1:]], "o-", color=COLOURS[0], markersize=4)
        axes.axhline(100 * rows[0]["accuracy"], color="0.3", linestyle="--", linewidth=0.8, label="clean")
        axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, label="chance")
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"frequency of the noise (units of π; deviation {strength:g})")
        axes.set_ylabel("test accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.03, 0.5), borderaxespad=0)
    return figure
