"""Cost of a masking curve for each class: steps down, classes across."""

from collections.abc import Sequence

from torch import Tensor

from mhprobe.report.figures.class_matrix import short
from mhprobe.report.figures.style import Figure, canvas, cells, colour_bar, place, scale, ticks

CAPTION = (
    "The drop of accuracy within each class (red) or its gain (blue) as heads are masked, step by step. A dot: "
    "significant on the same images (McNemar within the class, Holm over all cells, 5 %). Beside a class stands its "
    "accuracy with all heads. A class whose column turns red early needs the first heads that go."
)


def draw(accuracy: Tensor, sure: Tensor, heads_masked: Sequence[int], names: Sequence[str]) -> Figure:
    """Return the figure. accuracy: (K, C), step 0 unmasked. sure: (K, C) bool. heads_masked: of each step."""
    drop = 100 * (accuracy[:1] - accuracy)[1:].double()
    deep, classes = drop.shape
    wide_cell, tall_cell = max(0.24, min(0.42, 6.5 / classes)), max(0.08, min(0.24, 5.0 / max(deep, 1)))
    wide, tall = wide_cell * classes, max(tall_cell * deep, 0.8)
    labels = [f"{short(name)} ({100 * base:.0f} %)" for name, base in zip(names, accuracy[0].tolist(), strict=True)]
    below = 0.25 + 0.065 * max(map(len, labels))  # inches: names stand upright
    with canvas((0.75 + wide + 1.0, tall + below + 0.2)) as figure:
        axes = place(figure, 0.75, below, wide, tall)
        cmap, norm = scale(drop)
        image = axes.imshow(drop.numpy(), aspect="auto", cmap=cmap, norm=norm)
        cells(axes, deep, classes)
        at = sure[1:].nonzero().tolist()
        axes.plot([c for _, c in at], [k for k, _ in at], ".", color="black", markersize=3)
        axes.set_xticks(range(classes), labels, rotation=90)
        shown = ticks(deep, tall / max(deep, 1))
        axes.set_yticks(shown, [str(heads_masked[1:][k]) for k in shown])
        axes.set_ylabel("heads masked")
        colour_bar(figure, image, 0.75 + wide + 0.15, below, tall, "drop (points)")
    return figure
