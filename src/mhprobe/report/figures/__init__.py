"""Figures: one file per kind, each with a function ``draw``; a measure names the kinds it wants by their file."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from mhprobe.heads import HeadLayout

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(kind: str, layout: HeadLayout, columns: Mapping[str, Tensor], label: str) -> Figure:
    """The figure of a measure's columns that ``report/figures/<kind>.py`` draws."""
    return importlib.import_module(f"{__name__}.{kind}").draw(layout, columns, label)
