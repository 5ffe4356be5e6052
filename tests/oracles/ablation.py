"""Predictions and losses with some heads' columns of the output projection at zero: no gate, one image at a time."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


def without(model: nn.Module, sites: list[tuple[str, int]], heads: set[int]) -> nn.Module:
    """A copy of the model whose heads (numbered through all sites) write nothing."""
    model = copy.deepcopy(model)
    number = 0
    for name, count in sites:
        weight = model.get_submodule(name).proj.weight.data
        width = weight.shape[1] // count
        for head in range(count):
            if number in heads:
                weight[:, head * width : (head + 1) * width] = 0
            number += 1
    return model


def outcome(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[list[bool], list[float]]:
    """Per image: is the largest logit the label's, and what is the cross-entropy in nats."""
    right, loss = [], []
    for image, label in zip(images, labels.tolist(), strict=True):
        with torch.no_grad():
            logits = model(image[None])[0].tolist()
        right.append(max(range(len(logits)), key=logits.__getitem__) == label)
        top = max(logits)
        loss.append(top + math.log(sum(math.exp(x - top) for x in logits)) - logits[label])
    return right, loss
