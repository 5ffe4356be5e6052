"""timm's Swin Transformer v1: windows (see windowed.py) and a table of relative position biases, a column per head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from timm.models.swin_transformer import SwinTransformer, SwinTransformerStage, WindowAttention
from torch import Tensor, nn

from mhprobe.backbones.base import DirectPath
from mhprobe.backbones.parts import NoHeads, keep_channels, linear_pool, other_forward
from mhprobe.backbones.windowed import Windowed
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite


class Swin(Windowed):
    title = "timm SwinTransformer (Swin v1)"
    model, stage, attention, middle = SwinTransformer, SwinTransformerStage, WindowAttention, "norm2"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, SwinTransformer)

    @classmethod
    def slice_heads(cls, model: Any, site: HeadSite, keep: Sequence[int]) -> None:
        attn = model.get_submodule(site.name)
        keep_channels(attn, site, keep)
        if not keep:
            model.set_submodule(site.name, NoHeads(attn.proj))
            return
        table = attn.relative_position_bias_table
        attn.relative_position_bias_table = nn.Parameter(table.detach()[:, list(keep)].clone(), table.requires_grad)

    @classmethod
    def direct_path(cls, model: Any) -> DirectPath:
        if other_forward(model, SwinTransformer) or any(type(layer) is not cls.stage for layer in model.layers):
            raise UserError(f"logit_attribution: {type(model).__name__} has its own forward, not timm's Swin's.")
        linear_pool(model.head.global_pool.pool_type)
        between: list[Callable[[Tensor], Tensor] | None] = []
        grid: tuple[int, int] = (0, 0)  # of the blocks before
        for layer in model.layers:
            merges = not isinstance(layer.downsample, nn.Identity)
            between += [on_grid(layer.downsample, grid) if merges else None, *[None] * (len(layer.blocks) - 1)]
            grid = tuple(layer.blocks[-1].input_resolution)
        head = model.head
        return DirectPath(
            between=tuple(between),
            norm=model.norm,
            pool=on_grid(head.global_pool, grid),
            head=lambda x: head.flatten(head.fc(head.drop(x))),
        )


def on_grid(step: Callable[[Tensor], Tensor], grid: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """``step`` of (B, height, width, C), for tokens (B, T, C) in raster order; what has a grid is flattened again."""

    def of_tokens(x: Tensor) -> Tensor:
        y = step(x.unflatten(1, grid))
        return y.flatten(1, 2) if y.dim() == 4 else y

    return of_tokens
