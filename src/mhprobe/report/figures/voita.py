"""Pruned from a trained model, or the same heads from scratch: accuracy at each number of heads."""

from collections.abc import Sequence

import torch

from mhprobe.report.figures.style import Axes, Figure, canvas, colour, place
from mhprobe.stats.significance import wilson

CAPTION = (
    "Accuracy of heads pruned from a trained model, against the same number of heads trained from scratch, with "
    "95 % intervals; grey is the whole model, before pruning. A star: the two differ on the same images (McNemar, "
    "p < .05 after Holm). Without one, training the larger model first has not been shown to help. Dotted: guessing."
)


def draw(points: Sequence[tuple[int, float, float]], images: int, chance: float, sure: Sequence[bool] = ()) -> Figure:
    """Return the figure.

    points: (heads, accuracy pruned, accuracy from scratch), the whole model first, where the two are one.
    images: of the test, for 95 % intervals. sure: at which points the two differ significantly; a star marks them.
    """
    with canvas((5.5, 2.9)) as figure:
        axes = place(figure, 0.55, 0.5, 2.7, 2.25)
        at = list(range(len(points)))
        _bars(axes, at[:1], [points[0][1]], images, ("0.4", "D"), "whole model")
        for number, name in enumerate(("pruned from trained", "same heads from scratch"), 1):
            places = [x + 0.16 * (number - 1.5) for x in at[1:]]
            _bars(axes, places, [point[number] for point in points[1:]], images, colour(number - 1), name)
        least = 100 * min(min(point[1:]) for point in points)
        if least < 100 * chance + 30:
            axes.axhline(100 * chance, color="0.3", ls=":", lw=0.8, label="chance")
        axes.set_xticks(at, [f"{point[0]}" + (" (all)" if i == 0 else "") for i, point in enumerate(points)])
        axes.set_xlim(-0.5, len(points) - 0.5)
        for x in (x for x, on in enumerate(sure) if on):
            axes.annotate("*", (x, 100 * max(points[x][1:])), xytext=(0, 8), textcoords="offset points", ha="center")
        if any(sure):
            axes.plot(
                [], [], marker="$*$", ls="none", color="black", ms=4, label="the two differ, p < .05\n(McNemar, Holm)"
            )
        axes.set(xlabel="heads", ylabel="test accuracy (%), 95 % interval")
        handles = sorted(
            axes.get_legend_handles_labels()[0], key=lambda each: str(each.get_label()).startswith("the two")
        )
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure


def _bars(
    axes: Axes, at: Sequence[float], shares: Sequence[float], images: int, look: tuple[str, str], name: str
) -> None:
    """Accuracies with their intervals over images."""
    accuracy = torch.tensor(shares, dtype=torch.float64)
    low, high = wilson((accuracy * images).round(), torch.tensor(images))
    bars = torch.stack([accuracy - low, high - accuracy]).clamp(min=0) * 100
    axes.errorbar(at, (100 * accuracy).tolist(), bars.numpy(), color=look[0], marker=look[1], ms=4, ls="none",
                  elinewidth=1, capsize=2, label=name)  # fmt: skip
