"""Writes of every head into every class's logit, on the images of that class: heads down, classes across."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.class_matrix import class_matrix, short
from mhprobe.report.figures.style import NAMELESS, Figure, Names

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
    classes = [short(name) for name in names.get("own", [str(number) for number in range(value.shape[1])])]
    against = (value < 0) & (p < 0.05)
    said = _said(layout, value, p, classes)
    return class_matrix(layout, value, against, classes, "write into the class's logit", said)


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
