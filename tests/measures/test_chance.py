from __future__ import annotations

import numpy as np
import pytest

from mhprobe.measures.parts.canonical import chance_correlations, chance_overlaps
from oracles import svcca as oracle


@pytest.mark.parametrize(
    ("rows", "floor", "spread"),
    [
        (49, 0.755, 0.009),
        (98, 0.516, 0.009),
        (196, 0.348, 0.009),
        (784, 0.172, 0.004),
        (3136, 0.087, 0.002),
        (12544, 0.042, 0.001),
    ],
)
def test_known_floors_of_heads_of_width_32(rows, floor, spread):
    # the known floors are single draws; spread is the standard deviation of one
    assert chance_level(rows, 32, 32, 20, 0) == pytest.approx(floor, abs=2 * spread)


def chance_level(rows: int, dims_a: int, dims_b: int, draws: int, seed: int) -> float:
    return float(chance_correlations(rows, dims_a, dims_b, draws, seed).mean())


def direct(rng: np.random.Generator, rows: int, dims_a: int, dims_b: int) -> float:
    """One draw with the rows themselves: the cosines between two random centred subspaces."""
    bases = []
    for dims in (dims_a, dims_b):
        x = rng.standard_normal((rows, dims))
        bases.append(np.linalg.qr(x - x.mean(0))[0])
    return np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).mean()


@pytest.mark.parametrize(
    ("rows", "dims_a", "dims_b"),
    [
        (400, 8, 8),
        (60, 5, 20),
        (45, 5, 40),  # fewer rows than dimensions together: some correlations are exactly 1
        (41, 40, 40),  # all of them are
        (30, 1, 1),
    ],
)
def test_equals_the_mean_over_draws_of_actual_rows(rows, dims_a, dims_b):
    rng = np.random.default_rng(3)
    draws = np.array([direct(rng, rows, dims_a, dims_b) for _ in range(200)])
    error = draws.std() * np.sqrt(2 / 200)  # both sides are means over 200
    assert chance_level(rows, dims_a, dims_b, 200, 0) == pytest.approx(draws.mean(), abs=4 * error + 1e-12)


def test_equals_the_mean_over_permutations_of_real_rows():
    from sklearn.datasets import load_digits

    pixels = load_digits().data[:300]
    # columns that overlap strongly in what they show: rows and columns of pixels, far from Gaussian
    a, b = pixels[:, 16:32], pixels[:, 24:40]
    dims = [oracle.keep(x, 0.99).shape[1] for x in (a, b)]
    rng = np.random.default_rng(0)
    permuted = np.array([oracle.similarity(a, b[rng.permutation(len(b))]) for _ in range(100)])
    error = permuted.std() * np.sqrt(2 / 100)
    assert chance_level(len(a), *dims, 100, 0) == pytest.approx(permuted.mean(), abs=4 * error)
    assert oracle.similarity(a, b) > 2 * permuted.mean()  # unpermuted they do correlate: the level is not trivial


def test_depends_on_nothing_but_its_arguments():
    np.random.seed(1)
    first = chance_level(100, 4, 6, 5, 0)
    chance_correlations.cache_clear()
    np.random.seed(2)
    assert chance_level(100, 6, 4, 5, 0) == first
    assert chance_level(100, 4, 6, 5, 1) != first


@pytest.mark.parametrize(("rows", "dims"), [(200, 4), (9, 6), (7, 6)])
def test_overlaps_are_blocks_of_a_uniformly_random_rotation(rows, dims):
    overlaps = chance_overlaps(rows, dims, 2000, 0)
    np.testing.assert_allclose(
        np.linalg.svd(overlaps, compute_uv=False), chance_correlations(rows, dims, dims, 2000, 0), atol=1e-12
    )
    # an entry of a random rotation of n - 1 directions has mean 0 and mean square 1 / (n - 1), whichever it is
    tolerance = 5 / 2000**0.5
    assert np.abs(overlaps.mean(0)).max() < tolerance / np.sqrt(rows - 1)
    np.testing.assert_allclose((overlaps**2).mean(0) * (rows - 1), 1, atol=tolerance * 2**0.5)
