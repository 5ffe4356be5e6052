"""HeadBench: measures that find planted heads, and how small a graft they find."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import Figure

ACROSS = 3


@captioned(
    "How well each measure tells heads of which it is known what they do from all others (AUROC: 1 "
    "always, 0.5 like a "
    "coin, 0 always the wrong way round). A frame marks what was expected of the measure "
    "beforehand, by what it says "
    "about itself; a measure with nothing expected is read as: large values for planted heads. "
    "Empty: no number there."
)
def headbench(rows: Sequence[Any]) -> Figure:
    """Measures that find planted heads.

    rows: family, plant, measure, direction, auroc, as in tables/headbench.csv.
    """
    families = list(dict.fromkeys(row.family for row in rows))
    names = sorted({row.measure for row in rows})
    plants = sorted({row.plant for row in rows})
    cell = 0.33
    size, edges = (cell * len(plants), 0.75 * cell * len(names)), (2.1, 1.15, 1.05, 0.35)
    look: Any = {"cmap": style.shades("RdBu_r", bad="0.93"), "norm": None, "vmin": 0, "vmax": 1}
    with style.grid(len(families), size, (0.3, 0), edges, per_row=len(families)) as (
        figure,
        places,
    ):
        for (axes, first, _), family in zip(places, families, strict=True):
            values = torch.full((len(names), len(plants)), torch.nan)
            for row in (row for row in rows if row.family == family):
                y = names.index(row.measure)
                x = plants.index(row.plant)
                values[y, x] = row.auroc
                text = f"{row.auroc:.2f}".lstrip("0").replace("1.00", "1")
                axes.text(x, y, text, ha="center", va="center", size=6)
                if row.direction:
                    style.box(axes, (x - 0.5, y - 0.5), 1, 1, linewidth=1.2)
            image = style.picture(axes, values, **look)
            style.colour_text(axes)
            axes.set_xticks(
                range(len(plants)),
                [name.replace("_", " ") for name in plants],
                rotation=45,
                ha="right",
            )
            axes.set_yticks(range(len(names)), names if first else [""] * len(names))
            style.bare(axes)
            axes.set_title(family, loc="left", pad=4)
        wide, tall = style.grid_size(len(families), size, (0.3, 0), len(families))
        style.colour_bar(figure, image, edges[0] + wide + 0.12, edges[1], min(tall, 3), "AUROC")
    return figure


@captioned(
    "Heads of trained networks are changed, more at every grade; the share of them that a measure "
    "finds (at most one "
    "other head looks more like it). At grade 0 nothing was done: what is found there is chance. "
    "Behind a name: the "
    "grade from which on the measure finds half, with its 95 % interval over several networks. "
    "Lower: more sensitive."
)
def sensitivity(grades: Sequence[Any], sensitivities: Sequence[Any]) -> Figure:
    """Shares of grafts found. grades, sensitivities: rows of headbench_grades.csv and headbench_sensitivity.csv."""
    kinds = list(dict.fromkeys(row.graft for row in sensitivities))
    with style.grid(
        len(kinds), (2.1, 1.5), (0.75, 2.05), (0.5, 1.75, 0.75, 0.3), per_row=ACROSS
    ) as (figure, places):
        for (axes, first, _), kind in zip(places, kinds, strict=True):
            of_kind = [row for row in sensitivities if row.graft == kind]
            of_kind.sort(key=lambda row: row.grade)
            for order, row in enumerate(of_kind):
                points = [
                    point for point in grades if (point.graft, point.measure) == (kind, row.measure)
                ]
                aside = 0.04 * (order - len(of_kind) / 2)
                shade, marker = style.colour(order)
                axes.plot(
                    [point.grade + aside for point in points],
                    [100 * point.found for point in points],
                    color=shade,
                    marker=marker,
                    markersize=3.5,
                    linewidth=1,
                    label=f"{row.measure} {_half_found(row)}",
                )
            amounts = {point.grade: point.amount for point in grades if point.graft == kind}
            names = [
                f"{grade}\n{amounts[grade]:g}" if grade else "0\nnone" for grade in sorted(amounts)
            ]
            style.level(axes, 50, dashes=":", zorder=0)
            axes.set_xticks(sorted(amounts), names)
            axes.set(
                ylim=(-4, 104),
                xlabel="grade, and the amount",
                ylabel="found (% of grafts)" if first else "",
            )
            axes.set_title(kind.replace("_", " "), loc="left")
            axes.legend(
                loc="upper left", bbox_to_anchor=(-0.06, -0.36), fontsize=6.5, borderaxespad=0
            )
    return figure


def _half_found(row: Any) -> str:
    """Write the grade from which on a measure finds half of the grafts, with its interval if it has one."""
    if row.grade == math.inf:
        return "never"
    if math.isnan(row.low):
        return f"{row.grade:.1f}"
    high = "never" if row.high == math.inf else f"{row.high:.1f}"
    return f"{row.grade:.1f} ({row.low:.1f} to {high})"
