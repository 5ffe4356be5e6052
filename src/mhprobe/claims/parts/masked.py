"""Accuracy without some heads, image by image: what several claims compare."""

import torch
from torch import Tensor

from mhprobe.claims.parts.claim import Evidence
from mhprobe.claims.parts.estimates import Estimate, over_images, third_of


def at_share(path: Tensor, share: float) -> Tensor:
    """(..., S + 1, A) masks of paths -> (..., A) the last one that closes at most this share of the heads."""
    closed = path.sum(-1)
    within = closed <= share * path.shape[-1] + 1e-9
    step = torch.where(within, closed, -1).argmax(-1)
    return path.gather(-2, step[..., None, None].expand(*step.shape, 1, path.shape[-1])).squeeze(-2)


def gained(evidence: Evidence, better: Tensor, worse: Tensor) -> Estimate:
    """Mean accuracy under (M, A) masks ``better`` minus that under (K, A) ``worse``, on the same test images."""
    right = evidence.right(torch.cat([better, worse])).double()
    count = len(better)
    return over_images(right[:count].mean(0) - right[count:].mean(0), of_accuracy=count == 1 and len(worse) == 1)


def loss(evidence: Evidence, mask: Tensor) -> Estimate:
    """Minus what the accuracy loses under an (A,) mask, on test images: the effect of claims of shape "at most"."""
    return gained(evidence, mask[None], torch.zeros_like(mask)[None])


def loss_at(evidence: Evidence, order: str, share: float) -> Estimate:
    """``loss`` without this share of the heads, in an order that validation images choose."""
    return loss(evidence, at_share(evidence.path(order), share)[0])


def without_thirds(evidence: Evidence) -> Tensor:
    """(3, A) masks that close all heads of the early, the middle, the late blocks. UserError for fewer than three."""
    third = third_of(evidence.layout)
    return torch.stack([third == number for number in range(3)])
