"""Similarity of heads in a trained and in an untrained network, block by block, a panel per measure."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import Figure, canvas, colour, place, ticks, wrapped

CAPTION = (
    "How alike the heads of each block are: points are means over pairs, bars reach from the least to the most alike "
    "pair. What stands apart from the untrained network is what training added."
)


def draw(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Figure:
    """Return the figure. rows: measure, network, block, min, mean, max. labels: of the measures, for the axes."""
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    blocks = sorted({row["block"] for row in rows})
    step = min(0.4, 4.0 / len(blocks))
    wide, tall, gap, left = max(1.7, step * len(blocks)), 2.0, 0.75, 0.7
    with canvas((left + len(measures) * (wide + gap) + 1.1, tall + 0.75)) as figure:
        for number, name in enumerate(measures):
            axes = place(figure, left + number * (wide + gap), 0.5, wide, tall)
            for k, network in enumerate(("trained", "untrained")):
                of = [row for row in rows if (row["measure"], row["network"]) == (name, network)]
                shade, marker = colour(k)
                at = [row["block"] + 0.24 * (k - 0.5) for row in of]
                axes.vlines(at, [row["min"] for row in of], [row["max"] for row in of], color=shade, alpha=0.4, lw=2)
                axes.plot(
                    at,
                    [row["mean"] for row in of],
                    marker,
                    color=shade,
                    markersize=4,
                    label=f"{network}, mean of pairs",
                )
            axes.axhline(0, color="0.8", linewidth=0.6, zorder=0)
            axes.set_xticks([blocks[i] for i in ticks(len(blocks), step)])
            axes.set_xlabel("block")
            axes.set_ylabel(wrapped(labels[name], tall))
        axes.vlines([], [], [], color="0.3", alpha=0.4, lw=2, label="least to greatest pair")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
