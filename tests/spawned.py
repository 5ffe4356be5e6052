"""Processes that are the ranks of one group: forked from a server that is warm, one per test run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import warm


def ranks(one_rank: Callable[..., None], world: int, folder: Path, *args: Any) -> None:
    """``one_rank(rank, world, folder, *args)`` in so many processes. The first that fails is raised here."""
    # told too late, when the server runs, this changes nothing; pytest is what a rank finds as its main module
    multiprocessing.set_forkserver_preload(["pytest", *warm.modules()])
    told = (world, folder, one_rank, args)
    torch.multiprocessing.start_processes(_in_a_group, told, world, start_method="forkserver")


def _in_a_group(rank: int, world: int, folder: Path, one_rank: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    one_rank(rank, world, folder, *args)
    torch.distributed.destroy_process_group()
