"""Claims of the literature: a forest of one network's verdicts, and a matrix of many networks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, Axes, Figure

WORDS = {
    "holds": COLOURS[2],
    "contradicted": COLOURS[1],
    "too small to matter": COLOURS[0],
    "cannot be told": "0.6",
    "not applicable": "0.6",
}
FARTHEST = 4.0  # multiples of what matters; what is further out ends in an arrow
MARKS = {"more": "o", "at most": "s", "none": "D"}
SIGNS = {
    "holds": "+",
    "contradicted": "\N{MINUS SIGN}",
    "too small to matter": "0",
    "cannot be told": "·",
}
CELL = 0.34  # inches across
LEGEND = 4.1


@captioned(
    "Findings of the literature, judged on this network. A dot is an effect in multiples of the "
    "smallest that matters, "
    "its bar the 95 % interval over what it averages (heads, blocks, images); bars end at 4. A "
    "claim holds if its bar "
    "lies right of 1, and is contradicted left of -1. That a cost is at most so large (square) "
    "holds right of -1, that "
    "there is no effect (diamond) between. Colours are after Holm's correction. A ring: it holds "
    "untrained as well."
)
def claims(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A forest of claims: effects in multiples of the smallest that matters, coloured by verdict.

    rows: claim, verdict, effect, low, high, matters, shape, learned; those without a finite effect
    are counted only.
    """
    finite = [row for row in rows if math.isfinite(row["effect"])]
    order = sorted(
        finite, key=lambda row: (list(WORDS).index(row["verdict"]), -row["effect"] / row["matters"])
    )
    tall = 0.17 * max(1, len(order)) + 0.1
    edges = (0.25 + 0.062 * max((len(row["claim"]) for row in order), default=10), 0.6, 0.2, 0.4)
    with style.panel((4.0, tall), edges) as (figure, axes):
        axes.axvspan(-1, 1, color="0.94", linewidth=0)
        for at in (-1, 0, 1):
            axes.axvline(at, color="0.5", linewidth=0.6, linestyle="-" if at else ":")
        for y, row in enumerate(order):
            _draw_effect(axes, y, row)
        for word, colour in WORDS.items():
            if any(row["verdict"] == word for row in order):
                axes.plot([], [], "o", color=colour, markersize=3.5, label=word)
        style.name_rows(axes, [row["claim"].replace("_", " ") for row in order])
        axes.set(xlim=(-FARTHEST - 0.15, FARTHEST + 0.15), ylim=(len(order) - 0.4, -0.6))
        axes.set_xlabel("effect, in multiples of the smallest that matters")
        if order:
            style.legend_above(axes, right=True, ncols=4)
        if missing := len(rows) - len(finite):
            axes.text(
                0,
                -0.42 / tall,
                f"{missing} not applicable",
                transform=axes.transAxes,
                fontsize=7,
                va="top",
            )
    return figure


def _draw_effect(axes: Axes, y: int, row: Mapping[str, Any]) -> None:
    """Draw the effect of a claim with its interval; an arrow where it lies outside of the axis."""
    colour = WORDS[row["verdict"]]
    effect, low, high = (row[name] / row["matters"] for name in ("effect", "low", "high"))
    middle, left_end, right_end = (
        max(-FARTHEST, min(value, FARTHEST)) for value in (effect, low, high)
    )
    axes.hlines(y, left_end, right_end, color=colour, linewidth=1.4)
    mark = MARKS[row["shape"]] if middle == effect else ">" if effect > 0 else "<"
    axes.plot(middle, y, mark, color=colour, markersize=3.5, clip_on=False)
    if row["learned"]:
        axes.plot(middle, y, "o", color="black", markersize=7, fillstyle="none", clip_on=False)


@captioned(
    "Findings of the literature, by network. Rows are claims, those that hold in most networks on "
    "top; columns are "
    "networks. A dot: the network cannot tell. A stroke: it cannot be asked. Empty: it was not "
    "asked."
)
def claims_matrix(rows: Sequence[Mapping[str, Any]], networks: Sequence[str]) -> Figure:
    """Verdicts of networks on claims, a row each.

    rows: claim, and under the name of each network its verdict.
    """
    order = sorted(
        rows,
        key=lambda row: [sum(row[name] == word for name in networks) for word in WORDS],
        reverse=True,
    )
    tall = 0.17 * len(order)
    wide = CELL * len(networks)
    left = 0.25 + 0.062 * max(len(row["claim"]) for row in order)
    bottom = 0.3 + 0.05 * max(map(len, networks))
    right = max(0.2, LEGEND - left - wide)
    with style.panel((wide, tall), (left, bottom, right, 0.4)) as (figure, axes):
        for y, row in enumerate(order):
            for x, name in enumerate(networks):
                verdict, sure = row[name], row[name] in list(WORDS)[:3]
                if sure:
                    style.box(
                        axes, (x - 0.46, y - 0.42), 0.92, 0.84, color=WORDS[verdict], linewidth=0
                    )
                sign = SIGNS.get(verdict, "/" if verdict else "")
                axes.text(
                    x,
                    y,
                    sign,
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if sure else "0.4",
                )
        for word in list(WORDS)[:3]:
            axes.plot([], [], "s", color=WORDS[word], label=f"{SIGNS[word]} {word}")
        axes.set_xlim(-0.5, len(networks) - 0.5)
        style.name_rows(axes, [row["claim"].replace("_", " ") for row in order])
        axes.set_xticks(range(len(networks)), list(networks), rotation=45, ha="right")
        style.bare(axes)
        style.legend_above(
            axes, right=True, ncols=3, bbox_to_anchor=((wide + right - 0.1) / wide, 1)
        )
    return figure
