"""SnapViT, slow: slopes one image and one crop at a time by autograd, and xNES written out in loops of numpy."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn


def squared_slopes(
    model: nn.Module, gates: nn.Parameter, images: Tensor, crops: list[Tensor]
) -> Tensor:
    """(A,) mean over images of the squared slope along each gate of DINO's objective, summed over crops."""
    squares = torch.zeros(len(gates), dtype=torch.float64)
    for number in range(len(images)):
        with torch.no_grad():
            teacher = model(images[number][None])[0]
        wanted = torch.exp(teacher / teacher.norm())
        loss = torch.zeros((), dtype=images.dtype)
        for crop in crops:
            student = model(crop[number][None])[0]
            student = torch.exp(student / student.norm())
            loss = loss - (wanted / wanted.sum() * (student / student.sum()).log()).sum()
        (slope,) = torch.autograd.grad(loss, [gates])
        squares += slope.double() ** 2
    return squares / len(images)


def xnes(fitness, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the covariance after generations of ``noise`` (G, K, S), from 0 and the unit matrix."""
    _, count, size = noise.shape
    raw = [max(0.0, math.log(count / 2 + 1) - math.log(rank)) for rank in range(1, count + 1)]
    utilities = [value / sum(raw) - 1 / count for value in raw]
    rate = 0.6 * (3 + math.log(size)) / (size * math.sqrt(size))
    mean, spread = np.zeros(size), np.eye(size)
    for draws in noise:
        by_fitness = sorted(draws, key=lambda z: -fitness(mean + spread @ z))
        towards, wider = np.zeros(size), np.zeros((size, size))
        for utility, z in zip(utilities, by_fitness, strict=True):
            towards += utility * z
            wider += utility * (np.outer(z, z) - np.eye(size))
        mean = mean + spread @ towards
        values, vectors = np.linalg.eigh(rate / 2 * wider)
        spread = spread @ vectors @ np.diag(np.exp(values)) @ vectors.T
    return mean, spread @ spread.T
