"""The interval of a number that is no mean: leave one fold of images out at a time, and see how far it moves.

The delete-a-group jackknife for groups of unequal sizes (Busing, Meijer & van der Leeden, 1999, Statistics and
Computing 9:3). Images are dealt into folds by a hash of their pixels; sums are kept by fold. With n images, m_j of them
in fold j, h_j = n / m_j, the value v of all folds and v_j of all but j, the pseudo-values are h_j v - (h_j - 1) v_j.
Their spread gives the standard error, with one degree of freedom less than there are folds with images.

The interval is of the value that as many images give on average. What a small number of images adds to a similarity of
any two heads is not in it: that is the column null.

Shapes: B images of a batch, J folds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch
from mhprobe.measures.parts.hashing import numbers_in
from mhprobe.stats.intervals import REAL, Range, interval

FOLDS = 10  # Student's quantile is 2.26 where that of a thousand is 1.96; each more costs sums and time
FEWEST = 5
_BYTES = 2**30


def fold_of(batch: HeadBatch, folds: int = FOLDS) -> Tensor:
    """(B,) the fold of each image; 0 for one that only pads the batch."""
    return batch.derive(_fold_of, folds)


def affordable(folds: int | None, floats: int) -> int:
    """Return how many folds there are: 1 leaves out the interval.

    folds: as asked for. None for ``FOLDS``, or as many as fit where sums of ``floats`` float64 numbers per fold would
    take more than a gigabyte, or 1 where fewer than ``FEWEST`` fit.
    """
    if folds is not None:
        return folds
    fit = min(FOLDS, _BYTES // (8 * max(1, floats)))
    return fit if fit >= FEWEST else 1


def check_folds(name: str, folds: int | None) -> None:
    """UserError unless ``folds`` is None, 1, or a number to leave one out of."""
    if folds is not None and folds < 1:
        raise UserError(f"{name}: jackknife is at least 1 (no interval), got {folds}.")


def jackknife(
    value: Tensor, without: Callable[[int], Tensor], images_J: Tensor, within: Range = REAL
) -> dict[str, Tensor]:
    """Columns "value", "low" and "high", the 95 % interval; NaN where all images are in one fold.

    without: fold -> the value of all images but those of the fold. images: (J,) int64 how many each has.
    """
    error, freedom = jackknife_error(value, without, images_J)
    low, high = interval(value, error, freedom, within)
    return {"value": value, "low": low, "high": high}


def jackknife_error(value: Tensor, without: Callable[[int], Tensor], images_J: Tensor) -> tuple[Tensor, int]:
    """Standard error of ``value`` and its degrees of freedom. Arguments as of ``jackknife``."""
    images = int(images_J.sum())
    held = [(fold, images / m) for fold, m in enumerate(images_J.tolist()) if 0 < m < images]
    if not held:
        return torch.full_like(value, torch.nan), 0
    pseudo = [(h * value - (h - 1) * without(fold), h) for fold, h in held]
    centre = sum((p / h for p, h in pseudo), torch.zeros_like(value))
    variance = sum(((p - centre).square() / (h - 1) for p, h in pseudo), torch.zeros_like(value)) / len(held)
    return variance.sqrt(), len(held) - 1


def _fold_of(batch: HeadBatch, folds: int) -> Tensor:
    fold_B = torch.zeros_like(batch.valid, dtype=torch.long)
    fold_B[batch.valid] = (numbers_in(batch) >> 20) % folds
    return fold_B
