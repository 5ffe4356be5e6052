"""Fourier transforms of what heads write, as explicit sums over rows and columns of the token grid."""

from __future__ import annotations

import cmath
import math

import torch
from torch import Tensor, nn


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over images and channels of ln(amplitude + 1e-6) at the highest diagonal frequency, minus at 0."""
    result = []
    for name, heads in sites:
        written = writes(model, images, name, heads)  # (heads, images, channels, height, width)
        side = written.shape[-1]
        highest = side // 2 - 1 if side % 2 == 0 else side // 2
        for maps in written:
            high, zero = log_amplitude(maps, highest), log_amplitude(maps, 0)
            result.append(high - zero)
    return torch.stack(result)


def log_amplitude(maps: Tensor, k: int) -> Tensor:
    """(images, channels, side, side): mean of ln(|sum of map * wave| + 1e-6), the wave k cycles down and across."""
    side = maps.shape[-1]
    total = torch.zeros(maps.shape[:2], dtype=torch.complex128)
    for row in range(side):
        for column in range(side):
            total += maps[:, :, row, column] * cmath.exp(-2j * math.pi * k * (row + column) / side)
    return (total.abs() + 1e-6).log().mean()


def writes(model: nn.Module, images: Tensor, name: str, heads: int) -> Tensor:
    """What each head adds to the stream, as maps: the block's attention branch with the other heads' rows at zero."""
    attention, block = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
    inputs, maps = {}, []
    handle = block.register_forward_pre_hook(lambda _, args: inputs.update(x=args[0]))
    with torch.no_grad():
        model(images)
    handle.remove()
    for head in [*range(heads), None]:

        def only(_module, args, head=head):
            z = args[0].unflatten(-1, (heads, -1)).clone()
            for other in range(heads):
                if other != head:
                    z[..., other, :] = 0
            return (z.flatten(-2),)

        handle = attention.proj.register_forward_pre_hook(only)
        with torch.no_grad():
            x = inputs["x"]
            if hasattr(block, "_attn"):  # Swin: the shift, the windows and back
                added = block._attn(block.norm1(x))
            else:
                added = block.ls1(block.attn(block.norm1(x)))[:, model.num_prefix_tokens :]
                side = math.isqrt(added.shape[1])
                added = added.unflatten(1, (side, side))
        handle.remove()
        maps.append(added.permute(0, 3, 1, 2))
    *each, bias = maps  # with all heads silent only the bias is left
    return torch.stack([one - bias for one in each])
