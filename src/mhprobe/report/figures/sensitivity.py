"""Sensitivity of measures: the share of grafts that they find, grade by grade, a panel per kind of graft."""

import math
from collections.abc import Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, MARKERS, Axes, Figure, canvas, place

CAPTION = (
    "Heads of trained networks are changed, more at every grade; the share of them that a measure finds (at most one "
    "other head looks more like it). At grade 0 nothing was done: what is found there is chance. Behind a name: the "
    "grade from which on the measure finds half, with its 95 % interval over networks. Lower is more sensitive."
)
ACROSS = 3


def draw(grades: Sequence[Any], sensitivities: Sequence[Any]) -> Figure:
    """Return the figure.

    grades, sensitivities: rows with the columns of tables/headbench_grades.csv and headbench_sensitivity.csv.
    """
    kinds = list(dict.fromkeys(row.graft for row in sensitivities))
    wide, tall, left, below, gap = 2.1, 1.5, 0.5, 1.75, 0.45
    down = math.ceil(len(kinds) / ACROSS)
    across = min(len(kinds), ACROSS)
    with canvas((left + across * (wide + gap), down * (tall + below + 0.3))) as figure:
        for number, kind in enumerate(kinds):
            row, column = divmod(number, ACROSS)
            bottom = (down - 1 - row) * (tall + below + 0.3) + below
            axes = place(figure, left + column * (wide + gap), bottom, wide, tall)
            mine = sorted((each for each in sensitivities if each.graft == kind), key=lambda each: each.grade)
            for order, each in enumerate(mine):
                points = [point for point in grades if (point.graft, point.measure) == (kind, each.measure)]
                axes.plot(
                    [point.grade + 0.04 * (order - len(mine) / 2) for point in points],
                    [100 * point.found for point in points],
                    color=COLOURS[order % len(COLOURS)],
                    marker=MARKERS[order % len(MARKERS)],
                    markersize=3.5,
                    linewidth=1,
                    label=f"{each.measure} {_words(each)}",
                )
            _dress(axes, kind, [point for point in grades if point.graft == kind], column == 0)
    return figure


def _words(row: Any) -> str:
    low, high = (f"{end:.1f}" if math.isfinite(end) else "never" for end in (row.low, row.high))
    return f"{row.grade:.1f} ({low} to {high})" if math.isfinite(row.grade) else "never"


def _dress(axes: Axes, kind: str, points: Sequence[Any], first: bool) -> None:
    amounts = {point.grade: point.amount for point in points}
    names = [f"{grade}\n{amounts[grade]:g}" if grade else "0\nnone" for grade in sorted(amounts)]
    axes.axhline(50, color="0.3", linestyle=":", linewidth=0.8, zorder=0)
    axes.set_ylim(-4, 104)
    axes.set_xticks(sorted(amounts), names)
    axes.set_xlabel("grade, and the amount")
    axes.set_title(kind.replace("_", " "), loc="left")
    if first:
        axes.set_ylabel("found (% of grafts)")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.06, -0.36), fontsize=6.5, borderaxespad=0)
