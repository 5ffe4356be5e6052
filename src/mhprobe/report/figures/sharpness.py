"""The largest eigenvalues of the loss's Hessian, for the whole network and block by block."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place

CAPTION = (
    "How sharp the loss is along its sharpest direction: the largest eigenvalue of its Hessian, over all weights and "
    "over those of each block. Larger is sharper; negative ones mean that the loss is not at a minimum there."
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the figure. rows: part, rank, eigenvalue."""
    parts = list(dict.fromkeys(row["part"] for row in rows))
    tall = 0.2 * len(parts) + 0.2
    left = 0.4 + 0.07 * max(map(len, parts))
    with canvas((left + 3.1, tall + 0.65)) as figure:
        axes = place(figure, left, 0.5, 2.9, tall)
        for row in rows:
            y, first = parts.index(row["part"]), row["rank"] == 1
            axes.plot(row["eigenvalue"], y, "o", color=COLOURS[0 if first else 4], markersize=5 if first else 3)
        axes.axvline(0, color="0.4", linestyle="--", linewidth=0.8)
        axes.set_ylim(len(parts) - 0.5, -0.5)
        axes.set_yticks(range(len(parts)), parts)
        axes.set_xlabel("largest eigenvalues of the Hessian (nats)")
    return figure
