"""Kernels over the pixels of a patch that the heads of the first block read.

The embedding's convolution and a head's value map are one linear map from pixels to the head's
outputs. Its right singular vectors of largest singular value are the pixel patterns that a head
passes on most. The norm before the block centres and scales for all heads alike, and is left out.

A stem of several convolutions has a linear map for each image: its slope there. Drawn is the mean
over images at the middle patch; the column ``linear`` is the share of the maps that the mean holds,
1 for a single convolution.

Shapes: B images, H heads, D head width, C channels, k x k pixels that reach a patch, N kernels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones.parts.timm_models import patch_embedding
from mhprobe.framework.questions.material import Material
from mhprobe.recording.record import record
from mhprobe.recording.state import inspecting, usable
from mhprobe.report import tables
from mhprobe.report.figures import maps as figure
from mhprobe.report.result import Result


def kernels(material: Material, count: int = 6, images: int = 200) -> dict[str, Result]:
    """Draw the ``count`` strongest kernels of each head of the first block.

    images: test images over which a stem's slopes are averaged, at most. UserError for an embedding
    that is neither a convolution nor a stem of some. Table: head, kernel, strength (its singular
    value), share (of the squared strengths of the head's mean map), linear (of the squared size of
    the head's maps, that of their mean).
    """
    model = material.model
    batch = material.data.some("test", images, model.device)
    slope, second = slopes_of(patch_embedding(material.backbone), batch.images)
    value = (
        record(model, batch.images[:1], needs={"weights"})
        .need("weights", "kernels")[0]
        .value.double()
        .cpu()
    )
    strength, patterns = strongest_kernels(value, slope, count)
    total = (value @ slope.flatten(1)).square().sum((1, 2))
    linear = total / torch.einsum("hdc,ce,hde->h", value, second, value)
    rows: list[list[Any]] = [
        [head, n, size, size**2 / total[head].item(), linear[head].item()]
        for head, sizes in enumerate(strength.tolist())
        for n, size in enumerate(sizes)
    ]
    table = tables.Table(["head", "kernel", "strength", "share", "linear"], rows)
    share = strength.square() / total[:, None]
    result = Result(table, figure.kernels(patterns, share), of=material.of(images))
    return {
        "kernels": result.saying(
            "strength of a kernel (its singular value)", "the head passes more of it on"
        )
    }


def slopes_of(embedding: nn.Module, images: Tensor, at_once: int = 10) -> tuple[Tensor, Tensor]:
    """(C, 3, k, k) mean slope over images of each channel at the middle patch, (C, C) mean of slope times slope."""
    total = torch.zeros(())
    second = torch.zeros(())
    with inspecting(embedding, gradients=True):
        for part in usable(images).split(at_once):
            pixels = part.detach().clone().requires_grad_()
            maps = embedding(pixels)
            row, column = (side // 2 for side in maps.shape[2:])
            rows = rows_reached(embedding, row)
            columns = rows_reached(embedding, column)
            channels = maps[:, :, row, column].sum(0)  # images do not see each other
            whole = [
                torch.autograd.grad(channel, pixels, retain_graph=True)[0] for channel in channels
            ]
            slope = torch.stack([grad[:, :, rows, columns] for grad in whole], 1)
            flat = slope.double().cpu().flatten(2)  # (B, C, P)
            total = total + flat.sum(0)
            second = second + (flat @ flat.mT).sum(0)
    return (total / len(images)).unflatten(1, slope.shape[2:]), second / len(images)


def rows_reached(embedding: nn.Module, place: int) -> slice:
    """Rows of pixels that reach a row of patches through a chain of convolutions; columns alike."""
    start, size = place, 1
    for one in reversed(
        [module for module in embedding.modules() if isinstance(module, nn.Conv2d)]
    ):
        start, size = (
            start * one.stride[0] - int(one.padding[0]),
            (size - 1) * one.stride[0] + one.kernel_size[0],
        )
    return slice(max(0, start), start + size)


def strongest_kernels(value: Tensor, pixels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(H, N) singular values and (H, N, 3, h, w) patterns of value maps (H, D, C) after an embedding (C, 3, h, w)."""
    maps = value @ pixels.flatten(1)  # (H, D, P)
    _, strength, patterns = torch.linalg.svd(maps, full_matrices=False)
    strength, patterns = strength[:, :count], patterns[:, :count]
    sign = patterns.gather(-1, patterns.abs().argmax(-1, keepdim=True)).sign()
    return strength, (patterns * sign).unflatten(-1, pixels.shape[1:])
