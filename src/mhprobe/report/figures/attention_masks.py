"""Attention masks of single images, block by block, and the images seen through them."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import interpolate

from mhprobe.report.figures.style import Figure, canvas, place

CAPTION = (
    "What each block reads of an image. The attention mask (above) is white where its weight is greatest and black "
    "where it is least; the numbers are these two weights, as multiples of even attention. The attention map (below) "
    "is the image seen through the mask. A mask is stretched to its own range, so one that is nearly even (both "
    "numbers near 1) looks as sharp as any."
)


def draw(
    pictures: Tensor, titles: Sequence[str], names: Sequence[str], masks: Sequence[Tensor], most: int = 6
) -> Figure:
    """Two rows per image, a column per block, the image itself first.

    pictures: (B, 3, height, width) in [0, 1]. titles: of the images. names, masks: of each site, (B, h, w), in
    multiples of even attention. most: how many sites are drawn, evenly chosen.
    """
    count = min(most, len(masks))
    chosen = sorted({round(number * (len(masks) - 1) / max(1, count - 1)) for number in range(count)})
    side, gap, below, top = 0.95, 0.1, 0.18, 0.25
    size = pictures.shape[-2:]
    tall = 2 * side + gap + below + 0.06
    with canvas((gap + (1 + len(chosen)) * (side + gap) + 0.02, top + len(pictures) * tall)) as figure:
        for row, picture in enumerate(pictures):
            bottom = (len(pictures) - 1 - row) * tall + below
            axes = place(figure, gap, bottom + side + gap, side, side)
            axes.imshow(picture.permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
            axes.set_axis_off()
            axes.text(0, -0.06, titles[row].replace(": ", ":\n"), transform=axes.transAxes, va="top", fontsize=7)
            for column, number in enumerate(chosen, 1):
                left, mask = gap + column * (side + gap), masks[number][row].float()
                least, greatest = mask.min(), mask.max()
                share = (mask - least) / (greatest - least).clamp(min=1e-12)
                share = interpolate(share[None, None], size=size, mode="bilinear")[0, 0].clamp(0, 1)
                above = place(figure, left, bottom + side + gap, side, side)
                above.imshow(share.numpy(), cmap="gray", vmin=0, vmax=1)
                under = place(figure, left, bottom, side, side)
                under.imshow((picture * share).permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
                for axes in (above, under):
                    axes.set_axis_off()
                words = f"{least:.2f} to {greatest:.2f} of even"
                under.text(0, -0.05, words, transform=under.transAxes, va="top", fontsize=6)
                if row == 0:
                    above.set_title(names[number], pad=3)
    return figure
