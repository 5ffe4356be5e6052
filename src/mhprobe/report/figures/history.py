"""Every head's value during training: a line per head, coloured by its block."""

from collections.abc import Sequence

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import Figure, canvas, colour_bar, place

CAPTION = (
    "Every head's value during training, coloured by block; thick lines are block means. The first point is "
    "before training: what has not moved from there was not learned."
)


def draw(layout: HeadLayout, steps: Sequence[int], values: Tensor, label: str) -> Figure:
    """Return the figure.

    steps: P optimizer steps. values: (P, A). The thick line is the mean over each block's heads.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    blocks = [site.block for site in layout.sites]
    cmap, norm = colormaps["viridis"], Normalize(min(blocks), max(max(blocks), min(blocks) + 1))
    with canvas((5.2, 3.0)) as figure:
        axes = place(figure, 0.65, 0.5, 3.6, 2.35)
        for site, block in enumerate(blocks):
            own = values[:, layout.span(site)].double()
            shade = cmap(norm(block))
            axes.plot(steps, own.numpy(), color=shade, linewidth=0.5, alpha=0.5, marker="." if len(steps) == 1 else "")
            mean = own.nanmean(1)
            if bool(mean.isfinite().any()):
                axes.plot(steps, mean.numpy(), color=shade, linewidth=1.8)
        if bool((values < 0).any()) and bool((values > 0).any()):
            axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("optimizer step (thick: mean of the block)")
        axes.set_ylabel(label, fontsize=8 if len(label) < 45 else 6.5)
        bar = colour_bar(figure, ScalarMappable(norm, cmap), 4.4, 0.5, 2.35, "block")
        bar.locator = MaxNLocator(integer=True, nbins=6)
        bar.update_ticks()
    return figure
