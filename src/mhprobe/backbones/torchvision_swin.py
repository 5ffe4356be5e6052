"""torchvision's SwinTransformer, v1 and v2: swin_t, swin_v2_t and their like.

Their attention is one function: it multiplies by W_O without calling ``proj``. So its softmax and its last product are
intercepted while it runs (torch.overrides); none of its code is copied. The grid depends on the size of the images.
That is taken to be ``model.image_size``, or else the size that torchvision's weights were made for.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torchvision.models.swin_transformer import (
    PatchMerging,
    PatchMergingV2,
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
    SwinTransformer,
    SwinTransformerBlock,
    SwinTransformerBlockV2,
)

from mhprobe.backbones.base import Family, Seam, Segments, submodule
from mhprobe.backbones.multihead import IMAGENET
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite, Windows


class _Met(TorchFunctionMode):
    """While it is on, weights and heads pass ``attention.softmaxed`` and ``attention.joined``."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and args[1] is self.attention.proj.weight:
            args = (self.attention.joined(args[0]), *args[1:])
        found = func(*args, **(kwargs or {}))
        return self.attention.softmaxed(found) if func is F.softmax else found


class _Opened:
    """Attention with places for gates and taps."""

    def forward(self, x: Tensor) -> Tensor:
        with _Met(self):
            return super().forward(x)  # type: ignore[misc]


class OpenV1(_Opened, ShiftedWindowAttention): ...


class OpenV2(_Opened, ShiftedWindowAttentionV2): ...


_OPEN = {ShiftedWindowAttention: OpenV1, ShiftedWindowAttentionV2: OpenV2}
_BLOCKS = {SwinTransformerBlock: "norm2", SwinTransformerBlockV2: "mlp"}  # what the stream enters after attention


class TorchvisionSwin(Family):
    title = "torchvision SwinTransformer (v1 and v2)"
    model = SwinTransformer

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        embed = model.features[0][0]
        grid = tuple(side // step for side, step in zip(_size(model), embed.stride, strict=True))
        number = -1
        for stage, (place, layers) in enumerate(_stages(model)):
            for i, block in enumerate(layers):
                number, name = number + 1, f"features.{place}.{i}.attn"
                if type(block) not in _BLOCKS or type(block.attn) not in (*_OPEN, *_OPEN.values()):
                    raise UserError(f"{name} is a {type(block.attn).__name__}, expected torchvision's own attention.")
                attn = block.attn
                window = tuple(attn.window_size)
                shift = tuple(0 if w >= s + -s % w else by for w, s, by in zip(window, grid, attn.shift_size))  # noqa: B905
                yield HeadSite(
                    name=name,
                    stage=stage,
                    block=number,
                    num_heads=attn.num_heads,
                    head_dim=attn.proj.in_features // attn.num_heads,
                    windows=Windows(grid=grid, size=window, shift=shift, pad_first=True),  # type: ignore[arg-type]
                    grid=grid,
                    pixels=(embed.stride[0] * 2.0**stage, embed.stride[1] * 2.0**stage),
                    pooled=True,
                )
            grid = tuple(-(-side // 2) for side in grid)

    @classmethod
    def blocks(cls, model: Any) -> Iterator[Block]:
        for stage, (place, layers) in enumerate(_stages(model)):
            for i, block in enumerate(layers):
                name = f"features.{place}.{i}"
                yield Block(name=name, stage=stage, middle=f"{name}.{_BLOCKS[type(block)]}")

    @classmethod
    def prepare(cls, model: Any) -> None:
        for site in cls.sites(model):
            attention: Any = submodule(model, site)
            if type(attention) in _OPEN:
                attention.__class__ = _OPEN[type(attention)]
                attention.joined, attention.softmaxed = nn.Identity(), nn.Identity()

    @classmethod
    def seam(cls, model: Any, site: HeadSite) -> Seam:
        attention: Any = submodule(model, site)
        windows: Any = site.windows

        def behind(heads: Tensor) -> Tensor:
            rows = F.linear(attention.joined(heads), attention.proj.weight, attention.proj.bias)
            tokens = rows.reshape(-1, math.prod(windows.padded), rows.shape[-1])[:, windows.rows().to(rows.device)]
            return tokens.unflatten(1, windows.grid)

        return Seam(attention, attention.joined, attention.proj, attention.softmaxed, behind=behind)

    @staticmethod
    def segments(model: Any) -> Segments | None:
        if type(model).forward is not SwinTransformer.forward:
            return None
        blocks: list[Any] = []
        before: list[nn.Module] = []
        for part in list(model.features)[1:]:
            if isinstance(part, PatchMerging | PatchMergingV2):
                before = [part]
                continue
            for block in part:
                blocks.append(nn.Sequential(*before, block))
                before = []
        tail = nn.Sequential(model.norm, model.permute, model.avgpool, model.flatten, model.head)
        return Segments(stem=model.features[0], blocks=tuple(blocks), tail=tail)

    @classmethod
    def stem(cls, model: Any) -> nn.Module:
        return model.features[0]

    @classmethod
    def input_spec(cls, model: Any) -> dict[str, Any]:
        return {"size": _size(model), **IMAGENET}

    @classmethod
    def classifier(cls, model: Any) -> nn.Module:
        return model.head

    @classmethod
    def unprunable(cls, model: Any) -> str:
        return (
            f"{cls.title}: torchvision's window attention takes its heads' width from its input's, so it fails "
            f"without one. They can "
            "still be gated, measured and masked (mhprobe.measure, mhprobe.masking_curve)."
        )


def _stages(model: Any) -> list[tuple[int, Any]]:
    return [(place, part) for place, part in enumerate(model.features) if place % 2]


def _size(model: Any) -> tuple[int, int]:
    """Of images: 32 windows of the first stage across, unless the model says another."""
    side = getattr(model, "image_size", None) or 32 * model.features[1][0].attn.window_size[0]
    return (side, side) if isinstance(side, int) else tuple(side)
