"""Canonical correlations against their index: how many directions two heads share, and how well."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    COLOURS,
    NAMELESS,
    Axes,
    Figure,
    Names,
    canvas,
    colour,
    inches,
    layer_panels,
    place,
)

CAPTION = (
    "Canonical correlations of the heads of a block, from the best shared direction to the last: the mean of the "
    "pairs and their range. The dotted line is chance for as many images and directions; only what stands above "
    "it is shared."
)
Pairs = Sequence[Sequence[int]]


def draw(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    pairs: Pairs | None = None,
) -> Figure:
    """One panel per layer: mean and range of "rho" over the pairs of its heads, and "null_rho", what chance gives.

    A pair has as many correlations as the head with fewer directions has; the mean at an index is over pairs that
    reach it. Pairs across layers are not drawn.
    pairs: of heads by their flat numbers, each with a line of its own instead. UserError for one that was not compared.
    """
    if pairs:
        heads = [f"head {head} of block {site.block}" for _, head, site in layout]
        return draw_pairs("coefficients", pairs, heads, columns)
    reached = (~columns["rho"].isnan()).flatten(0, 1).any(0).nonzero()
    last = int(reached.max()) + 1 if len(reached) else 1
    step = 5 * math.ceil(last / 20) if last > 6 else 1
    labels = ("coefficient", "correlation")
    with layer_panels(layout, (1.25, 0.95), (0.55, 0.75), labels, least=3.4) as (figure, panels):
        for number, axes in enumerate(panels):
            span = layout.span(number)
            lines = _panel(axes, columns["rho"][span, span], columns["null_rho"][span, span])
            axes.set(xlim=(0.5, last + 0.5), ylim=(0, 1.02), yticks=[0, 0.5, 1])
            axes.set_xticks(sorted({1, *range(step, last + 1, step)}))
        figure.legend(
            lines, ["mean of the pairs", "their range", "chance"], loc="lower center", ncols=3, borderaxespad=0.3
        )
    return figure


def draw_pairs(asker: str, pairs: Pairs, titles: Sequence[str], columns: Mapping[str, Tensor]) -> Figure:
    """One panel with a line per pair from "rho", and dotted its own chance from "null_rho"; both (N, N, R).

    titles: of the N that pairs are among. UserError, in the name of ``asker``, for a pair that was not compared.
    """
    from matplotlib.ticker import MaxNLocator

    with canvas((5.6, max(2.6, 0.3 * len(pairs) + 0.9))) as figure:
        axes = place(figure, 0.55, 0.5, 2.6, inches(figure)[1] - 0.7)
        for number, pair in enumerate(pairs):
            if not _compared(pair, columns["rho"]):
                raise UserError(
                    f"{asker}.pairs: expected pairs of two different numbers of 0 to {len(titles) - 1} that were "
                    f"compared, e.g. [[0, 1]], got {pair}. Take another pair, or pairs=null for all."
                )
            shade, _ = colour(number)
            pair_lines(axes, columns, pair, shade, label=" and\n".join(titles[each] for each in pair))
        axes.plot([], [], ":", color="0.4", label="chance, of the same pair")
        axes.set(ylim=(0, 1.02), yticks=[0, 0.5, 1], xlabel="coefficient", ylabel="correlation")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="center left", bbox_to_anchor=(1.03, 0.5), borderaxespad=0)
    return figure


def pair_lines(
    axes: Axes,
    columns: Mapping[str, Tensor],
    pair: Sequence[int],
    shade: Any,
    widths: tuple[float, float] = (1, 1),
    label: str | None = None,
) -> None:
    """A pair's "rho" as a line, and dotted its "null_rho", chance of this very pair. widths: of both, in points."""
    for (column, line), width in zip((("rho", "-"), ("null_rho", ":")), widths, strict=True):
        rho = columns[column][tuple(pair)]
        rho = rho[rho.isfinite()]
        name = label if column == "rho" else None
        axes.plot(range(1, len(rho) + 1), rho.tolist(), line, color=shade, linewidth=width, label=name)


def _compared(pair: object, rho_NNR: Tensor) -> bool:
    """Return True for a pair that has correlations."""
    if not (isinstance(pair, Sequence) and len(set(pair)) == len(pair) == 2):
        return False
    there = all(type(each) is int and 0 <= each < len(rho_NNR) for each in pair)
    return there and not bool(rho_NNR[tuple(pair)].isnan().all())


def _panel(axes: Axes, rho_HHR: Tensor, null_HHR: Tensor) -> list:
    """The mean's line, the range's band and chance's line."""
    a, b = torch.triu_indices(len(rho_HHR), len(rho_HHR), 1)
    rho_PR, null_PR = rho_HHR[a, b], null_HHR[a, b]
    index = range(1, rho_PR.shape[1] + 1)
    missing = rho_PR.isnan()
    # where no pair gets that far there is nothing to draw
    low = torch.where(missing, torch.inf, rho_PR).amin(0) if len(a) else rho_PR.new_zeros(len(index))
    high = torch.where(missing, -torch.inf, rho_PR).amax(0) if len(a) else rho_PR.new_zeros(len(index))
    reached = (~missing).any(0)
    band = axes.fill_between(index, low, high, where=reached.tolist(), color=COLOURS[0], alpha=0.25, linewidth=0)
    (mean,) = axes.plot(index, rho_PR.nanmean(0), color=COLOURS[0], marker="o", markersize=2)
    (chance,) = axes.plot(index, null_PR.nanmean(0), color="black", linestyle=":", linewidth=1.2)
    return [mean, band, chance]
