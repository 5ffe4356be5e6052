"""Maps of single images laid over them, each with its own colour scale and its areas under deletion and insertion."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from mhprobe.report.figures.style import Axes, Figure, canvas, place, scale

CAPTION = (
    "What single images' maps point at, each with its own colour scale. Deletion (lower is better) and insertion "
    "(higher is better) say how faithful a map is: compare them with random orders (r), not with the look. A "
    "frame: the patch whose attention is shown."
)


class Judged(NamedTuple):
    """Maps (B, h, w) and, each (B,), the areas under deletion and insertion curves of them and of random orders.

    Areas are NaN where they were not asked for.
    """

    maps: Tensor
    deletion: Tensor
    insertion: Tensor
    random_deletion: Tensor
    random_insertion: Tensor

    @property
    def scored(self) -> bool:
        return not bool(self.deletion.isnan().any())


Asking = Mapping[str, tuple[int, int]]
_SIDE, _GAP, _BELOW, _TITLE = 1.25, 0.14, 0.52, 0.22  # inches; below: colour bar and areas


def draw(
    pictures: Tensor,
    titles: Sequence[str],
    columns: Mapping[str, Judged],
    smooth: bool = False,
    asking: Asking = MappingProxyType({}),
) -> Figure:
    """A row per image (B, 3, height, width) in [0, 1], a column per kind of map, the images themselves first.

    smooth: values between the patches' middles are interpolated, instead of a square per patch.
    asking: by the name of a map, the patch that looks: it is framed.
    """
    rows, wide = len(pictures), 1 + len(columns)
    tall = rows * (_SIDE + _BELOW)
    with canvas((wide * (_SIDE + _GAP) + _GAP, tall + _TITLE + 0.2)) as figure:
        for row in range(rows):
            bottom = tall - (row + 1) * (_SIDE + _BELOW) + _BELOW + 0.15
            axes = place(figure, _GAP, bottom, _SIDE, _SIDE)
            _picture(axes, pictures[row])
            axes.text(0, -0.05, titles[row], transform=axes.transAxes, va="top", fontsize=7)
            for column, (name, judged) in enumerate(columns.items(), 1):
                axes = _overlay(figure, _GAP + column * (_SIDE + _GAP), bottom, pictures[row], judged, row, smooth)
                frame(axes, asking.get(name), judged.maps.shape[-2:], pictures.shape[-2:])
                if row == 0:
                    axes.set_title(name, pad=3)
    return figure


def draw_heads(
    picture: Tensor, title: str, heads: Mapping[str, Judged], number: int, asking: Asking = MappingProxyType({})
) -> Figure:
    """One image, number ``number`` of the batch, and every head's map of it. asking: as of ``draw``."""
    per_row = min(4, len(heads))  # with the image as wide as a page: text would not shrink with smaller maps
    deep = math.ceil(len(heads) / per_row)
    tall = deep * (_SIDE + _BELOW + _TITLE)
    with canvas(((per_row + 1) * (_SIDE + _GAP) + _GAP, tall + 0.15)) as figure:
        axes = place(figure, _GAP, tall - _SIDE - _TITLE + 0.1, _SIDE, _SIDE)
        _picture(axes, picture)
        axes.text(0, -0.05, title, transform=axes.transAxes, va="top", fontsize=7)
        for place_in_grid, (name, judged) in enumerate(heads.items()):
            row, column = divmod(place_in_grid, per_row)
            bottom = tall - row * (_SIDE + _BELOW + _TITLE) - _SIDE - _TITLE + 0.1
            axes = _overlay(figure, _GAP + (column + 1) * (_SIDE + _GAP), bottom, picture, judged, number)
            frame(axes, asking.get(name), judged.maps.shape[-2:], picture.shape[-2:])
            axes.set_title(name, pad=3)
    return figure


def _picture(axes: Axes, picture: Tensor) -> None:
    axes.imshow(picture.permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
    axes.set_axis_off()


def frame(axes: Axes, patch: tuple[int, int] | None, grid: Sequence[int], pixels: Sequence[int]) -> None:
    """Frame a patch, black on white, of a (rows, columns) grid over a picture of (height, width) pixels."""
    from matplotlib.patches import Rectangle

    if patch is None:
        return
    tall, wide = (size / cells for size, cells in zip(pixels, grid, strict=True))
    corner = patch[1] * wide - 0.5, patch[0] * tall - 0.5
    for shade, width in (("white", 2.4), ("black", 1.0)):
        axes.add_patch(Rectangle(corner, wide, tall, fill=False, edgecolor=shade, linewidth=width, clip_on=False))


def _overlay(
    figure: Figure, left: float, bottom: float, picture: Tensor, judged: Judged, row: int, smooth: bool = False
) -> Axes:
    """The map over the image in grey, its colour bar and its areas below."""
    values = judged.maps[row].double()
    axes = place(figure, left, bottom, _SIDE, _SIDE)
    axes.imshow(picture.mean(0).clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    cmap, norm = scale(values)
    height, width = picture.shape[-2:]
    over = axes.imshow(
        values.numpy(), cmap=cmap, norm=norm, alpha=0.6, extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        interpolation="bicubic" if smooth else "nearest",
    )  # fmt: skip
    axes.set_axis_off()
    bar = figure.colorbar(over, cax=place(figure, left, bottom - 0.09, _SIDE, 0.05), orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([])
    for x, end, side in ((0, norm.vmin, "left"), (1, norm.vmax, "right")):
        bar.ax.text(x, -0.4, f"{end:.2g}", transform=bar.ax.transAxes, ha=side, va="top", fontsize=6)
    if not judged.scored:
        return axes
    text = (
        f"del {judged.deletion[row]:.2f} (r {judged.random_deletion[row]:.2f})\n"
        f"ins {judged.insertion[row]:.2f} (r {judged.random_insertion[row]:.2f})"
    )
    bar.ax.text(0, -2.6, text, transform=bar.ax.transAxes, va="top", fontsize=6)
    return axes
