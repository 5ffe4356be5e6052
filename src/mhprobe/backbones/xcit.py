"""timm's Xcit: cross-covariance attention. Blocks behind them, in which the class token alone asks, are left alone."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import CHANNELS, Kind, Located, never


class Xcit(Located):
    title = "timm Xcit (XCiT)"
    model = "timm.models.xcit.Xcit"
    kinds: ClassVar = {"timm.models.xcit.XCA": Kind(weights=never, hidden=CHANNELS)}
    aside = ("timm.models.cait.ClassAttn",)
