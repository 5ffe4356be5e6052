"""Heads down, classes across: the matrix that every figure of a number per head and class is."""

from collections.abc import Sequence

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import Figure, canvas, colour_bar, inches, place, scale, wrapped

LONGEST = 14  # letters of a class's name


def class_matrix(
    layout: HeadLayout, value: Tensor, marked: Tensor, classes: Sequence[str], text: str, below: Sequence[str] = ()
) -> Figure:
    """One row per head, blocks parted by white lines, one column per class.

    value, marked: (A, C); a dot stands where ``marked``. classes: what stands below each column. text: beside the
    colour bar. below: lines of words at the foot, the first one lowest.
    """
    heads, count = value.shape
    row = max(0.055, min(0.16, 6.0 / heads))  # inches
    column = min(0.42, max(0.1, 4.0 / count))
    left, bottom, top = 1.0, 1.05 + 0.16 * len(below), 0.15
    wide, tall = max(column * count, 2.4), max(row * heads, 1.8)
    text = wrapped(text, min(tall, 3))
    with canvas((left + wide + 1.15 + 0.15 * text.count("\n"), bottom + tall + top)) as figure:
        panel = place(figure, left, bottom, wide, tall)
        cmap, norm = scale(value)
        image = panel.imshow(value.numpy(), cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        down, across = marked.nonzero().unbind(1)
        panel.plot(across.tolist(), down.tolist(), "o", color="black", markersize=min(3.0, 20 * row))
        for edge in layout.offsets[1:-1]:
            panel.axhline(edge - 0.5, color="white", linewidth=1.5)
        middles = [(a + b - 1) / 2 for a, b in zip(layout.offsets, layout.offsets[1:], strict=False)]
        panel.set_yticks(middles, [f"block {site.block}" for site in layout.sites])
        panel.set_ylabel("heads, 0 on top in each block")
        shown = range(0, count, max(1, round(0.13 / column)))
        panel.set_xticks(shown, [classes[number] for number in shown], rotation=45, ha="right")
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        for line, words in enumerate(below):
            figure.text(0.1 / inches(figure)[0], (0.1 + 0.16 * line) / inches(figure)[1], words, fontsize=7)
        colour_bar(figure, image, left + wide + 0.15, bottom + max(0, tall - 3) / 2, min(tall, 3), text)
    return figure


def short(name: str) -> str:
    """A class's name, cut where it would not fit."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
