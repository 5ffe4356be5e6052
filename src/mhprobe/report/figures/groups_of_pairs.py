"""How alike heads of two groups are: a point and a bar per pair of groups, a panel per curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place

CAPTION = (
    "How alike heads are that were masked before the accuracy drops, at the drop, or kept. A point is the mean of "
    "the pairs, the bar holds 95 % of them, the dash is chance."
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """rows: curve, group_a, group_b, pairs, mean, low, high, null ("" where there is none)."""
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    kinds = list(dict.fromkeys((row["group_a"], row["group_b"]) for row in rows))
    tall, wide = 0.28 * len(kinds) + 0.1, 2.0
    with canvas((1.35 + len(curves) * (wide + 0.25), tall + 0.85)) as figure:
        for number, curve in enumerate(curves):
            axes = place(figure, 1.25 + number * (wide + 0.25), 0.5, wide, tall)
            for row in (row for row in rows if row["curve"] == curve):
                y = kinds.index((row["group_a"], row["group_b"]))
                axes.hlines(y, row["low"], row["high"], color="#56B4E9", linewidth=2)
                axes.plot(row["mean"], y, "o", color=COLOURS[0], markersize=4)
                if row["null"] != "":
                    axes.plot(row["null"], y, "|", color="black", markersize=9)
                axes.text(
                    1.0, y - 0.12, f"{row['pairs']} ", fontsize=6, ha="right", transform=axes.get_yaxis_transform()
                )
            axes.set_ylim(len(kinds) - 0.5, -0.6)
            names = [f"among {a}" if a == b else f"{a} with {b}" for a, b in kinds]
            axes.set_yticks(range(len(kinds)), names if number == 0 else [""] * len(kinds))
            axes.set_xlim(left=0)
            axes.set_xlabel("similarity (right: pairs)")
            axes.set_title(curve, pad=3)
    return figure
