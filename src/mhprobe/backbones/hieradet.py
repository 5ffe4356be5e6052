"""timm's HieraDet: SAM 2's encoder, in windows, with pooled queries where a stage begins."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Trial, never
from mhprobe.heads import Windows


def _windows(trial: Trial) -> Windows | None:
    if not trial.block.is_windowed:
        return None
    down, right = trial.block.q_stride or (1, 1)
    (height, width), (tall, wide) = trial.grid, trial.block.window_size
    return Windows(grid=(height // down, width // right), size=(tall // down, wide // right), shift=(0, 0))


class HieraDet(Located):
    title = "timm HieraDet (SAM 2)"
    model = "timm.models.hieradet_sam2.HieraDet"
    kinds: ClassVar = {"timm.models.hieradet_sam2.MultiScaleAttention": Kind(windows=_windows, weights=never)}
