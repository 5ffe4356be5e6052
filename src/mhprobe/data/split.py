"""Stratified, seeded choice of images: each class keeps its share, and the same seed gives the same images for ever.

Images are ranked within their class by a hash of (seed, position), so no library's generator can change the split.
"""

import numpy as np
import torch

from mhprobe.data.draws import fold, mix


def stratified(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Positions, ascending, of ``count`` of the (N,) labels; class shares by the largest remainder."""
    total = len(labels)
    sizes = np.bincount(labels)
    share, remainder = np.divmod(sizes.astype(np.int64) * count, total)
    share[np.argsort(-remainder, kind="stable")[: count - share.sum()]] += 1
    rank = mix(torch.arange(total) ^ fold(seed)).numpy()
    chosen = []
    for label, size in enumerate(share):
        members = np.flatnonzero(labels == label)
        chosen.append(members[np.argsort(rank[members], kind="stable")[:size]])
    return np.sort(np.concatenate(chosen))


def evenly(count: int, size: int) -> list[int]:
    """Positions in the middles of ``count`` equal parts of a split: one that is sorted by class gives several."""
    count = min(count, size)
    return [size * (2 * part + 1) // (2 * count) for part in range(count)]
