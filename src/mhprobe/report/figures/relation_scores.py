"""Hit rates by relation: heads or probes beside baselines that need neither."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import Figure, canvas, colour, place

CAPTION = (
    "How often each way to answer names a right patch, with 95 % intervals over test images; heads, offsets and probes "
    "were chosen on other images. A head that is no better than the best fixed offset has learned a place, and the "
    "even draw is chance."
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the figure.

    rows: relation, way, who ("" for nothing to say), score, low, high in [0, 1]. A row of the figure each.
    """
    relations = list(dict.fromkeys(row["relation"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    step = max(0.5, 0.16 * len(ways))
    named = any(row["who"] for row in rows)
    left, wide, tall = 1.15, 3.2, step * len(relations)
    with canvas((left + wide + (3.0 if named else 2.0), tall + 0.75)) as figure:
        axes = place(figure, left, 0.5, wide, tall)
        for row in rows:
            number = ways.index(row["way"])
            shade, marker = colour(number)
            y = relations.index(row["relation"]) + 0.8 * ((number + 0.5) / len(ways) - 0.5)
            first = row["relation"] == relations[0]
            axes.plot(100 * row["score"], y, marker, color=shade, markersize=4.5, label=row["way"] if first else "")
            axes.hlines(y, 100 * row["low"], 100 * row["high"], color=shade, linewidth=1.4)
            if row["who"]:
                axes.annotate(row["who"], (1.02, y), xycoords=("axes fraction", "data"), fontsize=6, va="center",
                              color=shade, annotation_clip=False)  # fmt: skip
        for edge in range(1, len(relations)):
            axes.axhline(edge - 0.5, color="0.85", linewidth=0.6)
        axes.set(xlim=(0, 102), ylim=(len(relations) - 0.5, -0.5))
        axes.set_yticks(range(len(relations)), relations)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("queries answered rightly (%), 95 % interval over images")
        beside = 1.4 if named else 1.03
        axes.legend(loc="center left", bbox_to_anchor=(beside, 0.5), borderaxespad=0)
    return figure
