"""Heads as points whose distances are those of their attention: coloured by what they do, clusters by shape."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mhprobe.report.figures.style import MARKERS, Figure, canvas, panel_grid, place
from mhprobe.report.figures.survival import LABEL_SHADES

CAPTION = (
    "Heads as points: near points attend alike (Jensen-Shannon divergence). Colour: what the head does, by stated "
    "thresholds; shape: its cluster. The title has the silhouette of the clusters (1: far apart, 0: touching) with the "
    "share of unclustered draws that reach it: above 0.05 the clusters may be a cut through one cloud."
)


class Group(NamedTuple):
    """N heads that were compared. points (N, 2); labels: what each does; cluster (N,)."""

    title: str
    points: Tensor
    labels: Sequence[str]
    cluster: Tensor


def draw(groups: Sequence[Group]) -> Figure:
    """A panel per group, each with its own scale."""
    side, gap, left, bottom = (3.2 if len(groups) == 1 else 1.9), 0.45, 0.5, 0.35
    deep, per_row = panel_grid(len(groups))
    wide, tall = per_row * side + (per_row - 1) * gap, deep * side + (deep - 1) * (gap + 0.35)
    with canvas((left + wide + 1.25, bottom + tall + 0.55)) as figure:
        for number, group in enumerate(groups):
            row, column = divmod(number, per_row)
            axes = place(
                figure, left + column * (side + gap), bottom + (deep - 1 - row) * (side + gap + 0.35), side, side
            )
            for (x, y), label, kind in zip(group.points.tolist(), group.labels, group.cluster.tolist(), strict=True):
                axes.plot(x, y, MARKERS[kind % len(MARKERS)], color=LABEL_SHADES[label], ms=5, mec="0.3", mew=0.4)
            reach = 1.15 * max(group.points.abs().max().item(), 1e-6)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
            axes.locator_params(nbins=4)
            axes.set_title(group.title, loc="left", pad=4, fontsize=7)
        there = [label for label in LABEL_SHADES if any(label in group.labels for group in groups)]
        for label in there:
            axes.plot([], [], "o", color=LABEL_SHADES[label], ms=5, mec="0.3", mew=0.4, label=label)
        for kind in range(1 + max(int(group.cluster.max()) for group in groups)):
            axes.plot([], [], MARKERS[kind % len(MARKERS)], color="white", ms=5, mec="0.3", label=f"cluster {kind + 1}")
        axes.legend(loc="center left", bbox_to_anchor=(1.04, 0.5), borderaxespad=0)
    return figure
