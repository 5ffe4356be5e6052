"""timm's CoaT: factorised attention beside a convolution of each head's values."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Trial, never

FACTORISED = "it is factorised: keys meet values first, and no weights come to be"


class CoaT(Located):
    title = "timm CoaT"
    model = "timm.models.coat.CoaT"
    kinds: ClassVar = {"timm.models.coat.FactorAttnConvRelPosEnc": Kind(weights=never, hidden=FACTORISED)}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return 1
