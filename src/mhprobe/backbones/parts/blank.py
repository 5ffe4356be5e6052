"""A ViT or a Swin of timm's whose blocks do nothing yet.

Norms only normalise; heads, MLPs and the classifier write nothing; tokens and positions are zero.

Shapes: C channels of the stream, T tokens, K classes.
"""

from typing import Any

import timm
from torch import Tensor, nn

from mhprobe.backbones.parts.opened import Opened

_SIZES: dict[str, dict[str, Any]] = {
    "vit": {"model_name": "vit_tiny_patch16_224", "embed_dim": 128, "depth": 4, "num_heads": 8},
    "swin": {
        "model_name": "swin_tiny_patch4_window7_224",
        **{"window_size": 4, "embed_dim": 96, "depths": (2, 2), "num_heads": (6, 12)},
    },
}


class Blank(Opened):
    """A model without weights: all its blocks pass the stream on until heads are written."""

    def __init__(self, family: str, grid: int, patch: int, classes: int) -> None:
        sizes: dict[str, Any] = {
            "img_size": grid * patch,
            "patch_size": patch,
            "num_classes": classes,
            "mlp_ratio": 1.0,
        }
        super().__init__(family, timm.create_model(**_SIZES[family], **sizes).eval())
        for part in self.model.modules():
            if not isinstance(part, nn.LayerNorm):
                for parameter in part.parameters(recurse=False):
                    nn.init.zeros_(parameter)

    def embed(self, pixels: Tensor) -> None:
        """Set the patch embedding: (C, 3 * patch * patch), the weight of each pixel of a patch for each channel."""
        weight = self.model.patch_embed.proj.weight
        weight.copy_(pixels.view_as(weight))

    def place(self, class_token: Tensor, tokens: Tensor) -> None:
        """Set the class token (C,) and the embeddings of positions (T, C), as a ViT adds them."""
        self.model.pos_embed[0, 0], self.model.pos_embed[0, 1:] = class_token, tokens

    def merge(self, stage: int, weight: Tensor) -> None:
        """Set the merging of 2 x 2 tokens into a stage of a Swin, from their mean: (C behind, C before)."""
        self.model.layers[stage].downsample.reduction.weight.copy_((weight / 2).repeat(1, 4))

    def classify(self, weight: Tensor) -> None:
        """Set the (K, C) weight of the classifier."""
        (self.model.head if self.family == "vit" else self.model.head.fc).weight.copy_(weight)
