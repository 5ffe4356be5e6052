"""timm's models that are refused by name: their heads are known, and are no slices of what enters a projection."""

from collections.abc import Iterator
from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Located
from mhprobe.errors import HeadsMixed, UserError
from mhprobe.heads import HeadSite


class Refused(Located):
    """A refused class of timm.

    reason: a clause on its heads, up to the full stop. error: HeadsMixed where no family could ever find one.
    """

    kinds: ClassVar = {}
    reason: ClassVar[str]
    error: ClassVar[type[UserError]] = HeadsMixed

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        raise cls.error(f"{type(model).__name__}: {cls.reason}. Not supported.")


class EfficientVitMsra(Refused):
    title = "timm EfficientViT (MSRA)"
    model = "timm.models.efficientvit_msra.EfficientVitMsra"
    reason = (
        "its heads are a cascade: each adds to its input what the one before it has found, so what a head hands on is "
        "not its own"
    )


class Nest(Refused):
    title = "timm Nest (NesT)"
    model = "timm.models.nest.Nest"
    error = UserError
    reason = (
        "in front of the projection its heads lie among each other, channel by channel, and not side by side; mhprobe "
        "gates heads that are slices"
    )


class Cait(Refused):
    title = "timm models with talking heads"
    model = "timm.models.cait.Cait"
    reason = (
        "its heads talk: behind the softmax their attention weights are mixed across heads, so what a head hands on is "
        "not its own"
    )


class EfficientFormerV2(Cait):
    model = "timm.models.efficientformer_v2.EfficientFormerV2"
