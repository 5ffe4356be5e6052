"""Limits of a network whose sizes a stranger chose, before any memory is taken for it.

Each size alone may be harmless where their product is not. So the network is first made on torch's
meta device, whose tensors have shapes and no numbers, and what it registers is counted.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.modules import module

from mhprobe.errors import UserError

NUMBERS = 400_000_000  # a network may have so many whatever its file holds; 1.6 GB in float32
BESIDE = 20_000_000  # of a folder of timm or transformers, whose files hold the network whole
TIMES = 8  # or so many times those of its file: a pruned one is made whole first
TENSORS = 10_000  # of a file whose tensors are not counted; the deepest of timm have a fifth of it


def limits(held: int, tensors: int | None, least: int = NUMBERS) -> tuple[int, int]:
    """Return the most numbers and tensors of a network whose file holds so many (None: not known).

    least: numbers that a network may have whatever its file holds.
    """
    return max(least, TIMES * held), TENSORS if tensors is None else 4 * tensors + 1000


@contextlib.contextmanager
def bounded(held: int, tensors: int | None, where: str, least: int = NUMBERS) -> Iterator[None]:
    """While modules are made, count their parameters and buffers. UserError for more than ``limits`` gives.

    held, tensors: numbers and tensors in the file of weights. where: begins the error's line. least:
    as for ``limits``.
    """
    most, most_tensors = limits(held, tensors, least)
    thread, sums = threading.get_ident(), [0, 0]

    def count(_module: object, _name: str, tensor: Tensor | None) -> None:
        if tensor is None or threading.get_ident() != thread:
            return
        sums[0] += tensor.numel()
        sums[1] += 1
        if sums[0] > most:
            raise UserError(
                f"{where}: its sizes ask for more than {most:,} numbers, and its weights have "
                f"{held:,}. It is damaged or forged."
            )
        if sums[1] > most_tensors:
            theirs = "" if tensors is None else f", and its weights have {tensors:,}"
            raise UserError(
                f"{where}: its sizes ask for more than {most_tensors:,} tensors{theirs}. It is "
                "damaged or forged."
            )

    handles = [
        module.register_module_parameter_registration_hook(count),
        module.register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def planned(held: int, tensors: int | None, where: str, least: int = NUMBERS) -> Iterator[None]:
    """Make modules on the meta device, within limits. UserError as ``bounded``."""
    with bounded(held, tensors, where, least), torch.device("meta"):
        yield
