"""Numbers that look random and depend on an image alone: draws of images that no order, batch or rank changes.

Pixels are rounded to bfloat16 before they are hashed, so a model in bfloat16 gets the same numbers
as one in float32.
Shapes: P places of the pool.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadBatch

DONORS = 32  # images that stand in for others
_NOBODY = torch.iinfo(torch.int64).max
_ENOUGH = 4096  # numbers of a head's output, which differ everywhere as pixels do not


def numbers_in(batch: HeadBatch) -> Tensor:
    """(V,) int64: of the pixels, or without pixels of the heads' outputs."""
    if batch.images is not None:
        return image_numbers(batch.images[batch.valid])
    outputs = (*batch.z, *(batch.attn or ()), batch.logits)[0]
    return image_numbers(outputs[batch.valid].flatten(1)[:, :_ENOUGH])


def image_numbers(x: Tensor) -> Tensor:
    """(B,) int64 of (B, ...) numbers, floats rounded to bfloat16: equal images get equal ones, others nearly never."""
    flat = x.flatten(1)
    bits = (
        flat.bfloat16().contiguous().view(torch.int16).long()
        if x.is_floating_point()
        else flat.long()
    )
    return mixed(
        (bits * _odd(bits.shape[1], bits.device)).sum(1)
    )  # wraps around, in any order to the same number


def mixed(number: Tensor) -> Tensor:
    """Numbers each of whose bits depends on every bit of ``number`` (Stafford's finaliser, on 63 bits)."""
    for shift, factor in ((30, 0x1F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        number = (number ^ (number >> shift & 2 ** (64 - shift) - 1)) * factor
    return number ^ (number >> 31 & 2**33 - 1)


def donor_of(number: Tensor) -> Tensor:
    """Number of the donor, of ``DONORS``, that stands in for each image.

    Images that share one are not independent.
    """
    return mixed(number) % DONORS


@functools.lru_cache(maxsize=8)
def _odd(count: int, device: torch.device) -> Tensor:
    """(count,) odd factors, always the same."""
    with torch.inference_mode(False):  # cached: must be usable outside too
        generator = torch.Generator().manual_seed(0)
        return (2 * torch.randint(2**62, (count,), generator=generator) + 1).to(device)


class Pool:
    """The ``size`` images (or patches) with the smallest numbers; room for all is taken with the first.

    number: (P,) int64, rising; the largest int64 marks a free place. parts: tensors (P, ...), any
    numbers in free places, which are never touched, so that they take no memory yet.
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
        return [part[: len(self)] for part in (self.number, *self.parts)]

    def add(self, number_B: Tensor, parts: Sequence[Tensor]) -> None:
        """Take in those of (B, ...) images that belong in it; the same image counts once."""
        number, order = torch.cat([self.number, number_B.to(self.number.device)]).sort(stable=True)
        first = number != _NOBODY
        first[1:] &= number[1:] != number[:-1]
        number, order = number[first][: self.size], order[first][: self.size]
        if self.parts and torch.equal(number, self.number[: len(self)]):
            return  # nobody new
        self.number = torch.full((self.size,), _NOBODY)
        self.number[: len(number)] = number
        self.parts = self.parts or [part.new_empty(self.size, *part.shape[1:]) for part in parts]
        for place, part in enumerate(
            parts
        ):  # new ones of all beside the old ones would take twice the room
            self.parts[place] = _of_both(self.parts[place], part.detach(), order)

    def gather(self) -> None:
        """Merge what all ranks have. A collective."""
        if ranks.size() == 1:
            return
        device = self.parts[0].device if self.parts else torch.device("cpu")
        for number, parts in ranks.gather((self.number, [part.cpu() for part in self.parts])):
            if parts:
                self.add(number, [part.to(device) for part in parts])


def _of_both(mine: Tensor, came: Tensor, order: Tensor) -> Tensor:
    """(P, ...) rows of ``mine`` (P, ...) and, behind them, ``came`` (B, ...), by their places; free ones untouched."""
    shape = [max(sizes) for sizes in zip(mine.shape[1:], came.shape[1:], strict=True)]
    mine, came = (_padded(part, shape) for part in (mine, came))
    order = order.to(came.device)
    stays = order < len(mine)
    kept = came.new_empty(len(mine), *shape)
    there = kept[: len(order)]
    there[stays] = mine[order[stays]]
    there[~stays] = came[order[~stays] - len(mine)]
    return kept


def _padded(part: Tensor, shape: Sequence[int]) -> Tensor:
    """(n, ...) with zeros at its ends, up to (n, *shape)."""
    missing = [large - size for large, size in zip(shape, part.shape[1:], strict=True)]
    if not any(missing):
        return part
    return torch.nn.functional.pad(
        part, [side for count in reversed(missing) for side in (0, count)]
    )
