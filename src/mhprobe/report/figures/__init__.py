"""Figures: one file per kind, each with a function ``draw``; a measure names the kinds it wants by their file."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Figure, Names


def draw(
    kind: str,
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names | None = None,
    **options: Any,
) -> Figure:
    """The figure of a measure's columns that ``report/figures/<kind>.py`` draws.

    label: what "value" is, with its unit. names: of columns with one more axis behind the heads or pairs, the names
    along it. options: of this kind alone.
    """
    return importlib.import_module(f"{__name__}.{kind}").draw(layout, columns, label, names or NAMELESS, **options)
