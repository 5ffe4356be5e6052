"""A trained network that another one learns from: its probabilities are the targets.

Hinton, Vinyals & Dean, Distilling the Knowledge in a Neural Network, 2015, arXiv 1503.02531. The teacher sees the very
images that the student sees, cropped, flipped and mixed alike (Beyer et al., 2022, arXiv 2106.05237).

Shapes: B images, C classes, height x width pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mhprobe.backbones import input_spec
from mhprobe.data.base import InputSpec
from mhprobe.errors import UserError
from mhprobe.weights.checkpoint import load_weights


class Teacher:
    """The network of a weights file, in eval mode and frozen. No module: whoever learns from it does not contain it.

    path: .safetensors with its .json, or a checkpoint. class_names: those of the student. spec: how the images are
    normalised that it will be shown. Raises UserError where the file cannot be loaded or knows other classes.
    """

    def __init__(self, path: str | Path, class_names: Sequence[str], spec: InputSpec) -> None:
        self.model, description = load_weights(path)
        self.model.requires_grad_(False)
        if description["class_names"] != list(class_names):
            raise UserError(
                f"optim.teacher: {path} knows the classes {', '.join(description['class_names'][:3])} ..., the data "
                f"has {', '.join(list(class_names)[:3])} ... Give a network that was trained on the same classes."
            )
        self.theirs, self.ours = InputSpec(**input_spec(self.model)), spec

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, height, width) normalised for the student -> (B, C) logits of the teacher."""
        self.model.to(images.device)
        return self.model(renormalised(images, self.ours, self.theirs)).float()

    def __deepcopy__(self, memo: dict[int, Any]) -> Teacher:
        return self  # it is frozen: a copy of the student learns from the same one


def renormalised(images: Tensor, was: InputSpec, now: InputSpec) -> Tensor:
    """(B, 3, h, w) of one mean, deviation and size -> (B, 3, *now.size) of another."""
    if was == now:
        return images

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=images.device, dtype=images.dtype).view(-1, 1, 1)

    pixels = images * column(was.std) + column(was.mean)
    if tuple(pixels.shape[-2:]) != tuple(now.size):
        pixels = functional.interpolate(pixels, size=now.size, mode="bicubic", antialias=True).clamp_(0, 1)
    return (pixels - column(now.mean)) / column(now.std)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """() how far the student's probabilities are from the teacher's: temperature^2 KL(teacher || student), in nats.

    student, teacher: (B, C) logits, which are divided by ``temperature`` first. 0 where they agree; larger is further.
    The square keeps the gradients' size as the temperature changes (Hinton et al., section 2).
    """
    log_p, log_q = ((logits / temperature).log_softmax(dim=1) for logits in (teacher, student))
    return temperature**2 * functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
