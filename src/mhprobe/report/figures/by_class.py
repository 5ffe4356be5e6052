"""How much accuracy every class loses without every head: heads down, classes across."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Names, canvas, place, scale, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = (
    "How much accuracy each class loses (red) or gains (blue) without each head. A class has few images, so "
    "single cells jump by chance: trust rows and columns that repeat, and the interval in the table of the "
    "measure. A dot: significant (McNemar within the class, Holm over all cells, 5 %). Beside a class stands "
    "its accuracy with all heads."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """One row per head, sites parted by white lines, one column per class; from the column "by_class" (A, C)."""

    value = columns["by_class"].double()
    heads, classes = value.shape
    class_names = list(names.get("by_class", [str(number) for number in range(classes)]))
    row = max(0.055, min(0.16, 6.0 / heads))  # inches
    column = min(0.42, max(0.1, 4.0 / classes))
    left, bottom, top = 1.0, 0.95, 0.15
    wide, tall = column * classes, max(row * heads, 1.8)
    text = wrapped("drop of accuracy within the class", min(tall, 3))
    with canvas((left + wide + 1.15 + 0.15 * text.count("\n"), bottom + tall + top)) as figure:
        panel = place(figure, left, bottom, wide, tall)
        cmap, norm = scale(value)
        image = panel.imshow(value.numpy(), cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        if "class_p_holm" in columns:
            head, of = (columns["class_p_holm"] < 0.05).nonzero().unbind(1)
            panel.plot(of.tolist(), head.tolist(), "o", color="black", markersize=2, linestyle="")
        for edge in layout.offsets[1:-1]:
            panel.axhline(edge - 0.5, color="white", linewidth=1.5)
        middles = [(a + b - 1) / 2 for a, b in zip(layout.offsets, layout.offsets[1:], strict=False)]
        panel.set_yticks(middles, [f"block {site.block}" for site in layout.sites])
        panel.set_ylabel("heads, 0 on top in each block")
        step = max(1, round(0.13 / column))
        shown = range(0, classes, step)
        base = columns.get("class_accuracy")
        named = [_short(class_names[n]) + ("" if base is None else f" ({100 * base[0, n]:.0f} %)") for n in shown]
        panel.set_xticks(shown, named, rotation=45, ha="right")
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        bar = figure.colorbar(
            image, cax=place(figure, left + wide + 0.15, bottom + max(0, tall - 3) / 2, 0.1, min(tall, 3))
        )
        bar.outline.set_visible(False)
        bar.set_label(text)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"
