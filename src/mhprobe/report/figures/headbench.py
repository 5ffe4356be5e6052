"""HeadBench: measures that find planted heads, and how small a graft they find."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, MARKERS, Axes, Figure

SHORT = 0.95  # from here on a measure can be believed
ACROSS = 3


@captioned(
    "How well each measure tells heads of which it is known what they do from all others (AUROC: 1 always, 0.5 like a "
    "coin, 0 always the wrong way round). A frame marks what was expected of the measure beforehand, by what it says "
    "about itself; a measure with nothing expected is read as: large values for planted heads. Empty: no number there."
)
def headbench(rows: Sequence[Any]) -> Figure:
    """HeadBench: measures that find planted heads: detectors down, plants across, one panel per family.

    rows: with family, plant, measure, direction and auroc, as in tables/headbench.csv.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    families = list(dict.fromkeys(row.family for row in rows))
    names = sorted({row.measure for row in rows})
    plants = sorted({row.plant for row in rows})
    cell, left, bottom, between, top = 0.33, 2.1, 1.15, 0.3, 0.35
    wide, tall = cell * len(plants), 0.75 * cell * len(names)
    size = (left + len(families) * (wide + between) + 0.75, bottom + tall + top)
    with style.canvas(size) as figure:
        image: Any = None
        for number, family in enumerate(families):
            axes = style.place(figure, left + number * (wide + between), bottom, wide, tall)
            values = torch.full((len(names), len(plants)), torch.nan)
            for row in rows:
                if row.family == family:
                    at = names.index(row.measure), plants.index(row.plant)
                    values[at] = row.auroc
                    text = f"{row.auroc:.2f}".lstrip("0").replace("1.00", "1")
                    axes.text(at[1], at[0], text, ha="center", va="center", size=6)
                    if row.direction:
                        axes.add_patch(Rectangle((at[1] - 0.5, at[0] - 0.5), 1, 1, fill=False, linewidth=1.2))
            image = axes.imshow(
                values.numpy(), cmap=colormaps["RdBu_r"].with_extremes(bad="0.93"), norm=Normalize(0, 1), aspect="auto"
            )
            style.readable(axes)
            axes.set_xticks(range(len(plants)), [name.replace("_", " ") for name in plants], rotation=45, ha="right")
            axes.set_yticks(range(len(names)), names if number == 0 else [""] * len(names))
            style.bare(axes)
            axes.set_title(family, loc="left", pad=4)
        bar_at = left + len(families) * (wide + between) - between + 0.12
        style.colour_bar(figure, image, bar_at, bottom, min(tall, 3), "AUROC")
    return figure


@captioned(
    "Heads of trained networks are changed, more at every grade; the share of them that a measure finds (at most one "
    "other head looks more like it). At grade 0 nothing was done: what is found there is chance. Behind a name: the "
    "grade from which on the measure finds half, with its 95 % interval over networks. Lower is more sensitive."
)
def sensitivity(grades: Sequence[Any], sensitivities: Sequence[Any]) -> Figure:
    """Sensitivity of measures: the share of grafts that they find, grade by grade, a panel per kind of graft.

    grades, sensitivities: rows with the columns of tables/headbench_grades.csv and headbench_sensitivity.csv.
    """
    kinds = list(dict.fromkeys(row.graft for row in sensitivities))
    wide, tall, left, below, gap = 2.1, 1.5, 0.5, 1.75, 0.45
    down = math.ceil(len(kinds) / ACROSS)
    across = min(len(kinds), ACROSS)
    with style.canvas((left + across * (wide + gap), down * (tall + below + 0.3))) as figure:
        for number, kind in enumerate(kinds):
            row, column = divmod(number, ACROSS)
            bottom = (down - 1 - row) * (tall + below + 0.3) + below
            axes = style.place(figure, left + column * (wide + gap), bottom, wide, tall)
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
                    label=f"{each.measure} {_threshold(each)}",
                )
            _dress(axes, kind, [point for point in grades if point.graft == kind], column == 0)
    return figure


def _threshold(row: Any) -> str:
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
