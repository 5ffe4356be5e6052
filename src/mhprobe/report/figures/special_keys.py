"""The no-op test: how much heads look at special keys, against how much that matters. A dot per head."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Figure, Names, canvas, colour_bar, place

CAPTION = (
    "Heads that look much at special keys (right) although it matters little (low) do nothing with them. The "
    "dashed lines are even attention and equal slopes: what chance would give."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """The ratio of slopes over the share of attention, coloured by block. Heads that have no special keys are left out.

    A no-op head looks at special keys although it does not matter: to the right of even attention, and below 1.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    depth = [site.block for _, _, site in layout]
    attention, ratio = columns["attention"].double(), columns["value"].double()
    with canvas((4.6, 3.0)) as figure:
        axes = place(figure, 0.65, 0.5, 2.9, 2.3)
        cmap, norm = colormaps["viridis"], Normalize(min(depth), max(depth) if max(depth) > min(depth) else 1)
        axes.scatter(attention.tolist(), ratio.tolist(), c=depth, cmap=cmap, norm=norm, s=14, linewidths=0)
        axes.axhline(1, color="0.5", linewidth=0.8, linestyle="--", zorder=0)
        even = columns["uniform_attention"].double().mean().item()
        axes.axvline(even, color=COLOURS[1], linewidth=0.9, linestyle="--", zorder=0)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=5)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="share of attention on special keys (dashed: even attention)", ylabel=label)
        bar = colour_bar(figure, ScalarMappable(norm, cmap), 3.75, 0.5, 2.3, "block")
        bar.locator = MaxNLocator(integer=True)
    return figure
