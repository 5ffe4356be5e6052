"""A ViT or a Swin of timm's whose heads' weights are read and written.

Shapes: C channels of the stream, D head width, H heads of a site, T tokens, B images, K classes.
"""

import copy
from collections.abc import Sequence
from typing import Any

import timm
import torch
from torch import Tensor, nn

from mhprobe.backbones import layout_of


class Opened:
    """A model in eval mode, of ``family`` "vit" or "swin", whose heads are read and written."""

    def __init__(self, family: str, model: nn.Module) -> None:
        self.family, self.layout = family, layout_of(model)
        self.model: Any = model

    def site(self, number: int) -> Any:
        return self.layout.sites[number]

    def widths(self) -> list[int]:
        """C in each stage."""
        if self.family == "vit":
            return [self.model.embed_dim]
        return [layer.blocks[0].norm1.normalized_shape[0] for layer in self.model.layers]

    def _block(self, site: int) -> Any:
        return self.model.get_submodule(self.site(site).name.rpartition(".")[0])

    def _views(self, site: int, head: int) -> dict[str, Tensor]:
        """Views of the parameters of a head, the head's channels first."""
        attention = self._block(site).attn
        width = self.site(site).head_dim
        span = slice(head * width, (head + 1) * width)
        views = {"output": attention.proj.weight.mT[span]}
        for number, name in enumerate(("query", "key", "value")):
            views |= {name: attention.qkv.weight.chunk(3)[number][span]}
            views |= {f"{name}_bias": attention.qkv.bias.chunk(3)[number][span]}
        if self.family == "swin":
            views["offsets"] = attention.relative_position_bias_table[:, head]
        return views

    @torch.no_grad()
    def write(self, site: int, head: int, **parts: Tensor) -> None:
        """Set parameters of a head. query, key, value: (up to D, C). query_bias, key_bias, value_bias: (up to D,).

        output: (up to D, C), the writes of its channels. offsets: of a Swin, added to logits, by
        ``offset``.
        """
        views = self._views(site, head)
        for name, part in parts.items():
            views[name].zero_()[: len(part)] = part

    @torch.no_grad()
    def parts(self, site: int, head: int) -> dict[str, Tensor]:
        """Return the arguments of ``write`` as they are."""
        return {name: view.clone() for name, view in self._views(site, head).items()}

    def offset(self, site: int, down: int, across: int) -> int:
        """Index among a Swin head's ``offsets`` of the token so many rows and columns away."""
        high, wide = self._block(site).attn.window_size
        return (high - 1 - down) * (2 * wide - 1) + (wide - 1 - across)

    def mlp(self, site: int) -> tuple[nn.Linear, nn.Linear]:
        """The two layers of the block's MLP."""
        mlp = self._block(site).mlp
        return mlp.fc1, mlp.fc2

    @torch.no_grad()
    def around_norm(self, site: int, images: Tensor, name: str = "norm1") -> tuple[Tensor, Tensor]:
        """The input and output, (B, T, C) each in raster order, of a norm of the site's block: "norm1" or "norm2"."""
        seen: list[Tensor] = []
        norm = getattr(self._block(site), name)
        with norm.register_forward_hook(lambda _, args, out: seen.extend((args[0], out))):
            self.model(images)
        before, after = (part.flatten(1, -2) for part in seen)
        return before, after

    @torch.no_grad()
    def write_of(self, site: int, head: int, before: Tensor) -> Tensor:
        """(B, T, C) what this head alone adds to the stream ``before`` (B, T, C), in raster order."""
        alone = copy.deepcopy(self._block(site))
        of_heads = alone.attn.proj.weight.unflatten(1, (-1, self.site(site).head_dim))
        of_heads[:, :head], of_heads[:, head + 1 :] = 0, 0
        alone.attn.proj.bias.zero_()
        if self.family == "vit":
            return alone.attn(alone.norm1(before))
        return alone._attn(alone.norm1(before.unflatten(1, self.site(site).grid))).flatten(1, 2)

    @torch.no_grad()
    def logits(self, images: Tensor, without: Sequence[tuple[int, int]] = ()) -> Tensor:
        """(B, K), with the columns of W_O of some heads (site, head) set to zero."""
        opened = Opened(self.family, copy.deepcopy(self.model)) if without else self
        for site, head in without:
            opened._views(site, head)["output"].zero_()
        return opened.model(images)


_SIZES: dict[str, dict[str, Any]] = {
    "vit": dict(model_name="vit_tiny_patch16_224", embed_dim=128, depth=4, num_heads=8),
    "swin": dict(
        model_name="swin_tiny_patch4_window7_224",
        window_size=4,
        embed_dim=96,
        depths=(2, 2),
        num_heads=(6, 12),
    ),
}


class Blank(Opened):
    """A model whose blocks do nothing until heads are written: norms only normalise, all other parameters are zero."""

    def __init__(self, family: str, grid: int, patch: int, classes: int) -> None:
        sizes: dict[str, Any] = dict(
            img_size=grid * patch, patch_size=patch, num_classes=classes, mlp_ratio=1.0
        )
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
