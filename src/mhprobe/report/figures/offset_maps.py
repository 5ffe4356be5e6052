"""Offsets of heads from the query: a small map of argmax offsets per head, positional heads framed."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    COLOURS,
    NAMELESS,
    Axes,
    Figure,
    Names,
    canvas,
    colour_bar,
    even_groups,
    place,
    ticks,
)

CAPTION = (
    "Where each head looks, relative to the query in the middle. A bright dot off the centre is a positional head "
    "(framed). Shares are of the queries that have a key at the offset; even attention gives each a few per cent."
)


def draw(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    words: tuple[str, str] = (
        "head (framed: positional)",
        "share of the queries with a key there\nwhose largest weight is on it",
    ),
) -> Figure:
    """Rows are layers, columns heads; the colour is the share of queries that could, with their argmax at the offset.

    The centre of a map is the query itself, up is up. Offsets that no query reaches are white.
    words: below the maps, and at the colour bar.
    """
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    exists = columns["exists"].double()
    # of an offset reached by few queries, a share is noise: count it against a tenth of the most at least
    floor = 0.1 * exists.amax((1, 2), keepdim=True)
    share = columns["counts"].double() / exists.maximum(floor)
    share = share.masked_fill(exists == 0, torch.nan)
    groups = even_groups(layout)
    side = min(0.55, 6.6 / max(site.num_heads for site in layout.sites))  # inches per map
    left, bottom, top, gap = 0.6, 0.5, 0.3, 0.4
    wide = max(1.2, side * max(site.num_heads for site in layout.sites))
    tall = side * len(layout.sites) + gap * (len(groups) - 1)
    bar_tall = min(max(tall, 2.0), 3.0)
    with canvas((left + wide + 1.1, bottom + max(tall, bar_tall) + top)) as figure:
        cmap = colormaps["viridis"].with_extremes(bad="white")
        # even attention gives each offset a few per cent only: a square root keeps such patterns visible
        norm = PowerNorm(0.5, 0, max(share.nan_to_num().max().item(), 1e-3))
        y = bottom + max(tall, bar_tall)
        for sites in groups:
            heads = layout.sites[sites[0]].num_heads
            steps = _reach(exists[layout.span(sites[0])])
            mosaic, size = _mosaic([share[layout.span(s)] for s in sites], steps)
            y -= side * len(sites)
            axes = place(figure, left, y, side * heads, side * len(sites))
            image = axes.imshow(mosaic.numpy(), cmap=cmap, norm=norm, interpolation="none", aspect="auto")
            _frame(axes, [columns["positional"][layout.span(s)] for s in sites], size)
            axes.set_xticks([(h + 0.5) * size[1] - 1 for h in ticks(heads, side)], [str(h) for h in ticks(heads, side)])
            axes.set_yticks(
                [(r + 0.5) * size[0] - 1 for r in range(len(sites))], [str(layout.sites[s].block) for s in sites]
            )
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_ylabel("block")
            if len(groups) > 1:
                axes.set_title(f"stage {layout.sites[sites[0]].stage}", loc="left", pad=3)
            y -= gap
        axes.set_xlabel(words[0])
        colour_bar(figure, image, left + wide + 0.15, bottom + max(tall, bar_tall) - bar_tall, bar_tall, words[1])
    return figure


def _frame(axes: Axes, positional: list[Tensor], size: tuple[int, int]) -> None:
    """Around the maps of positional heads; positional: of each site (H,)."""
    from matplotlib.patches import Rectangle

    for row, on_H in enumerate(positional):
        for head in on_H.nonzero().flatten().tolist():
            corner = (head * size[1] - 0.5, row * size[0] - 0.5)
            axes.add_patch(Rectangle(corner, size[1] - 1, size[0] - 1, fill=False, edgecolor=COLOURS[1], linewidth=1.2))


def _reach(exists: Tensor) -> tuple[int, int]:
    """Farthest offset, down and across, that any query of (H, Y, X) reaches."""
    rows, columns = (exists.sum((0, axis)).nonzero()[:, 0] for axis in (2, 1))
    return int(rows.max()) - exists.shape[1] // 2, int(columns.max()) - exists.shape[2] // 2


def _mosaic(maps: list[Tensor], steps: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Maps (H, Y, X) of several sites cut to ``steps`` around 0, side by side with white gaps; size of one with gap."""
    middle = (maps[0].shape[1] // 2, maps[0].shape[2] // 2)
    cut = torch.stack(
        [
            m[:, middle[0] - steps[0] : middle[0] + steps[0] + 1, middle[1] - steps[1] : middle[1] + steps[1] + 1]
            for m in maps
        ]
    )
    padded = torch.nn.functional.pad(cut, (0, 1, 0, 1), value=torch.nan)
    rows, heads, height, width = padded.shape
    return padded.permute(0, 2, 1, 3).reshape(rows * height, heads * width), (height, width)
