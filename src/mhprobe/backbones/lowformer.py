"""timm's LowFormer and CPUBone: attention on a coarser grid, brought back to size by a convolution."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from mhprobe.backbones.parts.located import Kind, Located, Parts, Trial, never, weight_of
from mhprobe.errors import UserError


def parts(attention: Any, heads: int) -> Parts:
    query, key, value = weight_of(attention.pwise).unflatten(0, (heads, 3, -1)).unbind(1)
    return query, key, value


class LowFormer(Located):
    title = "timm LowFormer"
    model = "timm.models.lowformer.LowFormer"
    kinds: ClassVar = {"timm.models.lowformer.ConvAttention": Kind(point="o_proj", parts=parts, weights=never)}

    @classmethod
    def refuse(cls, model: Any, trial: Trial) -> None:
        if isinstance(trial.attention.o_proj, nn.Identity):
            raise UserError(
                f"{trial.name}: its output projection is one with the convolution that brings the grid back to size "
                f"(fuse_out_proj), so what a head writes is spread over places. Not supported."
            )


class CPUBone(LowFormer):
    title = "timm CPUBone"
    model = "timm.models.cpubone.CPUBone"
    kinds: ClassVar = {"timm.models.cpubone.ConvAttention": Kind(point="o_proj", parts=parts, weights=never)}
