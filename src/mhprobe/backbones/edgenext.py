"""timm's EdgeNeXt: convolutions, and cross-covariance attention in some blocks."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import CHANNELS, Kind, Located, never


class EdgeNeXt(Located):
    title = "timm EdgeNeXt"
    model = "timm.models.edgenext.EdgeNeXt"
    kinds: ClassVar = {"timm.models.edgenext.CrossCovarianceAttn": Kind(weights=never, hidden=CHANNELS)}
