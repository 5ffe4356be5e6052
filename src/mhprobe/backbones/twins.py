"""timm's Twins: windows, then keys on a coarser grid."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import COARSER, Kind, Located, apart, never
from mhprobe.backbones.pvt_v2 import full

INSIDE = "it cuts its windows, and puts them together again, inside itself"


class Twins(Located):
    title = "timm Twins"
    model = "timm.models.twins.Twins"
    kinds: ClassVar = {
        "timm.models.twins.LocallyGroupedAttn": Kind(weights=never, hidden=INSIDE),
        "timm.models.twins.GlobalSubSampleAttn": Kind(parts=apart("q", "kv"), weights=full, hidden=COARSER),
    }
