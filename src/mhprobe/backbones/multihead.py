"""torch's nn.MultiheadAttention with places for gates and taps: torchvision's ViT, and any nn.TransformerEncoder.

Its own forward multiplies by W_O without calling ``out_proj``, so no hook sees the heads. ``Open``
computes the same in the same order. Only the class of a module changes: its parameters and state
dict stay as they were.
Shapes: B images, T tokens, H heads, D head width, E = H * D.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from mhprobe.backbones.base import Family, Seam, Segments, blocks_in, submodule
from mhprobe.backbones.parts.timm_models import colours_read
from mhprobe.backbones.parts.units import Parts, other_forward
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite
from mhprobe.io.readings import Reading

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Open(nn.MultiheadAttention):
    """Self-attention.

    joined: the heads side by side, (B, T, E), pass it; softmaxed: (B, H, T, T) weights, unfused.
    """

    fused_attn = True
    joined: nn.Identity
    softmaxed: nn.Identity

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query is not key or key is not value or query.dim() != 3:
            raise UserError(
                f"{type(self).__name__}: expected self-attention over a batch (B, T, E)."
            )
        x = query.transpose(0, 1) if self.batch_first else query
        tokens, batch, _ = x.shape
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(
            -1, (3, self.embed_dim)
        )
        packed = packed.unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
        parts = (part.view(tokens, batch * self.num_heads, self.head_dim) for part in packed)
        q, k, v = (part.transpose(0, 1).unflatten(0, (batch, -1)) for part in parts)
        mask = self._mask(attn_mask, key_padding_mask, batch, q)
        dropout = self.dropout if self.training else 0.0
        if self.fused_attn and not need_weights:
            weights, mixed = None, F.scaled_dot_product_attention(q, k, v, mask, dropout)
        else:
            scores = torch.matmul(q * math.sqrt(1.0 / self.head_dim), k.mT)
            weights = F.dropout(
                self.softmaxed((scores if mask is None else scores + mask).softmax(-1)), dropout
            )
            mixed = torch.matmul(weights, v)
        out = self.after(
            self.joined(mixed.permute(2, 0, 1, 3).contiguous().flatten(2).transpose(0, 1))
        )
        if not need_weights or weights is None:
            return out, None
        return out, weights.mean(1) if average_attn_weights else weights

    def after(self, heads: Tensor) -> Tensor:
        """(B, T, E) the heads side by side -> output of the module."""
        rows = heads.transpose(0, 1)
        out = F.linear(rows.reshape(-1, self.embed_dim), self.out_proj.weight, self.out_proj.bias)
        out = out.view(*rows.shape[:2], -1)
        return out.transpose(0, 1) if self.batch_first else out

    def _mask(
        self, attn: Tensor | None, padding: Tensor | None, batch: int, q: Tensor
    ) -> Tensor | None:
        """Return the mask that is added to (B, H, T, T) scores."""
        attn = (
            attn if attn is None or attn.dim() == 2 else attn.unflatten(0, (batch, self.num_heads))
        )
        parts = [
            part
            for part in (attn, None if padding is None else padding[:, None, None])
            if part is not None
        ]
        zero = torch.zeros((), dtype=q.dtype, device=q.device)
        masks = [
            zero.where(~part, -torch.inf) if part.dtype == torch.bool else part.to(q.dtype)
            for part in parts
        ]
        return functools.reduce(torch.add, masks) if masks else None


class MultiHead(Family):
    """Families whose attention is torch's."""

    whole = "torch's MultiheadAttention holds as many channels as its input, so its own forward fails without a head"

    def prepare(self, model: Any) -> None:
        for site in self.sites(model):
            attention: Any = submodule(model, site)
            if type(attention) is not Open:
                attention.__class__, attention.joined, attention.softmaxed = (
                    Open,
                    nn.Identity(),
                    nn.Identity(),
                )

    def seam(self, model: Any, site: HeadSite) -> Seam:
        attention: Any = submodule(model, site)
        return Seam(
            *(attention, attention.joined, attention.out_proj, attention.softmaxed),
            behind=lambda heads: (attention.after(attention.joined(heads)), None),
        )

    def query_key_value(self, attention: Any, site: HeadSite) -> Parts:
        return (
            attention.in_proj_weight.detach()
            .unflatten(0, (3, site.num_heads, site.head_dim))
            .unbind()
        )


def _plain(name: str, attention: Any) -> Any:
    if type(attention) not in (nn.MultiheadAttention, Open):
        raise UserError(
            f"{name} is a {type(attention).__name__}, expected torch.nn.MultiheadAttention."
        )
    if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
        raise UserError(
            f"{name}: attention with kdim, vdim, add_bias_kv or add_zero_attn is not supported; "
            "expected plain "
            f"self-attention."
        )
    return attention


class TorchvisionViT(MultiHead):
    title = "torchvision VisionTransformer"
    model, embedding, head = VisionTransformer, "conv_proj", "heads"

    def sites(self, model: Any) -> Iterator[HeadSite]:
        side = model.image_size // model.patch_size
        for number, block in enumerate(self.blocks(model)):
            name, layer = f"{block.name}.self_attention", model.get_submodule(block.name)
            if type(layer) is not EncoderBlock:
                raise UserError(
                    f"{name}: its block is a {type(layer).__name__}, expected torchvision's "
                    "EncoderBlock."
                )
            attention = _plain(name, layer.self_attention)
            tokens: dict[str, Any] = {"grid": (side, side), "prefix_tokens": 1, "class_token": True}
            pixels = (float(model.patch_size),) * 2
            yield HeadSite(
                name, 0, number, attention.num_heads, attention.head_dim, pixels=pixels, **tokens
            )

    def blocks(self, model: Any) -> Iterator[Block]:
        return blocks_in(model, "encoder.layers", lambda _: "ln_2")

    def segments(self, model: Any) -> Segments | None:
        if other_forward(model, VisionTransformer):
            return None

        def stem(images: Tensor) -> Tensor:
            x = model._process_input(images)
            x = torch.cat([model.class_token.expand(x.shape[0], -1, -1), x], dim=1)
            return model.encoder.dropout(x + model.encoder.pos_embedding)

        return Segments(
            stem, tuple(model.encoder.layers), tail=lambda x: model.heads(model.encoder.ln(x)[:, 0])
        )

    def patches(self, embedded: Tensor) -> Tensor:
        return embedded.flatten(2).mT

    def input_spec(self, model: Any) -> dict[str, Any]:
        return {"size": (model.image_size,) * 2, **IMAGENET}

    def colours(self, model: Any) -> Reading:
        source = "ImageNet's, as of torchvision's weights"
        return colours_read(IMAGENET["mean"], IMAGENET["std"], source)


class Encoder(MultiHead):
    """Any nn.TransformerEncoder, usually inside a model of your own.

    Its input is a line of embedded tokens.
    """

    title = "torch TransformerEncoder"
    model, head = nn.TransformerEncoder, None

    def sites(self, model: Any) -> Iterator[HeadSite]:
        for number, layer in enumerate(model.layers):
            name = f"layers.{number}.self_attn"
            if type(layer) is not nn.TransformerEncoderLayer:
                raise UserError(
                    f"{name}: its layer is a {type(layer).__name__}, expected "
                    "nn.TransformerEncoderLayer."
                )
            attention = _plain(name, layer.self_attn)
            if not attention.batch_first:
                raise UserError(
                    f"{name}: expected batch_first=True, got False. Make the layers with "
                    "batch_first=True; weights "
                    f"stay the same."
                )
            yield HeadSite(name, 0, number, attention.num_heads, attention.head_dim, line=True)

    def blocks(self, model: Any) -> Iterator[Block]:
        # post-norm layers have no norm before the MLP
        return blocks_in(model, "layers", lambda layer: "norm2" if layer.norm_first else "linear1")

    def prepare(self, model: Any) -> None:
        super().prepare(model)
        model.use_nested_tensor = False  # nested tensors need torch's inference kernels

    def stem(self, model: Any) -> nn.Module:
        raise UserError(
            "a TransformerEncoder takes embedded tokens; it does not contain the embedding."
        )

    def input_spec(self, model: Any) -> dict[str, Any]:
        raise UserError(
            "a TransformerEncoder takes embedded tokens, not images; its embedding knows the size."
        )
