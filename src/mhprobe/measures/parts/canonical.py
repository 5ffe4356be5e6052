"""Canonical correlations from second moments: whiten two sets of channels, take the SVD of what is left between them.

Their chance level for independent rows: permuting the rows of one head makes two heads independent. Whitened, each head
is then an orthonormal frame among the n - 1 directions that are orthogonal to the constant, and the two frames lie at
random to each other: their overlap T is a block of a random orthogonal matrix. Its singular values are the
correlations, and their squares follow the matrix-variate beta law (Muirhead, 1982, Aspects of Multivariate Statistical
Theory, ch. 11.3): those of A (A + B)^-1 with A ~ Wishart(m2 degrees of freedom) and B ~ Wishart(n - 1 - m2), both
m1 x m1. That is exact for Gaussian rows and close for others, so the floor is sampled from n, m1, m2 alone, by NumPy,
whose generator draws chi-squared numbers from a seed of its own: no row has to be kept.

Shapes: H heads of a group (or layers), D their width, P pairs.
"""

import functools
import itertools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mhprobe.measures.parts.moments import Parts

Average = Callable[[Tensor], Tensor]


def leading(heads: Parts, variance: float) -> Tensor:
    """(H, D) bool: the leading directions that explain this share of a head's variance; 1 for all that vary."""
    before = heads.spectrum.cumsum(1) - heads.spectrum  # a direction is used as long as those before it do not suffice
    return (before < variance * heads.spectrum.sum(1, keepdim=True)) & (heads.spectrum > 0)


def whitening(heads: Parts, used_HD: Tensor) -> Tensor:
    """(H, D, D) maps W with W^T covariance W = 1 on the used directions.

    Directions that are not used become zero columns, which add zero singular values: all pairs fit one batch.
    """
    return heads.direction * torch.where(used_HD, heads.spectrum, torch.inf).rsqrt()[:, None]


def correlations(heads: Parts, used_HD: Tensor) -> Tensor:
    """(H, H, D) canonical correlations of all pairs in falling order, NaN behind the last."""
    whiten_HDD = whitening(heads, used_HD)
    rho_HHD = heads.between(lambda a, row: torch.linalg.svdvals(whiten_HDD[a].mT @ row @ whiten_HDD[a:]))
    return rho_HHD.clamp_(0, 1).masked_fill_(behind(used_HD), torch.nan)


def behind(used_HD: Tensor) -> Tensor:
    """(H, H, D) bool: places behind the last correlation of a pair, which has min(used) of them."""
    dims = used_HD.sum(1)
    return torch.arange(used_HD.shape[1], device=dims.device) >= torch.minimum(dims[:, None], dims)[..., None]


def mean(rho: Tensor) -> Tensor:
    """(..., D) -> (...) mean of the correlations that are not NaN; 0 where there is none."""
    return rho.nanmean(-1).nan_to_num(0)


def compare(heads: Parts, variance: float, average: Average = mean) -> dict[str, Tensor]:
    """value (H, H) the average correlation, dims (H,) used directions, and rho (H, H, D) as of ``correlations``."""
    used_HD = leading(heads, variance)
    rho_HHD = correlations(heads, used_HD)
    return {"value": average(rho_HHD), "dims": used_HD.sum(1), "rho": rho_HHD}


def null(heads: Parts, variance: float, draws: int, seed: int, average: Average = mean) -> dict[str, Tensor]:
    """null (H, H) and null_rho (H, H, D) of independent heads that keep as many directions.

    Means over ``draws``; 0 and NaN where a head keeps none.
    """
    used_HD = leading(heads, variance)
    dims = used_HD.sum(1)
    level_HH = used_HD.new_zeros(len(dims), len(dims), dtype=torch.float64)
    rho_HHD = torch.full((*level_HH.shape, used_HD.shape[1]), torch.nan, dtype=torch.float64, device=dims.device)
    for few, many in itertools.combinations_with_replacement(dims[dims > 0].unique().tolist(), 2):
        drawn = torch.from_numpy(chance_correlations(int(heads.rows), few, many, draws, seed)).to(dims.device)
        pair = (dims[:, None] == few) & (dims == many)
        pair = pair | pair.mT
        level_HH[pair] = average(drawn).mean()
        rho_HHD[..., :few][pair] = drawn.mean(0)
    return {"null": level_HH, "null_rho": rho_HHD}


@functools.cache
def chance_correlations(rows: int, dims_a: int, dims_b: int, draws: int, seed: int) -> NDArray[np.floating]:
    """(draws, min(dims_a, dims_b)) canonical correlations of independent data in falling order, one row per draw.

    They depend on nothing but the arguments. Needs rows > max(dims_a, dims_b).
    """
    few, many = sorted((dims_a, dims_b))
    root = _overlap_root(np.random.default_rng([seed, rows, few, many]), rows, many, few, draws)
    return np.linalg.svd(root, compute_uv=False)


@functools.cache
def chance_overlaps(rows: int, dims: int, draws: int, seed: int) -> NDArray[np.floating]:
    """(draws, dims, dims) whitened cross-covariances T of independent data, for what depends on more than their size.

    Up to the signs of T's columns, which change no norm of diag(a) T diag(b). Needs rows > dims.
    """
    rng = np.random.default_rng([seed, rows, dims, dims])
    root = _overlap_root(rng, rows, dims, dims, draws)
    q, r = np.linalg.qr(rng.standard_normal((draws, dims, dims)))
    return q * np.sign(np.einsum("nii->ni", r))[:, None] @ root  # QR's Q is uniform once R's diagonal is positive


def _overlap_root(rng: np.random.Generator, rows: int, many: int, few: int, draws: int) -> NDArray[np.floating]:
    """(draws, few, few) with the singular values of T: T without the uniform rotation that belongs on its left."""
    explained = _wishart_root(rng, draws, many, few)
    rest = _wishart_root(rng, draws, max(rows - 1 - many, 0), few)
    # with A + B = R^T R, the correlations are the singular values of root(A) R^-1: the upper half of the QR's Q
    q = np.linalg.qr(np.concatenate([explained, rest], axis=1)).Q
    return q[:, : explained.shape[1]]


def _wishart_root(rng: np.random.Generator, draws: int, freedom: int, size: int) -> NDArray[np.floating]:
    """(draws, min(freedom, size), size) upper triangles R with R^T R ~ Wishart(freedom): Bartlett's decomposition."""
    height = min(freedom, size)
    root = np.triu(rng.standard_normal((draws, height, size)), 1)
    diagonal = np.arange(height)
    root[:, diagonal, diagonal] = np.sqrt(rng.chisquare(freedom - diagonal, (draws, height)))
    return root
