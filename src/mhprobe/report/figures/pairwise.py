"""A value of every pair of heads: a matrix per layer, or one over all heads."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.io.written import rounded
from mhprobe.report.figures import few_heads
from mhprobe.report.figures.style import (
    NAMELESS,
    Axes,
    Figure,
    Names,
    canvas,
    cells,
    colour_bar,
    control_of,
    mark_chance,
    mark_control,
    panel_grid,
    place,
    scale,
    site_title,
    ticks,
    typical_width,
    wrapped,
)

Limits = Literal["shared", "each"] | Sequence[float]

DRAWS_CONTROL = True  # from the column "random_init"
CAPTION = (
    "How alike every two heads are. Chance for as many images is marked on the colour bar, and so is a freshly "
    "initialised network where it was probed: likeness that is no larger was not learned. Beside the label, how wide "
    "the 95 % interval of a pair is, at the median; the table has that of each."
)


def draw(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    limits: Limits = "shared",
) -> Figure:
    """One head x head matrix per layer, or one over all heads where layers were compared too.

    limits: of the colours: "shared" by all matrices, "each" its own (its title says them), or (lowest, highest).
    A head and itself are grey: their 1 would flatten everything else. With "null", the chance level is drawn on the
    colour bar, as a band where it differs from pair to pair, or from "null_low" to "null_high"; with "random_init", the
    mean of the untrained control.
    """
    value = columns["value"].double().clone()
    value.fill_diagonal_(torch.nan)
    if 0 < value.isfinite().any(1).sum() <= len(value) // 2:  # most of a matrix over all heads would be grey
        return few_heads.draw(layout, columns, label, names)
    panels, titles = _panels(layout, value)
    across = panels[0] is value
    side = 5.0 if across else 1.35
    deep, per_row = panel_grid(len(panels))
    left, bottom, top, space = 0.55, 0.5, 0.35, 0.42
    if limits == "each":  # titles of two lines
        top, space = top + 0.12, space + 0.12
    wide, tall = per_row * side + (per_row - 1) * space, deep * side + (deep - 1) * space
    nulls = [columns[name] for name in ("null_low", "null", "null_high") if name in columns]
    chance = torch.cat([null[value.isfinite()].double() for null in nulls]) if nulls else value.new_empty(0)
    control = control_of(columns)
    own = limits == "each" and not across  # a matrix alone has its own limits anyway
    bar_at = left + wide + (0.95 if len(chance) or len(control) else 0.2)  # they are written beside the bar
    bar_tall = min(tall, 3.0)

    label = wrapped(f"{label}{typical_width(columns)}", bar_tall)
    with canvas((bar_at + 1.0 + 0.15 * label.count("\n"), bottom + tall + top)) as figure:
        cmap, norm = _colours(limits, torch.cat([value.flatten(), chance]))
        for number, (panel, title) in enumerate(zip(panels, titles, strict=True)):
            row, column = divmod(number, per_row)
            y = bottom + tall - side - row * (side + space)
            axes = place(figure, left + column * (side + space), y, side, side)
            image = axes.imshow(panel.numpy(), cmap=cmap, norm=scale(panel)[1] if own else norm)
            axes.set_title(_with_limits(title, panel) if own else title, pad=3)
            _mark_blocks(axes, layout) if across else _mark_heads(axes, len(panel), side)
            noun, below, beside = "block" if across else "head", number + per_row >= len(panels), column == 0
            axes.set(xlabel=noun if below else "", ylabel=noun if beside else "")
            if len({len(panel) for panel in panels}) == 1:  # all have the same heads
                axes.tick_params(labelbottom=below, labelleft=beside)
        bar = colour_bar(figure, image, bar_at, bottom + (tall - bar_tall) / 2, bar_tall, label)
        if own:  # every matrix's limits stand above it
            bar.set_ticks(list(bar.ax.get_ylim()), labels=["lowest", "highest"])
        else:
            _mark_bar(bar.ax, chance, control)
    return figure


def _panels(layout: HeadLayout, value: Tensor) -> tuple[list[Tensor], list[str]]:
    """The matrices and their titles: ``value`` itself where layers were compared too."""
    blocks = [value[layout.span(i), layout.span(i)] for i in range(len(layout.sites))]
    if value.isfinite().sum() > sum(block.isfinite().sum() for block in blocks):
        return [value], [""]
    return blocks, [site_title(layout, i) for i in range(len(layout.sites))]


def _mark_bar(axes: Axes, chance: Tensor, control: Tensor) -> None:
    if len(chance):
        mark_chance(axes, chance)
    mark_control(axes, control, chance)


def _mark_heads(axes: Axes, heads: int, side: float) -> None:
    axes.set(xticks=ticks(heads, side / heads), yticks=ticks(heads, side / heads))
    if heads <= 16:  # more would leave little but lines
        cells(axes, heads, heads)


def _colours(limits: Limits, values: Tensor) -> tuple[Any, Any]:
    """Colour map and scale; with fixed limits those."""
    cmap, norm = scale(values)
    if not isinstance(limits, str):
        norm.vmin, norm.vmax = limits
    return cmap, norm


def _with_limits(title: str, panel: Tensor) -> str:
    """The block, and between what its colours lie."""
    known = panel[panel.isfinite()]
    return f"{title}\n{rounded(known.min())} to {rounded(known.max())}" if len(known) else title


def _mark_blocks(axes: Axes, layout: HeadLayout) -> None:
    """A line between two blocks, and each one's number at the middle of its heads."""
    for edge in layout.offsets[1:-1]:
        axes.axhline(edge - 0.5, color="white", linewidth=0.8)
        axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    middles = [(a + b - 1) / 2 for a, b in itertools.pairwise(layout.offsets)]
    blocks = [str(site.block) for site in layout.sites]
    axes.set_xticks(middles, blocks)
    axes.set_yticks(middles, blocks)
    axes.tick_params(length=0)
