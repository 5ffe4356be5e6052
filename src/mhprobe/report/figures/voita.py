"""Pruned from a trained model, or the same heads from scratch: accuracy at each number of heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mhprobe.report.figures.style import Figure, canvas, colour, place
from mhprobe.stats.significance import wilson

CAPTION = (
    "Accuracy of heads pruned from a trained model, against the same number of heads trained from scratch, with "
    "95 % intervals. A star: the two differ on the same images (McNemar, p < .05 after Holm). Without one, training "
    "the larger model first has not been shown to help. The dotted line is guessing."
)


def draw(points: Sequence[tuple[int, float, float]], images: int, chance: float, sure: Sequence[bool] = ()) -> Figure:
    """points: (heads, accuracy pruned, accuracy from scratch), the whole model first, where the two are one.

    images: of the test, for 95 % intervals. sure: at which points the two differ significantly; a star marks them.
    """

    with canvas((5.5, 2.9)) as figure:
        axes = place(figure, 0.55, 0.5, 2.7, 2.25)
        at = list(range(len(points)))
        for number, name in enumerate(("pruned from trained", "same heads from scratch"), 1):
            shade, marker = colour(number - 1)
            accuracy = torch.tensor([point[number] for point in points], dtype=torch.float64)
            low, high = wilson((accuracy * images).round(), torch.tensor(images))
            bars = torch.stack([accuracy - low, high - accuracy]).clamp(min=0) * 100
            places = [x + 0.16 * (number - 1.5) for x in at]
            axes.errorbar(places, (100 * accuracy).tolist(), bars.numpy(), color=shade, marker=marker, ms=4, ls="none",
                          elinewidth=1, capsize=2, label=name)  # fmt: skip
        least = 100 * min(min(point[1:]) for point in points)
        if least < 100 * chance + 30:
            axes.axhline(100 * chance, color="0.3", ls=":", lw=0.8, label="chance")
        axes.set_xticks(at, [f"{point[0]}" + (" (all)" if i == 0 else "") for i, point in enumerate(points)])
        axes.set_xlim(-0.5, len(points) - 0.5)
        for x in (x for x, on in enumerate(sure) if on):
            axes.annotate("*", (x, 100 * max(points[x][1:])), xytext=(0, 8), textcoords="offset points", ha="center")
        axes.set_xlabel("heads")
        axes.set_ylabel("test accuracy (%), 95 % interval")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
