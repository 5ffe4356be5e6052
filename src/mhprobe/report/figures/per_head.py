"""A value of every head: a matrix of layers by heads, or one per stage where widths differ: no empty cells."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    NAMELESS,
    Axes,
    Figure,
    Names,
    canvas,
    colour_bar,
    head_matrix,
    matrix_height,
    place,
    scale,
    wrapped,
)

# columns that say what a head without skill would score, and their colours
REFERENCES = {"chance": "0.35", "null": "0.35", "uniform": "0.35", "random_init": "#D55E00"}

NAMED = 3  # heads at either end, as block.head

DRAWS_CONTROL = True  # from the column "random_init"
CAPTION = (
    "A square per head, blocks from input to output. Beside, where there is an interval or a reference, the heads "
    "in order, the first and the last by name (block.head): a bar is the 95 % interval, the line what chance or a "
    "freshly initialised network gives. Heads whose intervals overlap are not told apart."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """A row per layer and a column per head; and all heads in order where they have an interval or a reference.

    Columns "low" and "high" are the interval. A reference is a column called as in ``REFERENCES``: what a head without
    any skill would score, drawn as a small mark at each head.
    """
    from matplotlib.colors import Normalize

    value = columns["value"].double()
    cell = min(0.3, 5.0 / max(site.num_heads for site in layout.sites))  # inches
    left, bottom, top = 0.6, 0.62, 0.3
    grid_tall = matrix_height(layout, cell)
    tall = max(grid_tall, 1.5)
    wide = cell * max(site.num_heads for site in layout.sites)
    bar_at, bar_tall = left + wide + 0.15, min(tall, 3.6)
    bar_wide = 1.0  # with its numbers and its label
    drawn = [name for name in REFERENCES if name in columns]
    ranked = bool(drawn) or ("low" in columns and "high" in columns)
    label = wrapped(label, bar_tall)
    bar_wide += 0.15 * label.count("\n")
    ranked_at, ranked_wide = bar_at + bar_wide + 0.65, 2.9
    size = (ranked_at + ranked_wide + 0.15 if ranked else bar_at + bar_wide, bottom + tall + top)

    with canvas(size) as figure:
        cmap, norm = scale(value, log=True)
        if yes_or_no := set(value[value.isfinite()].tolist()) <= {0.0, 1.0}:  # nothing lies between
            cmap, norm = cmap.resampled(2), Normalize(-0.5, 1.5)
        top_at = bottom + (tall + grid_tall) / 2
        image = head_matrix(figure, layout, value, left, top_at, cell, cmap=cmap, norm=norm)
        bar = colour_bar(figure, image, bar_at, bottom, bar_tall, label)
        if yes_or_no:
            bar.set_ticks([0, 1])
        if ranked:
            _ranked(place(figure, ranked_at, bottom, ranked_wide, bar_tall), layout, columns, label)
    return figure


def _ranked(axes: Axes, layout: HeadLayout, columns: Mapping[str, Tensor], label: str) -> None:
    """All heads from the largest value down, with their intervals and references."""
    value = columns["value"].double()
    order = value.nan_to_num(-torch.inf).argsort(descending=True, stable=True)
    rank = list(range(1, len(value) + 1))
    stroke = min(2.0, 120 / len(rank))
    text = "heads, ranked"
    if "low" in columns and "high" in columns:
        low, high = columns["low"].double()[order], columns["high"].double()[order]
        axes.vlines(rank, low.tolist(), high.tolist(), color="#56B4E9", linewidth=stroke)
        text = "heads, ranked (bars: 95 % interval)"
    axes.plot(rank, value[order].tolist(), ".", color="#0072B2", markersize=3)
    for name in REFERENCES:
        if name in columns:
            level = columns[name].double().expand(len(value))[order].tolist()
            axes.plot(rank, level, "_", color=REFERENCES[name], markersize=4, label=name.replace("_", " "))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    if not {"chance", "null", "uniform"} & set(columns):  # those are what it is read against, and 0 may be far away
        axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    axes.set_xlim(0, len(rank) + 1)
    names = [f"{site.block}.{head}" for _, head, site in layout]
    known = [names[flat] for flat in order.tolist() if value[flat].isfinite()]
    some = min(NAMED, len(known) // 2)
    if some:
        text += f"\nhighest {', '.join(known[:some])}; lowest {', '.join(known[::-1][:some])}"
    axes.set(xlabel=text, ylabel=label)
