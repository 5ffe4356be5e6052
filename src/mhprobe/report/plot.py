"""The reports' figures in a notebook: each function gives a matplotlib Figure, whose ``axes`` can be changed.

mhprobe.plot.heads(found["gate_importance"])
mhprobe.plot.pairs(found["cka"])
mhprobe.plot.maps(images, mhprobe.attention(model, images, head=[3, 17], query="class"))
mhprobe.plot.curve(mhprobe.masking_curve(model, loader))

Each takes style="paper": as wide as one column of a printed page or two, no text below six points, 300 dots per inch.
``figure.savefig("heads.pdf", bbox_inches="tight")`` keeps that width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mhprobe.errors import UserError, one_of, quoted
from mhprobe.heads import HeadLayout
from mhprobe.report.figures import masking
from mhprobe.report.figures.heads import per_head
from mhprobe.report.figures.maps import frame
from mhprobe.report.figures.pairs import pairwise, pairwise_layers
from mhprobe.report.figures.style import grid, printed
from mhprobe.report.paper import DPI
from mhprobe.report.values import Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Style = Literal["screen", "paper"]
_SIDE, _GAP, _TITLE = 1.25, 0.14, 0.25  # inches


def heads(values: Tensor, layout: HeadLayout | None = None, label: str = "value", style: Style = "screen") -> Figure:
    """A square per head, blocks from input to output; with intervals and references where the values have them.

    values: what ``mhprobe.measure`` gave, or (A,) numbers of your own with the layout they belong to.
    Raises UserError for numbers of another shape, or without a layout.
    """
    if isinstance(values, Values):
        if values.kind != "per_head":
            raise UserError(f"plot.heads: {values.name} compares heads or layers; draw it with plot.pairs.")
        return _styled(per_head(values.heads, values.columns, values.label), style)
    if layout is None or values.shape != (layout.num_heads,):
        expected = "the layout they belong to" if layout is None else f"({layout.num_heads},) numbers"
        raise UserError(
            f"plot.heads: expected {expected}, got {tuple(values.shape)} numbers; give layout=gates.layout."
        )
    return _styled(per_head(layout, {"value": values.detach().cpu()}, label), style)


def pairs(values: Values, style: Style = "screen") -> Figure:
    """Similarity of heads, or layers: a matrix per layer, or one of all.

    values: of a measure that compares. Raises UserError for one of single heads.
    """
    draw = {"pairwise": pairwise.draw, "pairwise_layers": pairwise_layers.draw}.get(getattr(values, "kind", ""))
    if draw is None:
        raise UserError("plot.pairs: expected the values of a measure that compares heads or layers, e.g. CKA.")
    return _styled(draw(values.heads, values.columns, values.label), style)


def curve(rows: Any, chance: float | None = None, style: Style = "screen") -> Figure:
    """Accuracy, or agreement, as heads are masked.

    rows: what ``mhprobe.masking_curve`` gave; several are drawn together if their curves are added up in one list.
    chance: accuracy of guessing, drawn where a curve comes near it. Raises UserError for other rows.
    """
    given = rows if isinstance(rows, list) and rows and hasattr(rows[0], "curves") else [rows]
    if not all(hasattr(each, "curves") for each in given):
        raise UserError("plot.curve: expected the result of mhprobe.masking_curve, or a list of results.")
    together = [each for one in given for each in one.curves]
    return _styled(masking.curves(together, given[0].layout.num_heads, chance), style)


def maps(
    images: Tensor,
    seen: Tensor,
    titles: Any = None,
    style: Style = "screen",
    query: tuple[int, int] | None = None,
) -> Figure:
    """A row per image, a column per map laid over it, the images themselves first.

    images: (B, 3, height, width), as the model saw them; drawn with their own darkest as black and brightest as white.
    seen: (B, H, rows, columns), from ``mhprobe.attention``. titles: of the H columns. query: (row, column) of the patch
    that looks, which is framed. Raises UserError for maps of another number of images, and a patch outside the grid.
    """
    if seen.dim() != 4 or len(seen) != len(images):
        raise UserError(f"plot.maps: expected ({len(images)}, heads, rows, columns) maps, got {tuple(seen.shape)}.")
    if query is not None and not all(0 <= at < size for at, size in zip(query, seen.shape[2:], strict=True)):
        raise UserError(f"plot.maps: query: expected a patch of {tuple(seen.shape[2:])}, got {quoted(query)}.")
    count = seen.shape[1]
    names = ["image", *(f"map {number}" for number in range(count))] if titles is None else ["image", *map(str, titles)]
    pixels = images.detach().float().cpu()
    low, high = pixels.amin((1, 2, 3), keepdim=True), pixels.amax((1, 2, 3), keepdim=True)
    pictures = ((pixels - low) / (high - low).clamp(min=torch.finfo(pixels.dtype).tiny)).permute(0, 2, 3, 1).numpy()
    size, gap, edges = (_SIDE, _SIDE), (_GAP, _GAP), (_GAP, _GAP, _GAP, _TITLE)
    with grid((count + 1) * len(images), size, gap, edges, per_row=count + 1) as (figure, places):
        for number, (axes, first, _) in enumerate(places):
            row, column = divmod(number, count + 1)
            picture = pictures[row]
            height, width = picture.shape[:2]
            axes.set_axis_off()
            axes.imshow(picture)
            if not first:
                values = seen[row, column - 1].detach().float().cpu().numpy()
                corners = (-0.5, width - 0.5, height - 0.5, -0.5)
                axes.imshow(values, alpha=0.65, cmap="viridis", extent=corners, interpolation="nearest")
                frame(axes, query, values.shape, (height, width))
            if not row:
                axes.set_title(names[column], fontsize=7, pad=3)
    return _styled(figure, style)


def _styled(figure: Figure, style: Style) -> Figure:
    """For the screen as it was drawn, for paper as wide as its columns. UserError for another style."""
    one_of("plot", "style", style, Style)
    if style == "paper":
        printed(figure, DPI, paper=True)
    return figure
