"""Random numbers as a pure function of (seed, epoch, image index, stream): no state, so nothing to store or resume.

An image's draw depends on no batch, order, rank or device: int64 arithmetic gives the same bits on
CPU and CUDA.
"""

import functools

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(x: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number."""
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


def mix(x: Tensor) -> Tensor:
    """splitmix64 (Steele, Lea & Flood 2014) of int64 of any shape: each bit of the result depends on every bit of x."""
    x = x + _signed(_GOLDEN)
    # >> keeps the sign; the mask makes it the logical shift of the original
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@functools.lru_cache(maxsize=256)  # asked for with the same numbers in every batch of an epoch
def fold(*numbers: int) -> int:
    """Integers, e.g. (seed, epoch) -> one key in [0, 2**63)."""
    key = torch.zeros((), dtype=torch.int64)
    for number in numbers:
        key = mix(key ^ _signed(number))
    return int(key) & ((1 << 63) - 1)


def draw(key: int, index: Tensor, bound: int) -> Tensor:
    """(B,) integers uniform in [0, bound): one per image index, independent for different keys."""
    # % of 63 bits: the bias towards small numbers is below bound / 2**63
    return (mix(index ^ key) & ((1 << 63) - 1)) % bound


def reseed(number: int, device: torch.device | None = None) -> None:
    """Seed the generators that a computation on ``device`` draws from; the CPU's alone by default."""
    if device is None or device.type == "cpu":
        torch.default_generator.manual_seed(
            number
        )  # torch.manual_seed takes milliseconds: it prepares every device
    else:
        torch.manual_seed(number)


def stratified(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Positions, ascending, of ``count`` of the (N,) labels; class shares by the largest remainder."""
    share, remainder = np.divmod(np.bincount(labels).astype(np.int64) * count, len(labels))
    share[np.argsort(-remainder, kind="stable")[: count - share.sum()]] += 1
    rank = mix(
        torch.arange(len(labels)) ^ fold(seed)
    ).numpy()  # no library's generator can change a split
    members = [np.flatnonzero(labels == label) for label in range(len(share))]
    ranked = [of_class[np.argsort(rank[of_class], kind="stable")] for of_class in members]
    return np.sort(
        np.concatenate([of_class[:size] for of_class, size in zip(ranked, share, strict=True)])
    )


def evenly_spread(count: int, size: int) -> list[int]:
    """Positions in the middles of ``count`` equal parts of a split: one that is sorted by class gives several."""
    count = min(count, size)
    return [size * (2 * part + 1) // (2 * count) for part in range(count)]
