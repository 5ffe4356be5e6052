"""Histogram over heads of the accuracy lost when one head is switched off."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Figure, Names, canvas, place

DRAWS_CONTROL = True  # as nothing: what is at chance loses nothing without a head; the table has it
CAPTION = (
    "How many heads change accuracy by how much when they alone are switched off. Left of 0 the model is better "
    "without the head. Dark: significant (McNemar, Holm over all heads, 5 %)."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Heads over "drop" in points of accuracy, in bins of equal width around 0; those with "p_holm" < 0.05 dark."""
    from matplotlib.ticker import MaxNLocator

    drop = 100 * columns["drop"].double()
    sure = columns["p_holm"] < 0.05
    width = max(float(drop.max() - drop.min()) / 20, 0.1)  # heads that change nothing are a bar, too
    first, last = int(float(drop.min()) // width), int(float(drop.max()) // width) + 1
    edges = [number * width for number in range(first, last + 1)]
    with canvas((4.2, 2.75)) as figure:
        axes = place(figure, 0.55, 0.5, 3.4, 1.95)
        axes.hist(
            [drop[sure].tolist(), drop[~sure].tolist()],
            bins=edges,
            stacked=True,
            color=[COLOURS[0], "#A6CEE3"],
            label=["significant", "not told from no change"],
        )
        axes.axvline(0, color="0.3", linewidth=0.8, linestyle="--")
        axes.set(xlabel="accuracy lost without the head (points)", ylabel=f"heads (of {layout.num_heads})")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.1)
    return figure
