"""The pixel patterns that heads of the first block read most: a row per head."""

from torch import Tensor

from mhprobe.report.figures.style import Figure, canvas, place

CAPTION = (
    "What the heads of the first block read from a patch: pixel patterns in the order of their strength, each with its "
    "share of all that the head reads. Grey is no weight; colours are scaled pattern by pattern. Smooth or striped "
    "patterns are learned, untrained weights look like noise."
)


def draw(patterns: Tensor, share: Tensor) -> Figure:
    """Return the figure. patterns: (H, N, 3, height, width). share: (H, N) of the head's squared strength."""
    heads, count = share.shape
    side, gap, left, down = 0.55, 0.1, 0.65, 0.2
    with canvas((left + count * (side + gap) + 0.1, heads * (side + down) + 0.3)) as figure:
        for head in range(heads):
            bottom = (heads - 1 - head) * (side + down) + down
            for number in range(count):
                pattern = patterns[head, number]
                picture = 0.5 + 0.5 * pattern / pattern.abs().max().clamp(min=1e-12)
                axes = place(figure, left + number * (side + gap), bottom, side, side)
                axes.imshow(picture.permute(1, 2, 0).numpy(), interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                axes.set_xlabel(f"{100 * share[head, number]:.0f} %", labelpad=1, fontsize=6.5)
                if number == 0:
                    axes.set_ylabel(f"head {head}", rotation=0, ha="right", va="center")
                    if head == 0:
                        axes.set_title("%: share of what the head reads", loc="left", pad=3, fontsize=7)
    return figure
