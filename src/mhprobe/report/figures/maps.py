"""Pictures: maps of single images, feature maps, pixel patterns, surfaces, and scores of maps."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from mhprobe.data.augment import in_colours
from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, Axes, Figure

AREAS = (
    "deletion",
    "insertion",
    "random_deletion",
    "random_insertion",
)  # under curves of the class's probability
_SIDE, _GAP, _BELOW, _TITLE = 1.25, 0.14, 0.52, 0.22  # inches; below: colour bar and areas
BLIND = ("centre", "random")  # maps that have seen no image
ROWS = ("map before", "map after", "Fourier before", "Fourier after", "after - before")


class Judged(NamedTuple):
    """Maps (B, h, w), the ``AREAS`` (4, B) of them and of random orders, or None, and what their colours show.

    query: (row, column) of the one patch that looks, which is framed.
    """

    maps: Tensor
    areas: Tensor | None = None
    label: str = ""
    query: tuple[int, int] | None = None


@captioned(
    "What single images' maps point at, each with its own colour scale. Deletion (lower is better) "
    "and insertion "
    "(higher is better) say how faithful a map is: compare them with random orders, not with the "
    "look. A "
    "frame: the patch whose attention is shown. Attention: the share that goes to a patch, 0 to 1."
)
def maps(
    pictures: Tensor, titles: Sequence[str], columns: Mapping[str, Judged], smooth: bool = False
) -> Figure:
    """A row per image (B, 3, height, width) in [0, 1], a column per kind of map, the images themselves first.

    smooth: interpolate between patches.
    """
    names, edges = list(columns), (_GAP, _BELOW + 0.15, _GAP, _TITLE + 0.05)
    size, per_row = (_SIDE, _SIDE), 1 + len(columns)
    with style.grid(len(pictures) * per_row, size, (_GAP, _BELOW), edges, per_row=per_row) as (
        figure,
        places,
    ):
        for number, (axes, first, _) in enumerate(places):
            row, column = divmod(number, per_row)
            if first:
                _image(axes, pictures[row], titles[row])
                continue
            name = names[column - 1]
            _overlay(axes, pictures[row], columns[name], row, smooth)
            if row == 0:
                axes.set_title(name, pad=3)
    return figure


def draw_heads(picture: Tensor, title: str, heads: Mapping[str, Judged], number: int) -> Figure:
    """One image, number ``number`` of the batch, and every head's map of it."""
    per_row = min(4, len(heads))  # with the image as wide as a page
    edges, gap = (2 * _GAP + _SIDE, _BELOW + 0.1, _GAP, _TITLE + 0.05), (_GAP, _BELOW + _TITLE)
    with style.grid(len(heads), (_SIDE, _SIDE), gap, edges, per_row=per_row) as (figure, places):
        top = style.inches(figure)[1] - _SIDE - edges[3]
        _image(style.axes_at(figure, _GAP, top, _SIDE, _SIDE), picture, title)
        for (axes, _, _), (name, judged) in zip(places, heads.items(), strict=True):
            _overlay(axes, picture, judged, number)
            axes.set_title(name, pad=3)
    return figure


def _image(axes: Axes, picture: Tensor, title: str) -> None:
    style.show_picture(axes, picture)
    axes.text(0, -0.05, title, transform=axes.transAxes, va="top", fontsize=7)


def frame(
    axes: Axes, patch: tuple[int, int] | None, grid: Sequence[int], pixels: Sequence[int]
) -> None:
    """Frame a patch of a (rows, columns) grid over a picture of (height, width) pixels, black on white."""
    if patch is None:
        return
    tall, wide = (size / cells for size, cells in zip(pixels, grid, strict=True))
    corner = patch[1] * wide - 0.5, patch[0] * tall - 0.5
    for shade, width in (("white", 2.4), ("black", 1.0)):
        style.box(axes, corner, wide, tall, edgecolor=shade, linewidth=width, clip_on=False)


def _overlay(axes: Axes, picture: Tensor, judged: Judged, row: int, smooth: bool = False) -> None:
    """Draw the map over the grey image, its colour bar and areas below."""
    values = judged.maps[row].double()
    axes.imshow(
        picture.mean(0).clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
    )
    height, width = picture.shape[-2:]
    corners, between = (-0.5, width - 0.5, height - 0.5, -0.5), "bicubic" if smooth else "nearest"
    over = style.picture(
        axes, values, alpha=0.6, extent=corners, aspect="equal", interpolation=between
    )
    axes.set_axis_off()
    frame(axes, judged.query, values.shape, picture.shape[-2:])
    figure: Any = axes.figure
    wide, tall = style.inches(figure)
    box = axes.get_position()
    below = style.axes_at(figure, box.x0 * wide, box.y0 * tall - 0.09, _SIDE, 0.05)
    bar = figure.colorbar(over, cax=below, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([])
    low, high = (f"{end:.2g}" for end in (over.norm.vmin, over.norm.vmax))
    for x, text, side in ((0, low, "left"), (0.5, judged.label, "center"), (1, high, "right")):
        bar.ax.text(x, -0.4, text, transform=bar.ax.transAxes, ha=side, va="top", fontsize=6)
    if judged.areas is not None:
        both = zip(AREAS[:2], *judged.areas[:, row].view(2, 2).tolist(), strict=True)
        text = "\n".join(
            f"{name} {area:.2f} (random {by_chance:.2f})" for name, area, by_chance in both
        )
        bar.ax.text(0, -2.6, text, transform=bar.ax.transAxes, va="top", fontsize=6)


@captioned(
    "What each block reads of an image. The attention mask (above) is white where its weight is "
    "greatest and black "
    "where it is least; the numbers are these two weights, as multiples of even attention. The "
    "attention map (below) "
    "is the image seen through the mask. A mask is stretched to its own range, so one that is "
    "nearly even (both "
    "numbers near 1) looks as sharp as any."
)
def attention_masks(
    pictures: Tensor, titles: Sequence[str], names: Sequence[str], masks: Sequence[Tensor]
) -> Figure:
    """Two rows per image, a column per block, the image itself first.

    pictures: (B, 3, height, width) in [0, 1]. titles: of the images. names, masks: of each site,
    (B, h, w), in multiples of even attention. At most six sites are shown, evenly chosen.
    """
    chosen = style.some_evenly(len(masks), 6)
    side, gap, below, top = 0.95, 0.1, 0.18, 0.25
    tall = 2 * side + gap + below + 0.06
    with style.canvas(
        (gap + (1 + len(chosen)) * (side + gap) + 0.02, top + len(pictures) * tall)
    ) as figure:
        for row, picture in enumerate(pictures):
            bottom = (len(pictures) - 1 - row) * tall + below
            axes = style.axes_at(figure, gap, bottom + side + gap, side, side)
            style.show_picture(axes, picture)
            axes.text(
                0,
                -0.06,
                titles[row].replace(": ", ":\n"),
                transform=axes.transAxes,
                va="top",
                fontsize=7,
            )
            for column, number in enumerate(chosen, 1):
                left, mask = gap + column * (side + gap), masks[number][row].float()
                least = mask.min()
                greatest = mask.max()
                share = (mask - least) / (greatest - least).clamp(min=1e-12)
                share = interpolate(share[None, None], size=picture.shape[-2:], mode="bilinear")[
                    0, 0
                ].clamp(0, 1)
                above = style.axes_at(figure, left, bottom + side + gap, side, side)
                style.show_picture(above, share.expand(3, -1, -1))
                under = style.axes_at(figure, left, bottom, side, side)
                style.show_picture(under, picture * share)
                words = f"{least:.2f} to {greatest:.2f} of even"
                under.text(0, -0.05, words, transform=under.transAxes, va="top", fontsize=6)
                if row == 0:
                    above.set_title(names[number], pad=3)
    return figure


@captioned(
    "One image (left), its feature map (mean over channels) before and after a block's attention, "
    "and below the mean "
    "Fourier images, frequency 0 in the middle. The last row is after minus before, on one scale "
    "over all blocks: a "
    "blue rim is high frequencies that attention took away (a low-pass), red what it raised."
)
def fft_images(
    blocks: Sequence[int], maps: Sequence[Tensor], fourier: Sequence[Tensor], picture: Tensor
) -> Figure:
    """Feature maps and their Fourier images before and after each block's attention, of at most eight, evenly chosen.

    maps, fourier: per block (2, h, w), before and after. picture: (3, height, width) in [0, 1].
    """
    chosen = style.some_evenly(len(blocks), 8)
    relative = [fourier[number] - fourier[number].amax((1, 2), keepdim=True) for number in chosen]
    widest = max(
        [1e-9, *(float((after - before).abs().max()) for before, after in relative)]
    )  # one scale for all
    side, gap, first = 0.8, 0.1, 0.1
    left = first + side + 1.2
    with style.canvas(
        (left + len(chosen) * (side + gap) + 0.05, len(ROWS) * (side + gap) + 0.3)
    ) as figure:
        axes = style.axes_at(figure, first, (len(ROWS) - 1) * (side + gap) + 0.05, side, side)
        style.show_picture(axes, picture)
        axes.set_title("image", pad=3)
        for column, number in enumerate(chosen):
            before, after = relative[column]
            both: Any = {"vmin": float(min(before.min(), after.min())), "vmax": 0.0}  # on one scale
            change: Any = {"cmap": "RdBu_r", "vmin": -widest, "vmax": widest}
            images = [
                *((image, {}) for image in maps[number]),
                (before, both),
                (after, both),
                (after - before, change),
            ]
            for row, (image, look) in enumerate(images):
                x, y = left + column * (side + gap), (len(ROWS) - 1 - row) * (side + gap) + 0.05
                axes = style.axes_at(figure, x, y, side, side)
                style.tile(axes, image.numpy(), **{"cmap": "viridis", **look})
                if row == 0:
                    axes.set_title(f"block {blocks[number]}", pad=3)
                if column == 0:
                    scale = f"\n(red: more; within\n{widest:.2g} nats)" if row == 4 else ""
                    style.name_beside(axes, ROWS[row] + scale)
    return figure


@captioned(
    "What the heads of the first block read from a patch: pixel patterns in the order of their "
    "strength, each with its "
    "share of all that the head reads. Grey is no weight; colours are scaled pattern by pattern. "
    "Smooth or striped "
    "patterns are learned, untrained weights look like noise."
)
def kernels(patterns: Tensor, share: Tensor) -> Figure:
    """Pixel patterns, a row per head: (H, N, 3, height, width).

    share: (H, N) of the head's squared strength.
    """
    heads, count = share.shape
    side, gap, left, down = 0.55, 0.1, 0.65, 0.2
    edges = (left, down, 2 * gap, 0.3)
    with style.grid(heads * count, (side, side), (gap, down), edges, per_row=count) as (
        figure,
        places,
    ):
        for number, (axes, first, _) in enumerate(places):
            pattern = patterns.flatten(0, 1)[number]
            picture = 0.5 + 0.5 * pattern / pattern.abs().max().clamp(min=1e-12)
            shown, _ = in_colours(picture)
            style.tile(axes, shown.permute(1, 2, 0).numpy(), interpolation="nearest")
            axes.set_xlabel(f"{100 * share.flatten()[number]:.0f} %", labelpad=1, fontsize=6.5)
            if first:
                style.name_beside(axes, f"head {number // count}")
        places[0].axes.set_title("%: share of what the head reads", loc="left", pad=3, fontsize=7)
    return figure


@captioned(
    "Left: a map of one image as a surface over its patches; a flat one says nothing. Right: how "
    "large each channel of "
    "the residual stream is, block by block; ridges are channels that are large everywhere. "
    "Heights behind peaks are "
    "hidden: numbers are in the table."
)
def surfaces(space: Tensor, channels: Tensor, blocks: Sequence[int]) -> Figure:
    """Surfaces in three dimensions.

    space: (h, w). channels: (L, C), a row per block in ``blocks``.
    """
    with style.canvas((7.4, 3.4)) as figure:
        views = (
            (space, "column", "row", "rollout"),
            (channels, "channel", "block", "mean |activation|"),
        )
        for number, (values, across, down, up) in enumerate(views):
            axes: Any = figure.add_axes((0.02 + 0.5 * number, 0.06, 0.4, 0.86), projection="3d")
            heights = values.double().expand(
                *(max(2, side) for side in values.shape)
            )  # a surface needs two rows
            ys, xs = torch.meshgrid(*map(torch.arange, heights.shape), indexing="ij")
            axes.plot_surface(
                xs.numpy(),
                ys.numpy(),
                heights.numpy(),
                cmap="viridis",
                linewidth=0.15,
                edgecolor="0.3",
                rcount=60,
                ccount=200,
            )
            axes.set_xlabel(across, labelpad=-6)
            axes.set_ylabel(down, labelpad=-6)
            axes.set_zlabel(up, labelpad=4)
            axes.locator_params(axis="z", nbins=4)
            axes.locator_params(axis="x", nbins=5, integer=True)
            axes.tick_params(labelsize=6, pad=-3)
            axes.tick_params(axis="z", pad=0)
            if number:
                axes.set_yticks(range(len(blocks)), [str(block) for block in blocks])
            else:
                axes.locator_params(axis="y", nbins=5, integer=True)
                axes.invert_yaxis()
            axes.set_title(("space-wise", "channel-wise")[number], pad=0)
    return figure


@captioned(
    "How well each map tells the object from the ground, by the object's mask, with 95 % intervals "
    "over images: the "
    "share of pixels that the map, cut at its mean, has right; intersection over union, mean of "
    "object and ground; "
    "average precision of the map's order. Grey: a map that is hottest in the centre, and random "
    "patches. A map that "
    "is not ahead of the centre does not show where this image's object is."
)
def segmentation(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Scores of maps. rows: map, score, value, low, high; in [0, 1]."""
    maps, scores = (list(dict.fromkeys(row[key] for row in rows)) for key in ("map", "score"))
    size = (1.55, 0.24 * len(maps))
    edges = (0.3 + 0.062 * max(map(len, maps)), 0.4, 0.2, 0.35)
    with style.grid(len(scores), size, (0.2, 0), edges, per_row=len(scores)) as (figure, places):
        for (axes, first, _), score in zip(places, scores, strict=True):
            for y, name in enumerate(maps):
                (row,) = (row for row in rows if (row["map"], row["score"]) == (name, score))
                shade = "0.5" if name in BLIND else COLOURS[0]
                axes.hlines(y, row["low"], row["high"], color=shade, linewidth=1.4)
                axes.plot(row["value"], y, "o", color=shade, markersize=4)
                if name == BLIND[0]:
                    axes.axvline(row["value"], color="0.5", ls=":", lw=0.8, zorder=0)
            style.name_rows(axes, maps, first)
            axes.margins(x=0.08)
            axes.set_title(score, loc="left", pad=4)
    return figure


@captioned(
    "The share of images below each heat, for rightly and wrongly classified ones. Lines on each "
    "other: how hot a map "
    "is says nothing about the answer. The rank test is in the title."
)
def heat(right: Sequence[float], wrong: Sequence[float], title: str, label: str) -> Figure:
    """Two cumulative distributions of the heat of images. right, wrong: of each image."""
    with style.panel((3.45, 1.95), (0.55, 0.5, 0.2, 0.5)) as (figure, axes):
        for number, (values, name) in enumerate(((right, "right"), (wrong, "wrong"))):
            if values:
                axes.ecdf(values, color=COLOURS[number], label=f"{name} ({len(values)})")
        axes.set(xlabel=label, ylabel="share of images below")
        axes.set_title(title, loc="left")
        axes.legend(loc="lower right")
    return figure


@captioned(
    "Each head on an image and on its mirror image: how alike its own outputs are (points), and "
    "how like it the most "
    "alike other head of its block is on the other view (squares). A head corresponds to itself "
    "where the point is "
    "above its square; the title counts them, beside what chance would give."
)
def correspondence(layout: HeadLayout, compared: Mapping[str, Tensor]) -> Figure:
    """Heads on two views of an image.

    compared: itself, best_other (in [0, 1]), corresponds, chance, each (A,).
    """
    step = min(0.6, 5.5 / len(layout.sites))
    at = style.places_of_heads(layout, 0.7)
    same = int(compared["corresponds"].sum())
    expected = compared["chance"].sum().item()
    with style.panel((max(2.2, step * len(layout.sites)), 2.15), (0.6, 0.5, 1.75, 0.35)) as (
        figure,
        axes,
    ):
        for number, (name, text) in enumerate(
            (("itself", "itself"), ("best_other", "most alike other"))
        ):
            shade, marker = style.colour(number)
            axes.plot(
                at,
                compared[name].tolist(),
                marker,
                color=shade,
                markersize=3,
                alpha=0.8,
                label=text,
            )
        style.block_ticks(axes, layout, step)
        axes.set(
            ylim=(0, 1.03),
            xlabel="block (heads side by side)",
            ylabel="alignment (CKA) across views",
        )
        title = (
            f"{same} of {layout.num_heads} heads correspond to themselves (chance {expected:.1f})"
        )
        axes.set_title(title, loc="left", pad=5)
        style.legend_beside(axes)
    return figure
