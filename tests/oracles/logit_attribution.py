"""Each head's write, alone, through the model's own tail, with norms that divide by the deviations they had."""

from __future__ import annotations

import copy

import torch
from timm.models.swin_transformer import window_partition
from torch import Tensor, nn


class Held(nn.Module):
    """A LayerNorm that keeps the mean square it saw first."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm, self.deviation = norm, None

    def forward(self, x: Tensor) -> Tensor:
        if self.deviation is None:
            self.deviation = torch.sqrt(x.var(-1, keepdim=True, correction=0) + self.norm.eps)
        return (x - x.mean(-1, keepdim=True)) / self.deviation * self.norm.weight + self.norm.bias


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean of the write into the label's logit above the mean logit."""
    rows = [attributions(model, image[None], sites) for image in images]
    own = [row[:, label] - row.mean(1) for row, label in zip(rows, labels, strict=True)]
    return torch.stack(own).mean(0)


@torch.no_grad()
def attributions(model: nn.Module, image: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, C) of one image."""
    held = copy.deepcopy(model)
    held.norm = Held(held.norm)
    swin = hasattr(held, "layers")
    if swin:
        for layer in held.layers[1:]:
            layer.downsample.norm = Held(layer.downsample.norm)
    inputs = {}
    handles = [
        held.get_submodule(name).proj.register_forward_pre_hook(
            lambda _, args, name=name: inputs.update({name: args[0]})
        )
        for name, _ in sites
    ]
    held(image)  # every norm that is held learns its deviation
    for handle in handles:
        handle.remove()
    found = []
    for name, heads in sites:
        proj, z = held.get_submodule(name).proj, inputs[name]
        width = z.shape[-1] // heads
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            write = z[..., part] @ proj.weight[:, part].T
            through = through_swin if swin else through_vit
            found.append(through(held, name, write) - through(held, name, write * 0))
    return torch.stack(found)


def through_vit(held: nn.Module, _name: str, write: Tensor) -> Tensor:
    return held.forward_head(held.norm(write))[0]


def through_swin(held: nn.Module, name: str, write: Tensor) -> Tensor:
    stage, block = int(name.split(".")[1]), held.get_submodule(name.rpartition(".")[0])
    (height, width), (down, across) = block.input_resolution, block.shift_size
    # where each token went: partition an image of numbers as the block does
    number = torch.arange(height * width, dtype=torch.float64).view(1, height, width, 1)
    rows = (
        window_partition(torch.roll(number, (-down, -across), (1, 2)), block.window_size)
        .flatten()
        .long()
    )
    tokens = torch.zeros(height * width, write.shape[-1], dtype=write.dtype)
    tokens[rows] = write.flatten(0, 1)
    x = tokens.view(1, height, width, -1)
    for layer in held.layers[stage + 1 :]:
        x = layer.downsample(x)
    return held.forward_head(held.norm(x))[0]
