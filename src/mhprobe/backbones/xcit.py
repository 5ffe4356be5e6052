"""timm's Xcit: cross-covariance attention. The class-attention blocks at the end have no gates."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.parts.located import CHANNELS, Kind, Located, never


class Xcit(Located):
    title = "timm Xcit (XCiT)"
    model = "timm.models.xcit.Xcit"
    kinds: ClassVar = {"timm.models.xcit.XCA": Kind(weights=never, hidden=CHANNELS)}
    aside = ("timm.models.cait.ClassAttn",)
