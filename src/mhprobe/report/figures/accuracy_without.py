"""Accuracy without each head as a number in a grid of layers by heads, framed where the change is significant."""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    NAMELESS,
    Axes,
    Figure,
    Names,
    canvas,
    colour_bar,
    even_groups,
    head_matrix,
    inches,
    matrix_height,
    readable,
    scale,
)

CAPTION = (
    "Accuracy in per cent when the head is switched off; red where it falls. A frame: the change is significant. "
    "Without a frame a head cannot be told from one that does nothing."
)


def draw(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    p: Literal["p", "p_holm"] = "p_holm",
    level: float = 0.01,
) -> Figure:
    """From "accuracy" () of the whole model and "drop" (A,). p: the column that is tested against ``level``."""
    drop = 100 * columns["drop"].double()
    whole = 100 * columns["accuracy"].double().flatten()[0]
    heads = max(site.num_heads for site in layout.sites)
    cell = max(0.22, min(0.42, 8.0 / heads))
    left, bottom, wide, tall = 0.6, 0.5, cell * heads, matrix_height(layout, cell)
    bar_tall = min(max(tall, 1.6), 3.0)
    high = bottom + max(tall, bar_tall) + 0.45
    with canvas((max(left + wide + 1.1, 4.2), high)) as figure:
        cmap, norm = scale(drop)
        image = head_matrix(figure, layout, drop, left, high - 0.45, cell, cmap=cmap, norm=norm)
        for axes, sites in zip(list(figure.axes), even_groups(layout), strict=True):
            for row, site in enumerate(sites):
                span = layout.span(site)
                _cells(axes, row, drop[span], whole, columns[p][span] < level, cell)
            readable(axes)
        title = f"all heads: {whole:.1f} %. framed: {'p, Holm,' if p == 'p_holm' else 'p'} < {level:g}"
        figure.text(left / inches(figure)[0], 1 - 0.12 / high, title, va="top", fontsize=8)
        colour_bar(figure, image, left + wide + 0.15, high - 0.45 - bar_tall, bar_tall, "accuracy lost (points)")
    return figure


def _cells(axes: Axes, row: int, drop_H: Tensor, whole: Tensor, sure_H: Tensor, cell: float) -> None:
    """A number per head, and a frame where it is sure."""
    from matplotlib.patches import Rectangle

    for head, (lost, sure) in enumerate(zip(drop_H.tolist(), sure_H.tolist(), strict=True)):
        size = min(6.5, 15 * cell)
        axes.text(head, row, f"{whole.item() - lost:.1f}", ha="center", va="center", fontsize=size)
        if sure:
            axes.add_patch(Rectangle((head - 0.46, row - 0.46), 0.92, 0.92, fill=False, linewidth=1.1))
