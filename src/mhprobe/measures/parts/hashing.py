"""Numbers that look random and depend on an image alone: how images are drawn without an order, a batch or a rank.

Pixels are rounded to bfloat16 before they are hashed. A model in bfloat16 is shown images rounded so, and they get the
same numbers as those of a model in float32: the same donors, folds and halves.

Shapes: B images.
"""

import functools

import torch
from torch import Tensor

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
