"""Accuracy against the number of heads kept: the runs of a sweep over learned gates."""

from collections.abc import Sequence

import torch

from mhprobe.report.figures.style import Figure, canvas, colour, place
from mhprobe.stats.significance import wilson

CAPTION = (
    "Accuracy against the number of heads kept, a point per run of the sweep. Bands are 95 % intervals over "
    "images, the dashed line is the whole model, the dotted line guessing. Picking the best point of many "
    "flatters."
)


def draw(
    points: Sequence[Sequence[float]],
    images: int,
    heads: int,
    before: float | None = None,
    chance: float | None = None,
) -> Figure:
    """Return the figure.

    points: (heads kept, test accuracy with the gates as learned, with gates of 0 and 1), by heads kept.
    images: of the test, for 95 % intervals. Dashed: the accuracy ``before`` pruning. Dotted: chance, where a run
    comes near it.
    """
    from matplotlib.ticker import MaxNLocator

    kept = [point[0] for point in points]
    with canvas((5.6, 3.2)) as figure:
        axes = place(figure, 0.55, 0.5, 3.4, 2.5)
        least = 100.0
        for number, name in enumerate(("gates as learned", "gates of 0 and 1"), 1):
            shade, marker = colour(number - 1)
            accuracy = [point[number] for point in points]
            low, high = wilson(torch.tensor([round(a * images) for a in accuracy]), torch.tensor(images))
            least = min(least, 100 * float(low.min()))
            axes.plot(kept, [100 * a for a in accuracy], color=shade, marker=marker, markersize=4, label=name)
            axes.fill_between(kept, (100 * low).tolist(), (100 * high).tolist(), color=shade, alpha=0.15, lw=0)
        axes.fill_between([], [], [], color="0.3", alpha=0.15, lw=0, label="95 % over images")
        if before is not None:
            axes.axhline(100 * before, color="0.3", ls="--", lw=0.8, zorder=1, label="whole model before")
        near = chance is not None and least < 100 * chance + 30  # else the axis would be empty down to it
        if chance is not None and near:
            axes.axhline(100 * chance, color="0.3", ls=":", lw=0.8, zorder=1, label="chance")
        axes.set_xlim(-0.02 * heads, 1.02 * heads)
        axes.set_ylim(*((-2, 102) if near else (least - 3, 100.5)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=f"heads kept (of {heads})", ylabel="test accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
