"""A stem of 3 x 3 convolutions instead of one patch projection: a small network trained from scratch learns faster.

Xiao et al., Early Convolutions Help Transformers See Better, 2021, arXiv 2106.14881. Built of timm's ConvStem and
HybridEmbed. It changes nothing about heads: the tokens are as many, and stand for the same pixels.
"""

from collections.abc import Callable, Sequence
from typing import Any

from timm.layers import to_2tuple
from timm.models.vision_transformer_hybrid import ConvStem, HybridEmbed


def conv_stem(channels: Sequence[int]) -> Callable[..., HybridEmbed]:
    """Return a stem of convolutions that timm's models take as ``embed_layer``.

    channels: of the convolutions before the last, which gives the tokens' width. Batch norm and ReLU stand behind each
        but the last. The later ones halve the image, until a token stands for ``patch_size`` pixels.
    """

    def embed(*, img_size: Any, patch_size: Any, in_chans: int, embed_dim: int, **options: Any) -> HybridEmbed:
        image, patch = to_2tuple(img_size), to_2tuple(patch_size)
        halvings = patch[0].bit_length() - 1
        if patch != (2**halvings, 2**halvings) or halvings > len(channels) + 1:
            raise ValueError(
                f"conv_stem: {len(channels) + 1} convolutions, of which some halve the image, cannot make patches of "
                f"{patch[0]} x {patch[1]} pixels."
            )
        if any(pixels % patch[0] for pixels in image):
            raise ValueError(f"conv_stem: patches of {patch[0]} pixels do not tile {image[0]} x {image[1]} pixels.")
        strides = (1,) * (len(channels) + 1 - halvings) + (2,) * halvings
        stem = ConvStem(in_chans, len(strides), (*channels, embed_dim), kernel_size=3, stride=strides)
        for unused in ("norm_layer", "bias"):  # the stem has its own
            options.pop(unused, None)
        return HybridEmbed(
            stem, img_size=image, patch_size=1, in_chans=in_chans, embed_dim=embed_dim, proj=False, **options
        )

    return embed
