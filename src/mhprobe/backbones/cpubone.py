"""timm's CPUBone: as LowFormer."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Kind, never
from mhprobe.backbones.lowformer import LowFormer, parts


class CPUBone(LowFormer):
    title = "timm CPUBone"
    model = "timm.models.cpubone.CPUBone"
    kinds: ClassVar = {"timm.models.cpubone.ConvAttention": Kind(point="o_proj", parts=parts, weights=never)}
