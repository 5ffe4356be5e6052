"""timm's Swin Transformer v1: windows (see windowed.py) and a table of relative position biases, a column per head."""

from collections.abc import Callable, Sequence
from typing import Any

from timm.models.swin_transformer import SwinTransformer, SwinTransformerStage, WindowAttention
from torch import Tensor, nn

from mhprobe.backbones.base import DirectPath
from mhprobe.backbones.parts.attention import NoHeads, keep_channels, linear_pool, other_forward
from mhprobe.backbones.parts.windowed import Windowed
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
        for layer in model.layers:
            merges = not isinstance(layer.downsample, nn.Identity)
            between += [layer.downsample if merges else None, *[None] * (len(layer.blocks) - 1)]
        head, grid = model.head, tuple(model.layers[-1].blocks[-1].input_resolution)
        return DirectPath(
            between=tuple(between),
            norm=model.norm,
            pool=lambda x: head.global_pool(x.unflatten(1, grid)),
            head=lambda x: head.flatten(head.fc(head.drop(x))),
        )
