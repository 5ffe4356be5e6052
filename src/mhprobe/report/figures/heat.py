"""Concentration of the maps of rightly and of wrongly classified images."""

from collections.abc import Sequence

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place

CAPTION = (
    "The share of images below each heat, for rightly and wrongly classified ones. Lines on each other: how hot a map "
    "is says nothing about the answer. The rank test is in the title."
)


def draw(right: Sequence[float], wrong: Sequence[float], title: str, label: str) -> Figure:
    """Return the figure. right, wrong: the heat of each image. Two cumulative distributions."""
    with canvas((4.2, 2.95)) as figure:
        axes = place(figure, 0.55, 0.5, 3.45, 1.95)
        for number, (values, name) in enumerate(((right, "right"), (wrong, "wrong"))):
            if values:
                axes.ecdf(values, color=COLOURS[number], label=f"{name} ({len(values)})")
        axes.set(xlabel=label, ylabel="share of images below")
        axes.set_title(title, loc="left")
        axes.legend(loc="lower right")
    return figure
