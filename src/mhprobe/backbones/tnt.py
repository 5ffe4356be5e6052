"""timm's TNT: a transformer of the pixels of a patch inside one of patches."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Trial, apart
from mhprobe.heads import Windows


def _windows(trial: Trial) -> Windows | None:
    patches, pixels = trial.entered[:2]
    if patches == 1:
        return None
    across, side = math.isqrt(patches), math.isqrt(pixels)
    return Windows(grid=(across * side, across * side), size=(side, side), shift=(0, 0))


class TNT(Located):
    title = "timm TNT"
    model = "timm.models.tnt.TNT"
    kinds: ClassVar = {"timm.models.tnt.Attention": Kind(parts=apart("qk", "v"), windows=_windows)}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return int(trial.entered[0] == 1)  # pixels of a patch have none
