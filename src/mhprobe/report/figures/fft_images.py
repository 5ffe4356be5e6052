"""Feature maps and their Fourier images before and after each block's attention."""

from collections.abc import Sequence

from torch import Tensor

from mhprobe.report.figures.style import Figure, canvas, place

CAPTION = (
    "One image (left), its feature map (mean over channels) before and after a block's attention, and below the mean "
    "Fourier images, frequency 0 in the middle. The last row is after minus before, on one scale over all blocks: a "
    "blue rim is high frequencies that attention took away (a low-pass), red what it raised."
)
ROWS = ("map before", "map after", "Fourier before", "Fourier after", "after - before")


def draw(
    blocks: Sequence[int], maps: Sequence[Tensor], fourier: Sequence[Tensor], picture: Tensor, most: int = 8
) -> Figure:
    """Return the figure.

    maps, fourier: per block (2, h, w), before and after. most: how many blocks are drawn, evenly chosen.
    picture: (3, height, width) in [0, 1], the image that the maps are of.
    """
    count = min(most, len(blocks))
    chosen = sorted({round(i * (len(blocks) - 1) / max(1, count - 1)) for i in range(count)})
    relative = [fourier[number] - fourier[number].amax((1, 2), keepdim=True) for number in chosen]
    widest = max([1e-9, *(float((after - before).abs().max()) for before, after in relative)])  # one scale for all
    side, gap, first = 0.8, 0.1, 0.1
    left = first + side + 1.2
    with canvas((left + len(chosen) * (side + gap) + 0.05, len(ROWS) * (side + gap) + 0.3)) as figure:
        axes = place(figure, first, (len(ROWS) - 1) * (side + gap) + 0.05, side, side)
        axes.imshow(picture.permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
        axes.set_axis_off()
        axes.set_title("image", pad=3)
        for column, number in enumerate(chosen):
            before, after = relative[column]
            images = [*maps[number], before, after, after - before]
            for row, image in enumerate(images):
                y = (len(ROWS) - 1 - row) * (side + gap) + 0.05
                axes = place(figure, left + column * (side + gap), y, side, side)
                low, high = float(image.min()), float(image.max())
                if row in (2, 3):  # both on one scale
                    low, high = float(min(before.min(), after.min())), 0.0
                elif row == 4:
                    low, high = -widest, widest
                axes.imshow(image.numpy(), cmap="RdBu_r" if row == 4 else "viridis", vmin=low, vmax=high)
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                if row == 0:
                    axes.set_title(f"block {blocks[number]}", pad=3)
                if column == 0:
                    name = ROWS[row] if row < 4 else f"{ROWS[row]}\n(within {widest:.2g} nats)"
                    axes.set_ylabel(name, rotation=0, ha="right", va="center")
    return figure
