"""Heads of any width: as wide as the input of their block, for example, however many there are.

timm's Attention takes the width of a head, its VisionTransformer does not pass one on and divides the width of the
block by the number of heads. With a width of its own a head does not shrink where there are more of them: queries, keys
and values have num_heads times that width, and the output projection brings them back to the block's.
"""

from typing import Any

from timm.layers import Attention


def attention_of_width(width: int) -> type[Attention]:
    """Return the ``attn_layer`` of a VisionTransformer with heads of ``width`` channels each."""

    class Wide(Attention):
        # timm wants a class; families know attention by its type, so what is made is timm's own
        def __new__(cls, *given: Any, **options: Any) -> Any:
            return Attention(*given, **{**options, "attn_head_dim": width})

    return Wide
