"""Accuracy of every layer with one head left in it: all heads, the one that was chosen, the one the test would pick."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Figure, Names, canvas, place

DRAWS_CONTROL = True  # as nothing: an untrained network is at chance whichever heads it has; the table has it
CAPTION = (
    "Accuracy of the whole model when a block keeps one head. The filled point was chosen on validation images; "
    "the open one is the best on test, which flatters. The dashed line is the whole model: a block on it has one "
    "head that suffices."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Per site the accuracy (%) with each single head, the chosen one with its 95 % interval, and the whole model's."""
    value, low, high = (100 * columns[name].double() for name in ("accuracy", "accuracy_low", "accuracy_high"))
    sites = range(len(layout.sites))
    step = min(0.42, 7.0 / len(layout.sites))
    wide = max(2.2, step * len(layout.sites))
    with canvas((0.6 + wide + 1.6, 3.2)) as figure:
        axes = place(figure, 0.6, 0.5, wide, 2.55)
        where = [number for number, _, _ in layout]
        axes.plot(where, value.tolist(), ".", color="0.7", markersize=4, clip_on=False, label="each head alone")
        best = columns["test_best"].nonzero().flatten()
        axes.plot(
            [where[head] for head in best], value[best].tolist(), "o", markersize=7, markerfacecolor="none",
            markeredgecolor="#D55E00", clip_on=False, label="best on test"
        )  # fmt: skip
        chosen = columns["chosen"].nonzero().flatten()
        if len(chosen):
            below, above = (value - low)[chosen].tolist(), (high - value)[chosen].tolist()
            axes.errorbar(
                [where[head] for head in chosen], value[chosen].tolist(), [below, above], fmt="o", color="#0072B2",
                markersize=4, linewidth=1, label="chosen on\nvalidation (95 %)"
            )  # fmt: skip
        axes.axhline(100 * columns["whole"].item(), color="0.3", linestyle="--", linewidth=0.8, label="all heads")
        axes.set_xlim(-0.6, len(layout.sites) - 0.4)
        stride = max(1, round(0.2 / step))
        axes.set_xticks(list(sites)[::stride], [str(layout.sites[site].block) for site in sites][::stride])
        axes.set(xlabel="block that keeps one head", ylabel="accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
