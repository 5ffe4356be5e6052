"""Accuracy without the phases, or without the amplitudes, of one band of frequencies at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.noise import accuracies
from mhprobe.report.figures.style import Figure, canvas, colour, place

CAPTION = (
    "Accuracy when the phases, or the amplitudes, of one band of frequencies are those of noise; bars are 95 % "
    "intervals over images. Where the phase costs more than the amplitude, the network reads where things are; a star "
    "stands above a band where the two differ significantly (paired, Holm over bands). Dashed: whole images. "
    "Dotted: guessing."
)


def draw(rows: Sequence[Mapping[str, Any]], differ: Sequence[bool], chance: float) -> Figure:
    """Return the figure.

    rows: the whole images first, then damage, low, high, accuracy, accuracy_low, accuracy_high.
    differ: for each band, from low to high, whether the two damages cost significantly unlike amounts.
    """
    with canvas((4.9, 2.8)) as figure:
        axes = place(figure, 0.55, 0.5, 2.75, 2.1)
        for number, damage in enumerate(dict.fromkeys(row["damage"] for row in rows[1:])):
            of = [row for row in rows if row["damage"] == damage]
            shade, marker = colour(number)
            middles = [(row["low"] + row["high"]) / 2 + 0.012 * (number - 0.5) for row in of]  # bars side by side
            accuracies(axes, middles, of, marker + "-", shade, f"without {damage}")
        stars = [(row["low"] + row["high"]) / 2 for row, star in zip(rows[1:], differ, strict=False) if star]
        for middle in stars:
            axes.text(middle, 1.0, "*", transform=axes.get_xaxis_transform(), ha="center", va="bottom")
        axes.axhline(100 * rows[0]["accuracy"], color="0.3", linestyle="--", linewidth=0.8, label="whole images")
        axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, label="chance")
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="frequency (units of π)", ylabel="test accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
