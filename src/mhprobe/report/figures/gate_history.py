"""Gates while they were learned: heads by steps, layer by layer, and the number of open heads."""

import itertools
from collections.abc import Sequence

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import Figure, canvas, colour, colour_bar, place

CAPTION = (
    "How open every gate was while it was learned, input at the top; below, how many are open. Read the end for "
    "the decision, and the way there for how sure it was. A gate that nothing moves stays at its start."
)


def draw(layout: HeadLayout, steps: Sequence[int], amounts: Tensor, threshold: float) -> Figure:
    """A row per head, layers from input (top) to output; below, how many are open.

    steps: K optimizer steps. amounts: (K, A) P(open), or |gate|. threshold: above it a head counts as open.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    heads = layout.num_heads
    row = max(0.035, min(0.11, 4.5 / heads))  # inches
    left, wide, gap, low, between, bottom, top = 0.75, 4.2, 0.05, 1.4, 0.2, 0.45, 0.15
    tall = max(row * heads + gap * (len(layout.sites) - 1), 1.4)  # the colour bar's label needs so much
    edges = _edges(steps)
    with canvas((left + wide + 0.95, bottom + low + between + tall + top)) as figure:
        norm = Normalize(0, max(1.0, float(amounts.max())))
        y = bottom + low + between + tall
        for number, site in enumerate(layout.sites):
            y -= row * site.num_heads
            axes = place(figure, left, y, wide, row * site.num_heads)
            image = axes.pcolormesh(
                edges, list(range(site.num_heads + 1)), amounts[:, layout.span(number)].T.numpy(),
                cmap=colormaps["viridis"], norm=norm, rasterized=True,
            )  # fmt: skip
            axes.invert_yaxis()
            axes.set_xticks([])
            axes.set_yticks([site.num_heads / 2], [f"block {site.block}" if row * site.num_heads > 0.1 else ""])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            y -= gap
        bar_tall = min(tall, 2.0)
        top_at = bottom + low + between + tall
        colour_bar(figure, image, left + wide + 0.12, top_at - bar_tall, bar_tall, "gate: P(open) or |gate|")

        axes = place(figure, left, bottom, wide, low)
        shade, _ = colour(0)
        axes.plot(steps, amounts.sum(1).tolist(), color=shade, label="sum over heads")
        other, _ = colour(1)
        axes.plot(steps, (amounts > threshold).sum(1).tolist(), color=other, ls="--", label=f"above {threshold:g}")
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.04 * heads))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set(xlabel="optimizer step", ylabel=f"open heads (of {heads})")
        axes.legend(loc="lower left")
    return figure


def _edges(steps: Sequence[int]) -> list[float]:
    """Cell borders around K steps, halfway between them."""
    if len(steps) == 1:
        return [steps[0] - 0.5, steps[0] + 0.5]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(steps)]
    return [2 * steps[0] - middles[0], *middles, 2 * steps[-1] - middles[-1]]
