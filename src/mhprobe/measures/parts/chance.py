"""Chance level of correlations: the value of two heads that have nothing to do with each other.

Permuting the rows of one head makes two heads independent. Whitened, each head is then an orthonormal frame among the
n - 1 directions that are orthogonal to the constant, and the two frames lie at random to each other: their overlap T is
a block of a random orthogonal matrix. Its singular values are the correlations, and their squares follow the
matrix-variate beta law (Muirhead, 1982, Aspects of Multivariate Statistical Theory, ch. 11.3): those of A (A + B)^-1
with A ~ Wishart(m2 degrees of freedom) and B ~ Wishart(n - 1 - m2), both m1 x m1. That is exact for Gaussian rows and
close for others, so the floor is sampled from n, m1, m2 alone: no row has to be kept.

It is NumPy, because its generator draws chi-squared numbers from a seed of its own.
"""

import functools

import numpy as np
from numpy.typing import NDArray


@functools.cache
def chance_correlations(rows: int, dims_a: int, dims_b: int, draws: int, seed: int) -> NDArray[np.floating]:
    """(draws, min(dims_a, dims_b)) canonical correlations of independent data in falling order, one row per draw.

    They depend on nothing but the arguments. Needs rows > max(dims_a, dims_b).
    """
    few, many = sorted((dims_a, dims_b))
    root = _overlap_root(_generator(seed, rows, few, many), rows, many, few, draws)
    return np.linalg.svd(root, compute_uv=False)


@functools.cache
def chance_overlaps(rows: int, dims: int, draws: int, seed: int) -> NDArray[np.floating]:
    """(draws, dims, dims) whitened cross-covariances T of independent data, for what depends on more than their size.

    Up to the signs of T's columns, which change no norm of diag(a) T diag(b). Needs rows > dims.
    """
    rng = _generator(seed, rows, dims, dims)
    root = _overlap_root(rng, rows, dims, dims, draws)
    q, r = np.linalg.qr(rng.standard_normal((draws, dims, dims)))
    return q * np.sign(np.einsum("nii->ni", r))[:, None] @ root  # QR's Q is uniform once R's diagonal is positive


def _generator(seed: int, rows: int, few: int, many: int) -> np.random.Generator:
    return np.random.default_rng([seed, rows, few, many])


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
