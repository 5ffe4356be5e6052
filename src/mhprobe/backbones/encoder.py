"""Any nn.TransformerEncoder, usually inside a model of your own. See multihead.py for its attention.

Its input is a line of embedded tokens. It does not know where they stand in an image, or whether there is one.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from mhprobe.backbones.parts.multihead import MultiHead, self_attention
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite


class Encoder(MultiHead):
    title = "torch TransformerEncoder"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, nn.TransformerEncoder)

    @staticmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        for number, layer in enumerate(model.layers):
            name = f"layers.{number}.self_attn"
            if type(layer) is not nn.TransformerEncoderLayer:
                raise UserError(f"{name}: its layer is a {type(layer).__name__}, expected nn.TransformerEncoderLayer.")
            attention = self_attention(name, layer.self_attn)
            if not attention.batch_first:
                raise UserError(
                    f"{name}: its tokens come before its batch (batch_first=False), so images could not be told "
                    f"apart. Make the layers with batch_first=True; weights are the same."
                )
            yield HeadSite(
                name, stage=0, block=number, num_heads=attention.num_heads, head_dim=attention.head_dim, line=True
            )

    @staticmethod
    def blocks(model: Any) -> Iterator[Block]:
        for number, layer in enumerate(model.layers):
            # layers that normalise behind their parts have no norm before the MLP
            middle = "norm2" if layer.norm_first else "linear1"
            yield Block(name=f"layers.{number}", stage=0, middle=f"layers.{number}.{middle}")

    @classmethod
    def prepare(cls, model: Any) -> None:
        super().prepare(model)
        model.use_nested_tensor = False  # nested tensors go through torch's inference kernels only

    @classmethod
    def stem(cls, model: Any) -> nn.Module:
        raise UserError("a TransformerEncoder takes embedded tokens: what embeds them stands in front of it.")

    @classmethod
    def input_spec(cls, model: Any) -> dict[str, Any]:
        raise UserError("a TransformerEncoder takes embedded tokens, not images; what makes them knows their size.")

    @classmethod
    def features_only(cls, model: Any) -> bool:
        return True

    @classmethod
    def classifier(cls, model: Any) -> nn.Module:
        return nn.Identity()  # whatever stands behind it is the wrapper's
