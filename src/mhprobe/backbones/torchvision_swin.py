"""torchvision's SwinTransformer, v1 and v2: swin_t, swin_v2_t and their like.

Attention is one function that multiplies by W_O without calling ``proj``: its softmax and its last
product are intercepted while it runs (torch.overrides).
"""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torchvision.models.swin_transformer import (
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
    SwinTransformer,
    SwinTransformerBlock,
    SwinTransformerBlockV2,
)

from mhprobe.backbones.base import Family, Seam, Segments, blocks_in, submodule
from mhprobe.backbones.multihead import IMAGENET
from mhprobe.backbones.parts.timm_models import colours_read
from mhprobe.backbones.parts.units import other_forward, width_of
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite, Windows
from mhprobe.io.readings import Reading


class _Met(TorchFunctionMode):
    """Lead attention weights through ``attention.softmaxed``, and heads through ``attention.joined``, while active."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and args[1] is self.attention.proj.weight:
            args = (self.attention.joined(args[0]), *args[1:])
        result = func(*args, **(kwargs or {}))
        return self.attention.softmaxed(result) if func is F.softmax else result


class _Opened:
    def forward(self, x: Tensor) -> Tensor:
        with _Met(self):
            return super().forward(x)  # type: ignore[misc]


class OpenV1(_Opened, ShiftedWindowAttention): ...


class OpenV2(_Opened, ShiftedWindowAttentionV2): ...


_OPEN = {ShiftedWindowAttention: OpenV1, ShiftedWindowAttentionV2: OpenV2}
_BLOCKS = {
    SwinTransformerBlock: "norm2",
    SwinTransformerBlockV2: "mlp",
}  # what the stream enters after attention


class TorchvisionSwin(Family):
    title = "torchvision SwinTransformer (v1 and v2)"
    model, embedding, head = SwinTransformer, "features.0", "head"
    whole = "torchvision's window attention takes its heads' width from its input's, so it fails without one"

    def sites(self, model: Any) -> Iterator[HeadSite]:
        step = model.features[0][0].stride
        for number, about in enumerate(self.blocks(model)):
            block: Any = model.get_submodule(about.name)
            name, attn, scale = f"{about.name}.attn", block.attn, 2**about.stage
            if type(block) not in _BLOCKS or type(attn) not in (*_OPEN, *_OPEN.values()):
                raise UserError(
                    f"{name} is a {type(attn).__name__}, expected torchvision's own attention."
                )
            grid = tuple(
                -(-(side // by) // scale) for side, by in zip(_size(model), step, strict=True)
            )
            window = tuple(attn.window_size)
            shift = tuple(
                0 if w >= s + -s % w else by
                for w, s, by in zip(window, grid, attn.shift_size, strict=False)
            )
            yield HeadSite(
                *(
                    name,
                    about.stage,
                    number,
                    attn.num_heads,
                    width_of(name, attn.proj, attn.num_heads),
                ),
                windows=Windows(grid=grid, size=window, shift=shift, pad_first=True),  # type: ignore[arg-type]
                grid=grid,
                pixels=(float(step[0] * scale), float(step[1] * scale)),
                pooled=True,
            )

    def blocks(self, model: Any) -> Iterator[Block]:
        # every second feature merges tokens
        for stage, place in enumerate(range(1, len(model.features), 2)):
            yield from blocks_in(
                model, f"features.{place}", lambda block: _BLOCKS.get(type(block), ""), stage
            )

    def prepare(self, model: Any) -> None:
        for site in self.sites(model):
            attention: Any = submodule(model, site)
            if type(attention) in _OPEN:
                attention.__class__ = _OPEN[type(attention)]
                attention.joined, attention.softmaxed = nn.Identity(), nn.Identity()

    def seam(self, model: Any, site: HeadSite) -> Seam:
        attention: Any = submodule(model, site)
        windows: Any = site.windows

        def behind(heads: Tensor) -> Tensor:
            rows = F.linear(attention.joined(heads), attention.proj.weight, attention.proj.bias)
            tokens = rows.reshape(-1, math.prod(windows.padded), rows.shape[-1])[
                :, windows.rows().to(rows.device)
            ]
            return tokens.unflatten(1, windows.grid)

        return Seam(attention, attention.joined, attention.proj, attention.softmaxed, behind=behind)

    def segments(self, model: Any) -> Segments | None:
        if other_forward(model, SwinTransformer):
            return None
        blocks = [  # patch merging stands before a later stage's first block
            nn.Sequential(model.features[place - 1], block) if i == 0 < place - 1 else block
            for place in range(1, len(model.features), 2)
            for i, block in enumerate(model.features[place])
        ]
        tail = nn.Sequential(model.norm, model.permute, model.avgpool, model.flatten, model.head)
        return Segments(stem=model.features[0], blocks=tuple(blocks), tail=tail)

    def input_spec(self, model: Any) -> dict[str, Any]:
        return {"size": _size(model), **IMAGENET}

    def colours(self, model: Any) -> Reading:
        source = "ImageNet's, as of torchvision's weights"
        return colours_read(IMAGENET["mean"], IMAGENET["std"], source)


def _size(model: Any) -> tuple[int, int]:
    """Size of the images: 32 windows of the first stage across, unless the model has an ``image_size``."""
    side = getattr(model, "image_size", None) or 32 * model.features[1][0].attn.window_size[0]
    return (side, side) if isinstance(side, int) else tuple(side)
