"""timm's Nest: NesT. Its heads lie among each other in front of the projection, channel by channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from mhprobe.backbones.located import Located
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite


class Nest(Located):
    title = "timm Nest (NesT)"
    model = "timm.models.nest.Nest"
    kinds: ClassVar = {}

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        raise UserError(
            "Nest: in front of the projection its heads lie among each other, channel by channel, and not side by "
            "side; mhprobe gates heads that are slices. Not supported."
        )
