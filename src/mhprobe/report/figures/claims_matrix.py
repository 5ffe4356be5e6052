"""Claims down, networks across: the verdict of each network on each claim."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.claims import WORDS
from mhprobe.report.figures.style import Figure, canvas, place

CAPTION = (
    "Findings of the literature, by network. Rows are claims, those that hold in most networks on top; columns are "
    "networks. A dot: the network cannot tell. A stroke: it cannot be asked. Empty: it was not asked."
)
SIGNS = {"holds": "+", "contradicted": "\N{MINUS SIGN}", "too small to matter": "0", "cannot be told": "·"}
CELL = 0.34  # inches across
LEGEND = 4.1


def draw(rows: Sequence[Mapping[str, Any]], networks: Sequence[str]) -> Figure:
    """Return the figure.

    rows: claim, and under the name of each network its verdict.
    """
    order = sorted(rows, key=lambda row: [sum(row[name] == word for name in networks) for word in WORDS], reverse=True)
    tall, wide = 0.17 * len(order), CELL * len(networks)
    left, bottom = 0.25 + 0.062 * max(len(row["claim"]) for row in order), 0.3 + 0.05 * max(map(len, networks))
    page = max(left + wide + 0.2, LEGEND)
    with canvas((page, bottom + tall + 0.4)) as figure:
        axes = place(figure, left, bottom, wide, tall)
        for y, row in enumerate(order):
            for x, name in enumerate(networks):
                verdict = row[name]
                if verdict in list(WORDS)[:3]:
                    axes.add_patch(_cell(x, y, WORDS[verdict]))
                sign = SIGNS.get(verdict, "/" if verdict else "")
                white = verdict in list(WORDS)[:3]
                axes.text(x, y, sign, ha="center", va="center", fontsize=7, color="white" if white else "0.4")
        for word in list(WORDS)[:3]:
            axes.plot([], [], "s", color=WORDS[word], label=f"{SIGNS[word]} {word}")
        axes.set_xlim(-0.5, len(networks) - 0.5)
        axes.set_ylim(len(order) - 0.5, -0.5)
        axes.set_yticks(range(len(order)), [row["claim"].replace("_", " ") for row in order])
        axes.set_xticks(range(len(networks)), list(networks), rotation=45, ha="right")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.legend(loc="lower right", bbox_to_anchor=((page - 0.1 - left) / wide, 1), ncols=3, borderaxespad=0.2)
    return figure


def _cell(x: int, y: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, color=colour, linewidth=0)
