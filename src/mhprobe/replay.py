"""Logits under many head masks, without computing twice what the masks leave as it is.

Shapes: M masks, A heads, B images, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mhprobe.gates import gates_of


def masked_logits(model: nn.Module, images: Tensor, masks: Tensor) -> Tensor:
    """(M, B, C) logits of ``model`` in eval mode under ``masks`` (M, A) bool, True = head off.

    Equal to switching the gates and running the whole model, mask by mask.
    """
    gates, training = gates_of(model), model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = []
            for mask in masks:
                with gates.masked(mask):
                    logits.append(model(images))
    finally:
        model.train(training)
    return torch.stack(logits)
