"""mhprobe: what does each attention head do, and which heads can go?

The public names are imported on first use, so that ``--help`` and ``import mhprobe`` cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mhprobe import measures as measures
    from mhprobe.api import load as load
    from mhprobe.api import masking_curve as masking_curve
    from mhprobe.api import measure as measure
    from mhprobe.backbones import attach as attach
    from mhprobe.errors import UserError as UserError
    from mhprobe.taps import record as record

__version__ = "0.1.0"
_HOME = {
    "UserError": "errors",
    "attach": "backbones",
    "load": "api",
    "masking_curve": "api",
    "measure": "api",
    "record": "taps",
}
__all__ = ["UserError", "attach", "load", "masking_curve", "measure", "measures", "record"]


def __getattr__(name: str) -> Any:
    if name == "measures":
        return importlib.import_module("mhprobe.measures")
    if name in _HOME:
        return getattr(importlib.import_module(f"mhprobe.{_HOME[name]}"), name)
    raise AttributeError(f"module 'mhprobe' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
