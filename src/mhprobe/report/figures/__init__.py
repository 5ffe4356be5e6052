"""Figures: one file per kind, each with a function ``draw``; a measure names the kinds it wants by their file."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from mhprobe.heads import HeadLayout

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    kind: str,
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    axes: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """The figure of a measure's columns that ``report/figures/<kind>.py`` draws.

    axes: the names along columns of shape (A, K), handed on to kinds that take them.
    """
    kind_draw = importlib.import_module(f"{__name__}.{kind}").draw
    names = {"axes": axes} if "axes" in inspect.signature(kind_draw).parameters else {}
    return kind_draw(layout, columns, label, **names)
