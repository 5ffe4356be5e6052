"""Accuracy against the share of heads masked within one kind of layer, a line per kind."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import Figure, canvas, colour, place

CAPTION = (
    "Accuracy when heads of one kind of layer go, in the order of their importance. Bands are 95 % intervals over "
    "images. Kinds have different numbers of heads: the legend says how many."
)


def draw(rows: Sequence[Mapping[str, Any]], chance: float) -> Figure:
    """Return the figure. rows: kind, share, heads_masked, heads, accuracy, low, high."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    with canvas((5.4, 3.0)) as figure:
        axes = place(figure, 0.55, 0.5, 3.0, 2.3)
        for number, kind in enumerate(kinds):
            shade, marker = colour(number)
            own = [row for row in rows if row["kind"] == kind]
            share, accuracy, low, high = (
                [100 * row[name] for row in own] for name in ("share", "accuracy", "low", "high")
            )
            axes.plot(share, accuracy, color=shade, marker=marker, markersize=3, label=f"{kind} ({own[0]['heads']})")
            axes.fill_between(share, low, high, color=shade, alpha=0.12, linewidth=0)
        if 100 * chance > axes.get_ylim()[0]:
            axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, label="chance")
        axes.set(xlabel="heads of the kind masked (%)", ylabel="test accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0, title="kind (heads)")
    return figure
