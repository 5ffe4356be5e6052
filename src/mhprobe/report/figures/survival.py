"""Heads that a pruning keeps: by stage, block or function, against the number of heads kept."""

import math
import statistics
from collections.abc import Sequence

from mhprobe.report.figures.style import COLOURS, MARKERS, Axes, Figure, canvas, place
from mhprobe.stats.survival import LABELS, Survivors

# a function has its colour in every figure
LABEL_SHADES = dict(zip(LABELS, (*COLOURS[:6], "#F0E442", "#8C510A", "#01665E", "#999999", "#DDDDDD"), strict=True))

ONE_COLUMN = 14  # lines of a legend

CAPTION = (
    "Which heads pruning keeps, by stage, block or function: the share of each group's heads that is left, by the "
    "number of heads kept. A pruning that took heads at random would keep the same share of every group: the dotted "
    "line. A head with several functions is in several groups. Points on each other are moved apart sideways."
)


def draw(rows: Sequence[Survivors]) -> Figure:
    """A panel per division (those with several groups, and label), two in a row; a line per group, up to all heads.

    Runs that keep equally many heads are points of their own; the line is through their mean.
    """
    heads = _all_heads(rows)
    groups = {by: {row.group for row in rows if row.by == by} for by in dict.fromkeys(row.by for row in rows)}
    divisions = [by for by, names in groups.items() if by == "label" or len(names) > 1]  # one stage tells nothing
    wide, tall, left, bottom, top = 2.3, 2.3, 0.55, 0.5, 0.3
    gap = 2.6 if any(len(groups[by]) > ONE_COLUMN for by in divisions) else 1.95  # where the legend and an axis are
    across = min(2, len(divisions))
    down = max(1, math.ceil(len(divisions) / 2))  # of a single block nothing is drawn
    with canvas((left + across * (wide + gap), down * (bottom + tall + top))) as figure:
        for number, by in enumerate(divisions):
            row, column = divmod(number, across)
            up = (down - 1 - row) * (bottom + tall + top) + bottom
            axes = place(figure, left + column * (wide + gap), up, wide, tall)
            _lines(axes, [row for row in rows if row.by == by], by, heads)
    return figure


def _all_heads(rows: Sequence[Survivors]) -> int:
    """The heads of the model: those of a division that has each of them once, as all but functions do."""
    once = next((row.by for row in rows if row.by != "label"), None)
    return sum({row.group: row.of for row in rows if row.by == once}.values())


def _lines(axes: Axes, rows: Sequence[Survivors], by: str, heads: int) -> None:
    from matplotlib import colormaps

    groups = list(dict.fromkeys(row.group for row in rows))
    if by == "label":
        groups = [label for label in LABELS if label in groups]
    size = {row.group: row.of for row in rows}
    axes.plot([0, heads], [0, 100], color="0.5", ls=":", lw=1, label="at random", zorder=1)
    for number, group in enumerate(groups):
        # groups that have an order get shades that have one, up to a yellow that can still be seen
        shade = LABEL_SHADES[group] if by == "label" else colormaps["viridis"](0.9 * number / max(1, len(groups) - 1))
        shares: dict[int, list[float]] = {heads: [100.0]}
        for row in (row for row in rows if row.group == group):
            shares.setdefault(row.heads, []).append(100 * row.kept / row.of)
        at = sorted(shares)
        # groups of few heads often keep the same share: side by side by a little, not on each other
        aside = 0.012 * heads * (number - (len(groups) - 1) / 2) / max(1, len(groups) - 1)
        axes.plot([x + aside for x in at], [statistics.fmean(shares[x]) for x in at], color=shade, lw=1.2)
        dots = [(x + aside, share) for x in at for share in shares[x]]
        axes.plot(*zip(*dots, strict=True), MARKERS[number % len(MARKERS)], color=shade, ms=3.5,
                  label=f"{group} ({size[group]})")  # fmt: skip
    axes.set_ylim(-4, 104)
    axes.set_xlim(-0.02 * heads, 1.03 * heads)
    axes.set_xlabel("heads kept")
    axes.set_ylabel("heads of the group kept (%)")
    axes.set_title(f"by {'function' if by == 'label' else by}", loc="left", pad=4)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), borderaxespad=0.3, handlelength=1.0,
                ncols=1 + (len(groups) > ONE_COLUMN))  # fmt: skip
