"""A few images, the same ones whatever the order, the batches and the ranks: those with the smallest hash.

For measures that compare two images at a time. Memory does not grow with the number of images.

Shapes: P places of the pool, B images of a batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe import ranks

_NOBODY = torch.iinfo(torch.int64).max


class Pool:
    """number: (P,) int64, rising; the largest there is marks a free place. parts: tensors (P, ...), by place.

    Texts differ in length: those of a batch, or the pool's, are filled up with zeros to the longest.
    """

    def __init__(self, size: int) -> None:
        self.number = torch.full((size,), _NOBODY)
        self.parts: list[Tensor] = []

    def __len__(self) -> int:
        """Return the number of images in the pool."""
        return int((self.number != _NOBODY).sum())

    def add(self, number_B: Tensor, parts: Sequence[Tensor]) -> None:
        """Take in those of (B, ...) images that belong in it. The same image counts once."""
        if not self.parts:
            self.parts = [part.new_zeros(len(self.number), *part.shape[1:]) for part in parts]
        pairs = [_as_large(old, new.detach()) for old, new in zip(self.parts, parts, strict=True)]
        number = torch.cat([self.number, number_B.to(self.number.device)])
        number, order = number.sort(stable=True)
        again = torch.zeros_like(number, dtype=torch.bool)
        again[1:] = number[1:] == number[:-1]
        number[again] = _NOBODY
        number, place = number.sort(stable=True)
        size = len(self.number)
        order = order[place][:size]
        self.number, old = number[:size].clone(), order < size
        for k, (mine, part) in enumerate(pairs):
            chosen = mine.index_select(0, order.clamp(max=size - 1).to(part.device))
            new = (order - size).clamp(min=0).to(part.device)
            came = (~old).to(part.device)
            chosen[came] = part[new[came]]
            self.parts[k] = chosen

    def gather(self) -> None:
        """Merge what all ranks have. A collective."""
        if ranks.size() == 1:
            return
        device = self.parts[0].device if self.parts else torch.device("cpu")
        for number, parts in ranks.gather((self.number, [part.cpu() for part in self.parts])):
            if parts:
                self.add(number, [part.to(device) for part in parts])


def _as_large(*parts: Tensor) -> tuple[Tensor, ...]:
    """Each (n, ...) filled up with zeros at its ends to the largest shape."""
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]

    def filled(part: Tensor) -> Tensor:
        missing = [large - own for large, own in zip(shape, part.shape[1:], strict=True)]
        return torch.nn.functional.pad(part, [side for n in reversed(missing) for side in (0, n)])

    return tuple(filled(part) for part in parts)
