"""What each head adds to the stream: its channels through the projection alone, token by token."""

from __future__ import annotations

import torch
from timm.models.swin_transformer import window_partition
from torch import Tensor, nn


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over tokens and images of |write| / |stream before the block|."""
    found = []
    for name, heads in sites:
        block = model.get_submodule(name.rpartition(".")[0])
        projection = model.get_submodule(name).proj
        seen = {}
        handles = [
            block.register_forward_pre_hook(lambda _, args, seen=seen: seen.update(stream=args[0])),
            projection.register_forward_pre_hook(lambda _, args, seen=seen: seen.update(z=args[0])),
        ]
        with torch.no_grad():
            model(images)
        for handle in handles:
            handle.remove()
        lengths = in_rows_of_attention(block, seen["stream"].norm(dim=-1))
        width = seen["z"].shape[-1] // heads
        for head in range(heads):
            alone = torch.zeros_like(seen["z"])
            alone[..., head * width : (head + 1) * width] = seen["z"][
                ..., head * width : (head + 1) * width
            ]
            write = alone @ projection.weight.T
            found.append((write.norm(dim=-1) / lengths).mean().detach())
    return torch.stack(found)


def in_rows_of_attention(block: nn.Module, lengths: Tensor) -> Tensor:
    """Swin rolls (B, height, width) and cuts it into windows; nothing is padded here."""
    if lengths.dim() == 2:
        return lengths
    down, across = block.shift_size
    rolled = torch.roll(lengths, (-down, -across), (1, 2))
    return window_partition(rolled[..., None], block.window_size).flatten(1)
