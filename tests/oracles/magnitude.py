"""All weights of a head in one list, read from the layers themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) length of the vector of a unit's weights; of an MLP the units are its neurons."""
    found = []
    for name, heads in sites:
        module = model.get_submodule(name)
        for head in range(heads):
            if hasattr(module, "fc2"):
                firsts = [module.fc1_g, module.fc1_x] if hasattr(module, "fc1_g") else [module.fc1]
                rows = [
                    half[head]
                    for first in firsts
                    for half in first.weight.reshape(-1, heads, first.in_features)
                ]
                found.append(
                    torch.cat([*rows, module.fc2.weight[:, head]]).norm()
                    * module.fc2.weight[:, head].any()
                )
                continue
            width = module.proj.in_features // heads
            own = [head * width + channel for channel in range(width)]
            rows = [
                module.qkv.weight[part * heads * width + channel]
                for part in range(3)
                for channel in own
            ]
            writes = any(
                bool(module.proj.weight[:, channel].any()) for channel in own
            )  # else nobody reads its weights
            found.append(
                torch.cat([*rows, *(module.proj.weight[:, channel] for channel in own)]).norm()
                * writes
            )
    return torch.stack(found).detach()
