"""Do runs rank the heads alike? Rank correlations between every two runs, a row per measure."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place

CAPTION = (
    "Do runs rank the heads alike? A dot per two runs: 1 the same order, 0 none. Runs of other training seeds have "
    "other heads under the same numbers: there a correlation can only come from the blocks that heads are in."
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the figure. rows: measure, run_a, run_b, spearman."""
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    tall = 0.24 * len(measures) + 0.15
    left = 0.35 + 0.065 * max(map(len, measures))
    with canvas((left + 3.3, tall + 0.65)) as figure:
        axes = place(figure, left, 0.5, 3.1, tall)
        for number, measure in enumerate(measures):
            found = [row["spearman"] for row in rows if row["measure"] == measure]
            axes.plot(found, [number] * len(found), "o", color=COLOURS[0], markersize=4, alpha=0.7)
        axes.axvline(0, color="0.4", linestyle="--", linewidth=0.8)
        axes.set(xlim=(-1.04, 1.04), ylim=(len(measures) - 0.5, -0.5))
        axes.set_yticks(range(len(measures)), [name.replace("_", " ") for name in measures])
        axes.set_xlabel("Spearman's correlation over heads, every two runs")
    return figure
