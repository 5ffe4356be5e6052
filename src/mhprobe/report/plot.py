"""The reports' figures in a notebook: each function gives a matplotlib Figure, whose ``axes`` can be changed.

mhprobe.plot.heads(found["gate_importance"])
mhprobe.plot.pairs(found["cka"])
mhprobe.plot.maps(images, mhprobe.attention(model, images, head=[3, 17], query="class"))
mhprobe.plot.curve(mhprobe.masking_curve(model, loader))

Each takes style="paper": as wide as one column of a printed page or two, no text below six points,
300 dots per inch. ``figure.savefig("heads.pdf", bbox_inches="tight")`` keeps that width.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from mhprobe.data.augment import in_colours
from mhprobe.errors import UserError, one_of, quoted
from mhprobe.heads import HeadLayout
from mhprobe.report.figures import masking
from mhprobe.report.figures.heads import per_head
from mhprobe.report.figures.maps import Judged
from mhprobe.report.figures.maps import maps as draw_maps
from mhprobe.report.figures.pairs import pairwise, pairwise_layers
from mhprobe.report.figures.style import DPI, Figure, printed
from mhprobe.report.values import Values

Style = Literal["screen", "paper"]


def heads(
    values: Tensor, layout: HeadLayout | None = None, label: str = "value", style: Style = "screen"
) -> Figure:
    """Draw a square per head, blocks from input to output, with intervals and references of the values.

    values: of ``mhprobe.measure``, or (A,) numbers with their layout. Raises UserError for another
    shape, without a layout, and for several measures.
    """
    values = _one(values, "plot.heads", {"per_head"})
    if isinstance(values, Values):
        if values.kind != "per_head":
            raise UserError(
                f"plot.heads: {values.name} compares heads or layers; draw it with plot.pairs."
            )
        return _styled(per_head(values.heads, values.columns, values.label), style)
    if not isinstance(values, Tensor):
        raise UserError(
            "plot.heads: values: expected values of mhprobe.measure, or (A,) numbers and their "
            f"layout, got {quoted(values)}."
        )
    if layout is None or values.shape != (layout.num_heads,):
        expected = (
            "the layout they belong to" if layout is None else f"({layout.num_heads},) numbers"
        )
        raise UserError(
            f"plot.heads: expected {expected}, got {tuple(values.shape)}; give layout=gates.layout."
        )
    return _styled(per_head(layout, {"value": values.detach().cpu()}, label), style)


def pairs(values: Values, style: Style = "screen") -> Figure:
    """Draw similarities of heads, or layers: a matrix per layer, or one of all.

    values: of a measure that compares. Raises UserError for one of single heads, and for several.
    """
    values = _one(values, "plot.pairs", {"pairwise", "pairwise_layers"})
    draw = {"pairwise": pairwise.draw, "pairwise_layers": pairwise_layers.draw}.get(
        getattr(values, "kind", "")
    )
    if draw is None:
        raise UserError(
            "plot.pairs: expected the values of a measure that compares heads or layers, e.g. CKA."
        )
    return _styled(draw(values.heads, values.columns, values.label), style)


def _one(values: Any, where: str, kinds: Collection[str]) -> Any:
    """Return the values of one measure: of several in a dict the only one of ``kinds``.

    Raises UserError where several or none are.
    """
    if not isinstance(values, Mapping):
        return values
    fit = [name for name, of in values.items() if getattr(of, "kind", "") in kinds]
    if len(fit) == 1:
        return values[fit[0]]
    if not fit:
        named = ", ".join(map(str, values)) or "none"
        raise UserError(f"{where}: expected values that it can draw, got a dict of {named}.")
    raise UserError(
        f"{where}: expected one measure, got {len(fit)}: {', '.join(fit)}. "
        f"Give values[{quoted(fit[0])}], or another of them."
    )


def curve(rows: Any, chance: float | None = None, style: Style = "screen") -> Figure:
    """Draw accuracy, or agreement, as heads are masked.

    rows: of ``mhprobe.masking_curve``, or a list of them. chance: accuracy of guessing, drawn if a
    curve comes near it. Raises UserError for other rows.
    """
    results = rows if isinstance(rows, list) and rows and hasattr(rows[0], "curves") else [rows]
    if not all(hasattr(result, "curves") for result in results):
        raise UserError(
            "plot.curve: expected the result of mhprobe.masking_curve, or a list of results."
        )
    curves = [curve for result in results for curve in result.curves]
    return _styled(masking.curves(curves, results[0].layout.num_heads, chance), style)


def maps(
    images: Tensor,
    seen: Tensor,
    titles: Any = None,
    style: Style = "screen",
    query: tuple[int, int] | None = None,
) -> Figure:
    """Draw a row per image and a column per map over it, with colour bars, the images themselves first.

    images: (B, 3, height, width), as the model saw them; each is stretched from black to white.
    seen: (B, H, rows, columns), from ``mhprobe.attention``. titles: of the H columns. query: (row,
    column) of the patch that looks, which is framed. Of images of other than 3 channels the first
    three are shown, or their mean in grey, as the figure says. Raises UserError for what are no
    images or maps, maps of another number of images, and a patch outside the grid.
    """
    _refuse_shape(images, "images", "(B, channels, height, width)")
    _refuse_shape(seen, "seen", "(B, heads, rows, columns)")
    if len(seen) != len(images):
        raise UserError(
            f"plot.maps: expected ({len(images)}, heads, rows, columns) maps, got "
            f"{tuple(seen.shape)}."
        )
    if query is not None and not all(
        0 <= at < size for at, size in zip(query, seen.shape[2:], strict=True)
    ):
        raise UserError(
            f"plot.maps: query: expected a patch of {tuple(seen.shape[2:])}, got {quoted(query)}."
        )
    if titles is None:
        titles = [f"map {number}" for number in range(seen.shape[1])]
    pixels, called = in_colours(images.detach().float().cpu())
    low, high = pixels.amin((1, 2, 3), keepdim=True), pixels.amax((1, 2, 3), keepdim=True)
    pictures = (pixels - low) / (high - low).clamp(min=torch.finfo(pixels.dtype).tiny)
    seen_by = seen.detach().float().cpu().unbind(1)
    columns = {
        name: Judged(of, label="attention", query=query)
        for name, of in zip(_told_apart(titles), seen_by, strict=True)
    }
    return _styled(draw_maps(pictures, [called] * len(images), columns), style)


def _refuse_shape(value: Any, name: str, form: str) -> None:
    """Raise UserError for what is no tensor of four dimensions. form: what they are."""
    if not isinstance(value, Tensor):
        raise UserError(f"plot.maps: {name}: expected {form}, got {quoted(value)}.")
    if value.dim() != 4:
        raise UserError(f"plot.maps: {name}: expected {form}, got {tuple(value.shape)}.")


def _told_apart(titles: Iterable[Any]) -> list[str]:
    """Return titles as names of columns: a repeated one gets a blank for each time that it stood before."""
    names = [str(title) for title in titles]
    return [name + " " * names[:at].count(name) for at, name in enumerate(names)]


def _styled(figure: Figure, style: Style) -> Figure:
    """Fit a figure to paper if asked. Raises UserError for another style."""
    one_of("plot", "style", style, Style)
    if style == "paper":
        printed(figure, DPI, paper=True)
    return figure
