"""What every head writes into every class's logit, on the images of that class: heads down, classes across."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Names, canvas, place, scale, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = (
    "What each head writes into a class's logit on images of that class, above the mean over classes: red speaks for "
    "the class, blue against it. A dot marks heads that speak against a class by more than chance (Holm over all "
    "cells, 5 %); those that do so most are named below. It is the direct path only: what a head does by way of later "
    "blocks is not in it."
)
NAMED = 3  # heads that speak against a class, below the figure


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """One row per head, sites parted by white lines, one column per class; from the columns "own", "own_p" (A, C)."""
    value, p = columns["own"].double(), columns["own_p"].double()
    heads, classes = value.shape
    class_names = [_short(name) for name in names.get("own", [str(number) for number in range(classes)])]
    row = max(0.055, min(0.16, 6.0 / heads))  # inches
    column = min(0.42, max(0.1, 4.0 / classes))
    said = _said(layout, value, p, class_names)
    left, bottom, top = 1.0, 0.85 + 0.16 * len(said), 0.15
    wide, tall = max(column * classes, 2.4), max(row * heads, 1.8)
    text = wrapped("write into the class's logit", min(tall, 3))
    with canvas((left + wide + 1.15 + 0.15 * text.count("\n"), bottom + tall + top)) as figure:
        panel = place(figure, left, bottom, wide, tall)
        cmap, norm = scale(value)
        image = panel.imshow(value.numpy(), cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        down, across = torch.nonzero((value < 0) & (p < 0.05), as_tuple=True)
        panel.plot(across.tolist(), down.tolist(), "o", color="black", markersize=min(3.0, 20 * row))
        for edge in layout.offsets[1:-1]:
            panel.axhline(edge - 0.5, color="white", linewidth=1.5)
        middles = [(a + b - 1) / 2 for a, b in zip(layout.offsets, layout.offsets[1:], strict=False)]
        panel.set_yticks(middles, [f"block {site.block}" for site in layout.sites])
        panel.set_ylabel("heads, 0 on top in each block")
        shown = range(0, classes, max(1, round(0.13 / column)))
        panel.set_xticks(shown, [class_names[number] for number in shown], rotation=45, ha="right")
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        for line, words in enumerate(said):
            figure.text(0.1 / figure.get_figwidth(), (0.1 + 0.16 * line) / figure.get_figheight(), words, fontsize=7)
        bar = figure.colorbar(
            image, cax=place(figure, left + wide + 0.15, bottom + max(0, tall - 3) / 2, 0.1, min(tall, 3))
        )
        bar.outline.set_visible(False)
        bar.set_label(text)
    return figure


def _said(layout: HeadLayout, value: Tensor, p: Tensor, class_names: list[str]) -> list[str]:
    """The heads that speak against a class most, in words, the worst last (it is printed on top)."""
    shown = torch.where(p < 0.05, value, torch.nan).nan_to_num(0).clamp(max=0)
    order = shown.flatten().argsort()[:NAMED].tolist()
    found = []
    for cell in order:
        head, number = divmod(cell, value.shape[1])
        if shown[head, number] < 0:
            _, index, where = list(layout)[head]
            found.append(f"block {where.block} head {index} against {class_names[number]}: {value[head, number]:.2g}")
    return found[::-1]


def _short(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"
