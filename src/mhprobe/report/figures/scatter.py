"""The same measures on two data sets: every head a point, one panel per measure."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import Figure, canvas, colour_bar, panel_grid, place
from mhprobe.stats.agreement import Pearson

CAPTION = (
    "Each head on two data sets, a panel per measure. On the grey line both agree. r near 0 would be chance: the "
    "measure told about the images, not about the head."
)


def draw(layout: HeadLayout, panels: Sequence[tuple[str, Tensor, Tensor, Pearson]], first: str, second: str) -> Figure:
    """Return the figure.

    panels: name, (A,) value on the first and on the second data set, and their correlation. Colour: the block.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    deep, per_row = panel_grid(len(panels))
    side, space = 1.45, 0.66
    left, bottom, top = 0.62, 0.5, 0.5
    apart = 0.8  # down the page: two lines of title
    wide, tall = per_row * side + (per_row - 1) * space, deep * side + (deep - 1) * apart
    block = torch.tensor([site.block for _, _, site in layout])
    with canvas((left + wide + 0.8, bottom + tall + top)) as figure:
        for number, (name, x, y, r) in enumerate(panels):
            row, column = divmod(number, per_row)
            axes = place(
                figure, left + column * (side + space), bottom + tall - side - row * (side + apart), side, side
            )
            known = x.isfinite() & y.isfinite()
            x, y = x[known].double(), y[known].double()
            if len(x):
                ends = [float(torch.cat([x, y]).min()), float(torch.cat([x, y]).max())]
                axes.plot(ends, ends, color="0.6", linewidth=0.6, zorder=0)  # equal on both
            points = axes.scatter(
                x, y, c=block[known], cmap=colormaps["viridis"], vmin=int(block.min()),
                vmax=max(int(block.max()), int(block.min()) + 1), s=7, linewidths=0
            )  # fmt: skip
            spread = "" if math.isnan(r.low) else f" [{r.low:.2f}, {r.high:.2f}]"
            axes.set_title(f"{name}\nr = {r.r:.2f}{spread}", fontsize=7, loc="left", pad=3)
            axes.locator_params(nbins=4)
            axes.ticklabel_format(scilimits=(-2, 3), useMathText=True)
            axes.xaxis.get_offset_text().set_fontsize(6)
            axes.yaxis.get_offset_text().set_fontsize(6)
            if number + per_row >= len(panels):
                axes.set_xlabel(f"on {first}")
            if column == 0:
                axes.set_ylabel(f"on {second}")
        bar = colour_bar(figure, points, left + wide + 0.15, bottom, min(tall, 3.0), "block")
        bar.locator = MaxNLocator(integer=True, nbins=6)
        bar.update_ticks()
    return figure
