"""The interval of a number that is no mean: leave one fold of images out at a time, and see how far it moves.

The delete-a-group jackknife for groups of unequal sizes (Busing, Meijer & van der Leeden, 1999,
Statistics and Computing 9:3), over folds by a hash of the images' pixels. With n images, m_j of
them in fold j, h_j = n / m_j, the value v of all folds and v_j of all but j, the pseudo-values are
h_j v - (h_j - 1) v_j. Their spread gives the standard error, with one degree of freedom less than
there are folds. The interval is over image sets of this size.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mhprobe.heads import HeadBatch
from mhprobe.measures.base import MeasureWarning
from mhprobe.measures.parts.hashing import numbers_in
from mhprobe.stats.intervals import REAL, Range, interval

FOLDS = (
    8  # Student's quantile is 2.36 where that of a thousand is 1.96; each more costs sums and time
)
FEWEST = 5  # from fewer folds the spread itself is not known
ENOUGH = 13  # images: of a hundred sets of so many 99 fall into FEWEST folds at least
_BYTES = 2**31


class NoInterval(MeasureWarning):
    """Columns low and high are NaN, because their sums would take too much memory."""


def fold_of(batch: HeadBatch, folds: int = FOLDS) -> Tensor:
    """(V,) fold of each image; those of 8 folds are each several of 64."""
    return (batch.derive(numbers_in) >> 8) % folds


def affordable(name: str, folds: int, interval: bool | None, floats: int) -> int:
    """Number of folds to keep sums apart for, at most ``FOLDS``; 1 for no interval.

    folds: of the images. interval: True or False; None: True if sums of ``floats`` float64 numbers
    per fold take at most two gigabytes, else NoInterval warns.
    """
    folds = min(FOLDS, folds)
    size = 8 * floats * folds
    if interval is None and size > _BYTES:
        rank_zero_warn(
            f"{name}: low and high stay empty: sums by fold of images would take "
            f"{size / 2**30:.1f} GiB, more than "
            f"{_BYTES / 2**30:.0f}. interval=true takes them.",
            NoInterval,
        )
        return 1
    return 1 if interval is False else folds


def jackknife(
    value: Tensor, without: Callable[[int], Tensor], images_J: Tensor, within: Range = REAL
) -> dict[str, Tensor]:
    """Columns "value", "low", "high" (95 %), NaN with fewer than five folds.

    without: value but for a fold.
    """
    images = int(images_J.sum())
    held = [(fold, images / m) for fold, m in enumerate(images_J.tolist()) if 0 < m < images]
    if len(held) < FEWEST:
        nothing = torch.full_like(value, torch.nan)
        return {"value": value, "low": nothing, "high": nothing.clone()}
    moved = [
        (without(fold) - value, h) for fold, h in held
    ]  # v - (h - 1) of it is the pseudo-value
    centre = sum(((1 - 1 / h) * by for by, h in moved), torch.zeros_like(value))
    squares = [((h - 1) * by - centre).square() / (h - 1) for by, h in moved]
    error = (sum(squares, torch.zeros_like(value)) / len(held)).sqrt()
    low, high = interval(value, error, len(held) - 1, within)
    return {"value": value, "low": low, "high": high}
