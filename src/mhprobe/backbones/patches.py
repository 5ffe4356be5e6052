"""The convolution that makes tokens of patches, where it is one."""

from __future__ import annotations

from torch import nn

from mhprobe.errors import UserError


def patch_convolution(model: nn.Module) -> nn.Conv2d:
    """The one convolution that embeds the patches of a timm model; UserError where there is none, as in a stem."""
    convolution = getattr(getattr(model, "patch_embed", None), "proj", None)
    if not isinstance(convolution, nn.Conv2d) or convolution.stride != convolution.kernel_size:
        raise UserError(
            f"kernels: {type(model).__name__} does not embed patches by one convolution without overlap, expected "
            f"patch_embed.proj to be one. A convolutional stem has no kernels of pixels."
        )
    return convolution
