"""Communication of the processes of one run. Alone, a process is rank 0 of 1 and nothing is sent.

All but ``rank`` and ``size`` are collectives: every rank calls them, in the same order.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from mhprobe.errors import UserError

T = TypeVar("T")

PATIENCE = 10.0  # seconds
PIECE = 2**21  # numbers; 16 MiB of float64


def size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if size() > 1 else 0


def total(part: Tensor, group: Any | None = None) -> Tensor:
    """Sum ``part`` over ranks, in place."""
    if size() > 1:
        for piece in views_of(part):
            dist.all_reduce(piece, group=group)
    return part


def views_of(large: Tensor) -> Sequence[Tensor]:
    """Return views of ``large``, as gloo copies the tensors that it works on."""
    return large.view(-1).split(PIECE) if large.is_contiguous() else [large]


def from_rank_zero(find: Callable[[], T]) -> T:
    """Call ``find`` on rank 0 only; return its result, or raise its UserError, on every rank."""
    if size() == 1:
        return find()
    results = [_tried(find) if rank() == 0 else None]
    dist.broadcast_object_list(results, src=0)
    if isinstance(results[0], UserError):
        raise results[0]
    return results[0]  # type: ignore[return-value]


def _tried(work: Callable[[], T]) -> T | UserError:
    """Return ``work()`` or its UserError: a rank that raised alone would leave the others waiting."""
    try:
        return work()
    except UserError as error:
        return error


def gather(value: T) -> list[T]:
    """Gather an object of each rank, in the order of the ranks, on every rank.

    For small things: they are pickled.
    """
    if size() == 1:
        return [value]
    everyone: list[T] = [value] * size()
    dist.all_gather_object(everyone, value)
    return everyone


class LeftAlone(UserError):
    """Error of a rank that failed while the others wait for it."""


def together(work: Callable[[], T], patience: float = PATIENCE) -> T:
    """Call ``work`` on every rank; raise UserError on all of them if it failed on one.

    A rank that fails waits ``patience`` seconds for the others, which may wait for it inside
    ``work`` for ever. Then it
    raises LeftAlone, which nobody may catch: the end of one rank is the end of all (framework/run/launch.py).
    """
    if size() == 1:
        return work()
    done = _tried(work)
    problem = str(done) if isinstance(done, UserError) else None
    problems = gather(problem) if problem is None else _within(patience, lambda: gather(problem))
    if problems is None:
        raise LeftAlone(str(problem))
    for text in problems:
        if text is not None:
            raise UserError(text)
    return done  # type: ignore[return-value]


def _within(seconds: float, work: Callable[[], T]) -> T | None:
    """Return ``work()``, or None if it has not ended in time; its thread goes on."""
    done: list[T] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return done[0] if done else None


def in_turn(work: Callable[[int], T], count: int) -> list[T]:
    """Share ``work`` on the numbers below ``count`` among ranks; all results, or the first UserError, on every rank."""
    if size() == 1 or count == 1:
        return [work(number) for number in range(count)]
    done = {
        number: _tried(functools.partial(work, number)) for number in range(rank(), count, size())
    }
    everyone = {number: result for part in gather(done) for number, result in part.items()}
    for result in everyone.values():
        if isinstance(result, UserError):
            raise result
    return [everyone[number] for number in range(count)]  # type: ignore[misc]
