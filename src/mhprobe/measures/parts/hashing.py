"""Numbers that look random and depend on an image alone: how images are drawn without an order, a batch or a rank.

Pixels are rounded to bfloat16 before they are hashed. A model in bfloat16 is shown images rounded so, and they get the
same numbers as those of a model in float32: the same donors, folds and halves. A pool keeps the few images (or patches)
with the smallest numbers; its memory does not grow with those that are shown.

Shapes: B images, P places of the pool.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadBatch

_ENOUGH = 4096  # numbers of a head's output, which differ everywhere as pixels do not


def numbers_in(batch: HeadBatch) -> Tensor:
    """(valid images,) int64: by their pixels, or by what heads made of them where there are no pixels."""
    if batch.images is not None:
        return image_numbers(batch.images[batch.valid])
    made = (*batch.z, *(batch.attn or ()), batch.logits)[0]
    return image_numbers(made[batch.valid].flatten(1)[:, :_ENOUGH])


def image_numbers(x: Tensor) -> Tensor:
    """(B,) int64 of (B, ...) numbers: equal images get equal numbers, others nearly never.

    Numbers of floating point are rounded to bfloat16. Whole ones, as of tokens, are taken as they are.
    """
    flat = x.flatten(1)
    bits = flat.bfloat16().contiguous().view(torch.int16).long() if x.is_floating_point() else flat.long()
    return mixed((bits * _odd(bits.shape[1], bits.device)).sum(1))  # wraps around, in any order to the same number


def mixed(number: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of the number (Stafford's finaliser, on 63 bits)."""
    for shift, factor in ((30, 0x1F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        number = (number ^ (number >> shift & 2 ** (64 - shift) - 1)) * factor
    return number ^ (number >> 31 & 2**33 - 1)


@functools.lru_cache(maxsize=8)
def _odd(count: int, device: torch.device) -> Tensor:
    """(count,) odd factors, always the same."""
    with torch.inference_mode(False):  # cached: must be usable outside too
        generator = torch.Generator().manual_seed(0)
        return (2 * torch.randint(2**62, (count,), generator=generator) + 1).to(device)


_NOBODY = torch.iinfo(torch.int64).max


class Pool:
    """At most ``size`` images, those with the smallest numbers. Room for all of them is taken with the first.

    number: (P,) int64, rising; the largest there is marks a free place. parts: tensors (P, ...), by place. Texts differ
    in length: those of a batch, or the pool's, are filled up with zeros to the longest.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.number = torch.full((size,), _NOBODY)
        self.parts: list[Tensor] = []

    def __len__(self) -> int:
        """Return the number of images in the pool."""
        return int((self.number != _NOBODY).sum())

    @property
    def held(self) -> list[Tensor]:
        """Numbers of the images in the pool, and their parts, without free places."""
        return [each[: len(self)] for each in (self.number, *self.parts)]

    def add(self, number_B: Tensor, parts: Sequence[Tensor]) -> None:
        """Take in those of (B, ...) images that belong in it. The same image counts once."""
        number, order = torch.cat([self.number, number_B.to(self.number.device)]).sort(stable=True)
        first = torch.ones_like(number, dtype=torch.bool)
        first[1:] = number[1:] != number[:-1]
        number, order = number[first][: self.size], order[first][: self.size]
        self.number = torch.full((self.size,), _NOBODY)
        self.number[: len(number)] = number
        before = self.parts or [part.new_zeros(self.size, *part.shape[1:]) for part in parts]
        self.parts = [_of_both(mine, part.detach(), order) for mine, part in zip(before, parts, strict=True)]

    def gather(self) -> None:
        """Merge what all ranks have. A collective."""
        if ranks.size() == 1:
            return
        device = self.parts[0].device if self.parts else torch.device("cpu")
        for number, parts in ranks.gather((self.number, [part.cpu() for part in self.parts])):
            if parts:
                self.add(number, [part.to(device) for part in parts])


def _of_both(mine: Tensor, came: Tensor, order: Tensor) -> Tensor:
    """(P, ...) rows of ``mine`` (P, ...) and, behind them, ``came`` (B, ...), by their places; zeros in free ones."""
    mine, came = _as_large(mine, came)
    order = order.to(came.device)
    stays = order < len(mine)
    kept = came.new_zeros(mine.shape)
    kept[: len(order)][stays], kept[: len(order)][~stays] = mine[order[stays]], came[order[~stays] - len(mine)]
    return kept


def _as_large(*parts: Tensor) -> tuple[Tensor, ...]:
    """Each (n, ...) filled up with zeros at its ends to the largest shape."""
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]

    def filled(part: Tensor) -> Tensor:
        missing = [large - own for large, own in zip(shape, part.shape[1:], strict=True)]
        return torch.nn.functional.pad(part, [side for n in reversed(missing) for side in (0, n)])

    return tuple(filled(part) for part in parts)
