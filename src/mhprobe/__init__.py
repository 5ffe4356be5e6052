"""mhprobe: what does each attention head do, and which heads can go?

The public names are imported on first use, so that ``--help`` and ``import mhprobe`` cost nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mhprobe import maps as maps
    from mhprobe import measures as measures
    from mhprobe.api import load as load
    from mhprobe.api import masking_curve as masking_curve
    from mhprobe.api import measure as measure
    from mhprobe.api import photos as photos
    from mhprobe.backbones import attach as attach
    from mhprobe.backbones import detach as detach
    from mhprobe.errors import UserError as UserError
    from mhprobe.maps.attention import attention as attention
    from mhprobe.pages.diffing.page import diff as diff
    from mhprobe.pages.looking.page import live as live
    from mhprobe.pages.looking.page import look as look
    from mhprobe.recording.record import record as record
    from mhprobe.report import plot as plot
    from mhprobe.surgery.removal import prune_heads as prune_heads
    from mhprobe.weights.checkpoint import load_pruned as load_pruned
    from mhprobe.weights.hub import push_to_hub as push_to_hub
    from mhprobe.weights.saving import save as save

__version__ = "0.1.0"
_HOME = {
    "UserError": "errors",
    "attach": "backbones",
    "attention": "maps.attention",
    "detach": "backbones",
    "diff": "pages.diffing.page",
    "live": "pages.looking.page",
    "load": "api",
    "load_pruned": "weights.checkpoint",
    "look": "pages.looking.page",
    "masking_curve": "api",
    "measure": "api",
    "photos": "api",
    "prune_heads": "surgery.removal",
    "push_to_hub": "weights.hub",
    "record": "recording.record",
    "save": "weights.saving",
}
_MODULES = {"maps": "maps", "measures": "measures", "plot": "report.plot"}
__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"mhprobe.{_MODULES[name]}")
    if name in _HOME:
        return getattr(importlib.import_module(f"mhprobe.{_HOME[name]}"), name)
    raise AttributeError(f"module 'mhprobe' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
