"""The null of permuted images, as it is said: head a on image i beside head b on image pi(i), row by row, in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def null(
    similarity: Callable[[np.ndarray, np.ndarray], float],
    x: np.ndarray,
    y: np.ndarray,
    times: int,
    seed: int = 0,
    grid: tuple[int, int] | None = None,
) -> np.ndarray:
    """(times,) similarities of (N, T, D) outputs. pi has no fixed point.

    grid: roll y's tokens on it too, not by 0.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(times):
        other = np.arange(len(x))
        while (other == np.arange(len(x))).any():
            other = rng.permutation(len(x))
        moved = y[other]
        if grid is not None:
            down, across = divmod(rng.integers(1, grid[0] * grid[1]), grid[1])
            moved = np.roll(moved.reshape(len(x), *grid, -1), (down, across), (1, 2)).reshape(
                y.shape
            )
        found.append(similarity(np.concatenate(x), np.concatenate(moved)))
    return np.array(found)
