"""How strongly two heads that have nothing to do with each other seem to correlate: the floor under every CCA value.

Permuting the rows of one head makes two heads independent. Their squared canonical correlations then follow the
matrix-variate beta law (Muirhead, 1982, Aspects of Multivariate Statistical Theory, ch. 11.3): those of A (A + B)^-1
with A ~ Wishart(m2 degrees of freedom) and B ~ Wishart(n - 1 - m2), both m1 x m1. That is exact for Gaussian rows and
close for others, so the floor is sampled from n, m1, m2 alone: no row has to be kept.

It is NumPy, because its generator draws chi-squared numbers from a seed of its own.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray


@functools.cache
def chance_level(rows: int, dims_a: int, dims_b: int, draws: int, seed: int) -> float:
    """Mean canonical correlation of independent data with ``rows`` rows and dims_a, dims_b dimensions, in [0, 1].

    The mean over ``draws`` samples; it depends on nothing but the arguments. Needs rows > max(dims_a, dims_b).
    """
    few, many = sorted((dims_a, dims_b))
    rng = np.random.default_rng([seed, rows, few, many])
    explained = _wishart_root(rng, draws, many, few)
    rest = _wishart_root(rng, draws, max(rows - 1 - many, 0), few)
    # with A + B = R^T R, the correlations are the singular values of root(A) R^-1: the upper half of the QR's Q
    q = np.linalg.qr(np.concatenate([explained, rest], axis=1)).Q
    return float(np.linalg.svd(q[:, : explained.shape[1]], compute_uv=False).mean())


def _wishart_root(rng: np.random.Generator, draws: int, freedom: int, size: int) -> NDArray[np.float64]:
    """(draws, min(freedom, size), size) upper triangles R with R^T R ~ Wishart(freedom): Bartlett's decomposition."""
    height = min(freedom, size)
    root = np.triu(rng.standard_normal((draws, height, size)), 1)
    diagonal = np.arange(height)
    root[:, diagonal, diagonal] = np.sqrt(rng.chisquare(freedom - diagonal, (draws, height)))
    return root
