"""Attention and MLPs of timm cut down to some of their heads and neurons.

This file needs torch and timm alone.

Where timm's own forward needs all heads, ``narrowed`` gives a module of this file that computes the
same:

    EVA, DINOv3, mixed rotary positions    ``Rotary``: timm's AttentionRope, with positions of its own heads
    BEiT, relative positions, Swin V2      ``Biased``: timm's Attention, which takes biases of positions as a mask
    attention without heads                ``NoHeads``

Keys that had no bias get one of zero. A copy of this file lies beside a pruned file, whose JSON
names these modules.
Shapes: B images (or windows), T tokens, H heads, D head width, C channels of the residual stream.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import Attention, AttentionRope, GluMlp, Mlp, RelPosBias, RelPosMlp, SwiGLU
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from timm.models.swin_transformer_v2 import WindowAttention as CosineAttention
from timm.models.vision_transformer_relpos import RelPosAttention
from torch import Tensor, nn
from torch.nn import functional as F

TAKEN_OVER = (  # attributes that a module of this file takes from timm's
    "qkv",
    "q_proj",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
    "gate",
    "attn_drop",
    "proj",
    "proj_drop",
    "rel_pos",
    "fused_attn",
    "num_prefix_tokens",
    "rotate_half",
)
# the first linear layers of an MLP: each has a row, or one in each half, for a neuron
FIRST: dict[type[nn.Module], tuple[str, ...]] = {
    Mlp: ("fc1",),
    GluMlp: ("fc1",),
    SwiGLU: ("fc1_g", "fc1_x"),
}


class NoHeads(nn.Module):
    """Attention that has lost all heads: every token gets the bias of the projection."""

    def __init__(self, proj: nn.Module) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        return self.proj(x[..., :0])


class Biased(Attention):
    """Attention with biases of positions: ``rel_pos``, or those of all blocks, of which ``heads`` are its own."""

    rel_pos: Any
    heads: list[int]

    def forward(self, x: Tensor, mask: Tensor | None = None, **shared: Tensor | None) -> Tensor:  # type: ignore[override]
        """Attend.

        mask: (windows of an image, T, T). shared: biases (..., H of the whole network, T, T).
        """
        biases = [] if self.rel_pos is None else [self.rel_pos.get_bias()]
        biases += [bias[..., self.heads, :, :] for bias in shared.values() if bias is not None]
        if mask is not None:
            biases.append(mask.repeat(x.shape[0] // mask.shape[0], 1, 1)[:, None])
        return super().forward(x, attn_mask=sum(biases) if biases else None)


class Rotary(AttentionRope):
    """Attention with rotary positions.

    heads: which of positions that differ by head are of its heads.
    """

    heads: list[int]

    def forward(self, x: Tensor, rope: Tensor | None = None, **options: Any) -> Tensor:  # type: ignore[override]
        """Attend with rotary positions.

        rope: (T, ...) for all heads, or (..., H of the whole network, T, ...).
        """
        if rope is not None and rope.ndim > 2 and rope.shape[-3] > 1:
            rope = rope[..., self.heads, :, :]
        return super().forward(x, rope=rope, **options)


class UnitLength(nn.Module):
    """Queries or keys of length one.

    factor: (H, 1, 1), its logarithm, which multiplies queries; None for keys.
    """

    def __init__(self, factor: nn.Parameter | None = None, width: int = 1) -> None:
        super().__init__()
        self.factor, self.width = factor, width

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(x, dim=-1)
        if self.factor is None:
            return x
        # timm's bound; attention divides by the root of the width
        return x * (self.factor.clamp(max=math.log(100)).exp() * self.width**0.5)


STANDS_IN = (NoHeads, Biased, Rotary)


def narrowed(module: Any, keep: Sequence[int], by_head: bool = False) -> Any:
    """Return the module with these of its heads, or neurons, in this order; the module itself if it keeps all.

    The given module may be changed. by_head: each head has rotary positions of its own (timm's
    ``rope_mixed``).
    """
    if len(keep) == (module.fc2.in_features if type(module) in FIRST else module.num_heads):
        return module
    if type(module) in FIRST:
        return _of_neurons(module, torch.tensor(keep, dtype=torch.long))
    module = _holding_fewer(module, by_head)
    heads, width = module.num_heads, module.proj.in_features // module.num_heads
    channels = torch.arange(heads * width).view(heads, width)[list(keep)].flatten()
    keep_columns(module.proj, channels)
    if not keep:
        return NoHeads(module.proj)
    if module.qkv is not None:
        keep_rows(module.qkv, torch.cat([part * heads * width + channels for part in range(3)]))
    for name in (
        "q_proj",
        "k_proj",
        "v_proj",
        "gate",
    ):  # the gate is a sigmoid per channel of the heads' outputs
        if (layer := getattr(module, name, None)) is not None:
            keep_rows(layer, channels)
    module.num_heads = len(keep)
    if isinstance(module, Attention | AttentionRope):
        module.attn_dim = len(channels)
    if isinstance(module, AttentionRope):
        module.num_kv_heads, module.kv_dim = len(keep), len(channels)
    if isinstance(module, Biased | Rotary):
        module.heads = [module.heads[head] for head in keep]
    _keep_positions(module, torch.tensor(keep))
    return module


def _keep_positions(module: Any, heads: Tensor) -> None:
    """Keep the biases of positions, and factors of queries, of these heads."""
    positions = getattr(module, "rel_pos", None)
    if isinstance(positions, RelPosMlp):
        last = [layer for layer in positions.mlp.modules() if isinstance(layer, nn.Linear)][-1]
        keep_rows(last, heads)
        positions.num_heads = len(heads)
    tabled = module if positions is None else positions
    if (table := getattr(tabled, "relative_position_bias_table", None)) is not None:
        tabled.relative_position_bias_table = _selected(table, 1, heads)
    if positions is not None:
        positions.bias_shape = (*positions.bias_shape[:2], len(heads))
    norm = getattr(module, "q_norm", None)
    if isinstance(norm, UnitLength):
        norm.factor = _selected(norm.factor, 0, heads)  # type: ignore[arg-type]


def _holding_fewer(old: Any, by_head: bool) -> Any:
    """Return attention of the same outputs whose forward can hold fewer heads: ``old`` itself where its own can."""
    rotary = isinstance(old, EvaAttention) or (by_head and type(old) is AttentionRope)
    if not rotary and not isinstance(old, BeitAttention | CosineAttention | RelPosAttention):
        return old
    width = old.proj.in_features // old.num_heads
    with torch.device("meta"):
        new: Any = (Rotary if rotary else Biased)(
            old.proj.out_features, old.num_heads, attn_head_dim=width
        )
    new.rel_pos, new.heads = None, list(range(old.num_heads))
    for name in TAKEN_OVER:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    if getattr(old, "q_bias", None) is not None:
        bias = torch.cat([old.q_bias, torch.zeros_like(old.q_bias), old.v_bias]).detach()
        new.qkv.bias = nn.Parameter(bias, old.q_bias.requires_grad)
    if hasattr(old, "cpb_mlp"):  # Swin V2
        new.q_norm, new.k_norm = UnitLength(old.logit_scale, width), UnitLength()
        positions: Any = RelPosMlp(old.window_size, old.num_heads, mode="swin").to(old.proj.weight)
        positions.mlp, positions.rel_coords_log = (
            old.cpb_mlp,
            old.relative_coords_table[0],
        )  # timm's has dropout
        new.rel_pos = positions
    elif getattr(old, "relative_position_bias_table", None) is not None:
        new.rel_pos = RelPosBias(old.window_size, old.num_heads, prefix_tokens=1).to(
            old.proj.weight
        )
        new.rel_pos.relative_position_bias_table = old.relative_position_bias_table
    return new.train(old.training)


def _of_neurons(mlp: Any, channels: Tensor) -> Any:
    """Cut an MLP down to these neurons, in place. An MLP without any gives the bias of ``fc2``."""
    count = mlp.fc2.in_features
    for name in FIRST[type(mlp)]:
        first = getattr(mlp, name)
        keep_rows(
            first, torch.cat([channels + start for start in range(0, first.out_features, count)])
        )
    keep_columns(mlp.fc2, channels)
    return mlp


def keep_rows(linear: nn.Linear, rows: Tensor) -> None:
    """Keep these outputs of a linear layer."""
    linear.weight = _selected(linear.weight, 0, rows)
    if linear.bias is not None:
        linear.bias = _selected(linear.bias, 0, rows)
    linear.out_features = len(rows)


def keep_columns(linear: nn.Linear, columns: Tensor) -> None:
    """Keep these inputs of a linear layer."""
    linear.weight = _selected(linear.weight, 1, columns)
    linear.in_features = len(columns)


def _selected(parameter: Tensor, axis: int, index: Tensor) -> nn.Parameter:
    index = index.to(parameter.device)
    return nn.Parameter(
        parameter.detach().index_select(axis, index), requires_grad=parameter.requires_grad
    )


def fix_position_biases(model: nn.Module) -> None:
    """Make tables of relative positions plain tensors, in place, so that graphs of parameters leave them out.

    Torch-Pruning 1.6.1 counts the channels of a head against the table's columns, one a head, and
    refuses every group.
    """
    for part in model.modules():
        if isinstance(table := getattr(part, "relative_position_bias_table", None), nn.Parameter):
            del part.relative_position_bias_table
            part.relative_position_bias_table = table.detach()
