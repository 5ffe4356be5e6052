"""Processes that are the ranks of one group: forks of the server that is warm."""

from __future__ import annotations

import base64
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import forks
from mhprobe import ranks as ranks_of_run
from mhprobe.errors import UserError


def ranks(one_rank: Callable[..., None], world: int, folder: Path, *args: Any) -> None:
    """``one_rank(rank, world, folder, *args)`` in so many processes.

    What the first that fails printed is raised.
    """
    told = base64.b64encode(pickle.dumps((one_rank, world, folder, args))).decode()
    end = forks.ask("spawned.obey", folder, dict(os.environ), sys.path, told)
    assert end.code == 0, end.out + end.err


def obey(path: list[str], told: str) -> None:
    """In a fork: the ranks, which are forks of it."""
    sys.path[:] = path  # where the module of ``one_rank`` lies
    one_rank, world, folder, args = pickle.loads(base64.b64decode(told))
    each = (world, folder, one_rank, args)
    torch.multiprocessing.start_processes(_in_a_group, each, world, start_method="fork")


def _in_a_group(
    rank: int, world: int, folder: Path, one_rank: Callable[..., None], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    one_rank(rank, world, folder, *args)
    torch.distributed.destroy_process_group()


def one_sided(material: Any, folder: str) -> dict[str, Any]:
    """A panel of a study that rank 1 refuses while rank 0 waits for it in a sum."""
    if ranks_of_run.rank() == 1:
        Path(folder, "refused").write_text(str(time.time()))
        raise UserError("planted: rank 1 alone refuses this figure")
    ranks_of_run.total(torch.zeros(1))
    return {}
