"""A value of every pair of layers, as one matrix."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    NAMELESS,
    Figure,
    Names,
    canvas,
    cells,
    colour_bar,
    control_of,
    mark_chance,
    mark_control,
    place,
    scale,
    ticks,
    typical_width,
    wrapped,
)

DRAWS_CONTROL = True  # from the column "random_init"
CAPTION = (
    "How alike every two blocks are, input at the top left. Near the diagonal everything is alike: blocks add to "
    "one stream. Chance and a freshly initialised network are marked at the colour bar; beside its label stands how "
    "wide the 95 % interval of a pair is, at the median."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Layer x layer, input at the top left; grey: not compared, and a layer with itself.

    Lines part the stages. With "null", the chance level stands at the colour bar, or is written below it where layers
    are so alike that it would take up most of the scale. So does, with "random_init", the untrained control's mean.
    """
    value = columns["value"].double().clone()
    value.fill_diagonal_(torch.nan)
    compared = value.isfinite()
    null = columns.get("null")
    chance = null[compared].double() if null is not None else value.new_empty(0)
    layers = len(value)
    side = min(4.5, max(1.6, 0.3 * layers))
    control = control_of(columns)
    room = 0.3 if len(control) else 0.0  # above or below the bar
    left, bottom, top = 0.55, 0.5 + room, 0.15 + room
    bar_at = left + side + 0.85  # chance may be written beside the bar
    label = wrapped(f"{label}{typical_width(columns)}", side)
    with canvas((bar_at + 1.0 + 0.15 * label.count("\n"), bottom + side + top)) as figure:
        cmap, norm = scale(value)
        axes = place(figure, left, bottom, side, side)
        image = axes.imshow(value.numpy(), cmap=cmap, norm=norm)
        cells(axes, layers, layers)
        stages = [site.stage for site in layout.sites]
        for edge in (i for i in range(1, layers) if stages[i] != stages[i - 1]):
            axes.axhline(edge - 0.5, color="0.2", linewidth=0.8)
            axes.axvline(edge - 0.5, color="0.2", linewidth=0.8)
        shown = ticks(layers, side / layers)
        blocks_shown = [str(layout.sites[i].block) for i in shown]
        axes.set_xticks(shown, blocks_shown)
        axes.set_yticks(shown, blocks_shown)
        axes.set(xlabel="block", ylabel="block")
        bar = colour_bar(figure, image, bar_at, bottom, side, label)
        if len(chance):
            mark_chance(bar.ax, chance)
        mark_control(bar.ax, control, chance)
    return figure
