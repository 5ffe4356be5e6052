"""Similarity of heads of two groups above that of their layers' heads: a point and a band per pair of groups.

A panel per curve.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place

CAPTION = (
    "How alike heads are that were masked before the accuracy drops, at the drop, or kept: how far their pairs stand "
    "above the mean of all pairs of the same layers. The band holds 95 % of what groups give that are dealt out anew "
    "within each layer; a filled point is beyond it by p < .05 (Holm)."
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the figure. rows: curve, group_a, group_b, pairs, above, chance_low, chance_high, p_holm."""
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    kinds = list(dict.fromkeys((row["group_a"], row["group_b"]) for row in rows))
    tall, wide = 0.28 * len(kinds) + 0.1, 2.0
    with canvas((1.35 + len(curves) * (wide + 0.25), tall + 0.98)) as figure:
        for number, curve in enumerate(curves):
            axes = place(figure, 1.25 + number * (wide + 0.25), 0.62, wide, tall)
            for row in (row for row in rows if row["curve"] == curve):
                y = kinds.index((row["group_a"], row["group_b"]))
                axes.hlines(y, row["chance_low"], row["chance_high"], color="0.8", linewidth=5)
                face = COLOURS[0] if row["p_holm"] < 0.05 else "white"
                axes.plot(row["above"], y, "o", color=COLOURS[0], markerfacecolor=face, markersize=4)
                axes.text(
                    1.0, y - 0.12, f"{row['pairs']} ", fontsize=6, ha="right", transform=axes.get_yaxis_transform()
                )
            axes.set_ylim(len(kinds) - 0.5, -0.6)
            names = [f"among {a}" if a == b else f"{a} with {b}" for a, b in kinds]
            axes.set_yticks(range(len(kinds)), names if number == 0 else [""] * len(kinds))
            axes.axvline(0, color="0.6", linewidth=0.6, zorder=0)
            axes.margins(x=0.25)
            axes.set_xlabel("similarity above the layers' mean\n(grey: chance; right: pairs)")
            axes.set_title(curve, pad=3)
    return figure
