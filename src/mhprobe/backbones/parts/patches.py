"""The patch embedding of a timm model, where it can be run by itself."""

from timm.models.vision_transformer_hybrid import HybridEmbed
from torch import nn

from mhprobe.errors import UserError


def patch_embedding(model: nn.Module) -> nn.Module:
    """Return the module that embeds the patches of a timm model: images (B, 3, height, width) to maps (B, C, h, w).

    One convolution without overlap, or a stem of several. UserError for another.
    """
    embed = getattr(model, "patch_embed", None)
    if isinstance(embed, HybridEmbed) and isinstance(embed.proj, nn.Identity):
        return embed.backbone
    convolution = getattr(embed, "proj", None)
    if not isinstance(convolution, nn.Conv2d) or convolution.stride != convolution.kernel_size:
        raise UserError(
            f"kernels: {type(model).__name__} does not embed patches by one convolution without overlap nor by a stem "
            f"of convolutions, expected one of these in patch_embed. Leave the figure out, by figures=[...]."
        )
    return convolution
