"""What the heads of the first block read from a patch, as kernels over its pixels.

The first block sees embedded patches, so the value map of a head, after the embedding's convolution, is a linear map
from the pixels of a patch to the head's outputs. Its right singular vectors of largest singular value are the pixel
patterns that a head passes on most. The norm before the block is left out: it centres and scales, for all heads alike.

Shapes: H heads, D head width, C channels, P pixels of a patch times 3 colours, N kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mhprobe.backbones.patches import patch_convolution
from mhprobe.recording.record import record
from mhprobe.report import tables
from mhprobe.report.figures import kernels as figure
from mhprobe.report.report import Result
from mhprobe.studies.panels.material import Material


def kernels(material: Material, count: int = 6) -> dict[str, Result]:
    """The ``count`` strongest kernels of each head of the first block.

    UserError for an embedding that is no single convolution (a convolutional stem): its kernels are not of pixels.
    Table: head, kernel, strength (its singular value), share (of the squared strengths of the head).
    """
    model, data = material.model, material.data
    convolution = patch_convolution(model.backbone)  # type: ignore[arg-type]
    (batch,) = data.batches("test", model.device, images=torch.tensor([0]))
    weights = record(model, batch.images, needs={"weights"}).need("weights", "kernels")
    pixels = convolution.weight.detach().double().cpu()  # (C, 3, height, width)
    strength, patterns = strongest(weights[0].value.double().cpu(), pixels, count)
    whole = (weights[0].value.double().cpu() @ pixels.flatten(1)).square().sum((1, 2))
    rows: list[dict[str, Any]] = [
        {"head": head, "kernel": number, "strength": value, "share": value**2 / whole[head].item()}
        for head, values in enumerate(strength.tolist())
        for number, value in enumerate(values)
    ]
    share = strength.square() / whole[:, None]
    return {"kernels": Result(tables.from_rows(rows), figure.draw(patterns, share))}


def strongest(value: Tensor, pixels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(H, D, C) value maps and (C, 3, h, w) embedding -> (H, N) singular values and (H, N, 3, h, w) patterns.

    A pattern has no sign of its own: its largest entry is positive.
    """
    maps = value @ pixels.flatten(1)  # (H, D, P)
    _, strength, patterns = torch.linalg.svd(maps, full_matrices=False)
    strength, patterns = strength[:, :count], patterns[:, :count]
    sign = patterns.gather(-1, patterns.abs().argmax(-1, keepdim=True)).sign()
    return strength, (patterns * sign).unflatten(-1, pixels.shape[1:])
