"""Accuracy that every class loses without every head: heads down, classes across."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.class_matrix import class_matrix, short
from mhprobe.report.figures.style import NAMELESS, Figure, Names

CAPTION = (
    "How much accuracy each class loses (red) or gains (blue) without each head. A class has few images, so "
    "single cells jump by chance: trust rows and columns that repeat, and the interval in the table of the "
    "measure. A dot: significant (McNemar within the class, Holm over all cells, 5 %). Beside a class stands "
    "its accuracy with all heads."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """One row per head, sites parted by white lines, one column per class; from the column "by_class" (A, C)."""
    value = columns["by_class"].double()
    classes = [short(name) for name in names.get("by_class", [str(number) for number in range(value.shape[1])])]
    if "class_accuracy" in columns:
        base = columns["class_accuracy"][0]
        classes = [f"{name} ({100 * share:.0f} %)" for name, share in zip(classes, base, strict=True)]
    marked = columns["class_p_holm"] < 0.05 if "class_p_holm" in columns else torch.zeros_like(value)
    return class_matrix(layout, value, marked, classes, "drop of accuracy within the class")
