"""Cycles of training, probing, masking and pruning in one process, and what stays behind: python tools/soak.py 30.

So many minutes of tiny runs on the digits, each in a folder that is removed. After every cycle:
resident memory, open files, threads. Over the cycles after the warm-up (the first fifth of the
time) memory must not grow by 1 % from their first quarter to their last, files and threads not at
all, and the temporary folder must be empty at the end. A row per cycle goes to soak.csv; the
verdict is printed, and exit code 1 says that it is bad.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TINY = (
    "+experiment=digits_vit",
    "backbone.embed_dim=24",
    "backbone.depth=2",
    "backbone.num_heads=3",
    "data.limit_train=96",
    "data.limit_val=51",
    "data.limit_test=101",
    "trainer.accelerator=cpu",
)
SHORT = ("trainer.max_epochs=1", "optim.warmup_epochs=0", "measure=[]", "masking=none")
MEASURES = "measure=[gate_importance,svcca,entropy]"
PRUNE = ("prune=order", "prune/order=fisher", "prune.remove=2", "prune.speed=false")
GROWTH = 0.01  # of memory, after the warm-up


class Sample(NamedTuple):
    """After one cycle. seconds: since the start. memory: resident, in KiB."""

    cycle: int
    seconds: float
    memory: int
    files: int
    threads: int


def sample(cycle: int, started: float) -> Sample:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") // 1024
    files = len(os.listdir("/proc/self/fd"))
    return Sample(
        cycle, round(time.monotonic() - started, 1), memory, files, threading.active_count()
    )


def cycle(folder: Path) -> None:
    """All four commands, as their command lines run them, the later ones on the weights of the first."""
    run("train", folder, *SHORT)
    weights = f"weights={folder / 'train' / 'model.safetensors'}"
    run("probe", folder, weights, MEASURES)
    run("mask", folder, weights)
    run("prune", folder, weights, *PRUNE)


def run(command: str, folder: Path, *overrides: str, base: Sequence[str] = TINY) -> None:
    """One command in this process, on the settings ``base``; its folder is ``folder/<command>``."""
    from mhprobe.framework.run import composing, launch
    from mhprobe.framework.run.schema import check

    cfg = composing.composed(command, [*base, *overrides, f"cache_dir={folder}/cache"])
    (folder / command).mkdir(parents=True)
    with contextlib.redirect_stdout(io.StringIO()):
        launch.module(command).run(check(command, cfg), folder / command)


def soak(minutes: float, do: Callable[[Path], None] = cycle) -> list[Sample]:
    """Cycles until the time is over, three at least."""
    started, samples = time.monotonic(), []
    while len(samples) < 3 or time.monotonic() - started < 60 * minutes:
        folder = Path(tempfile.mkdtemp(prefix="soak_"))
        do(folder)
        shutil.rmtree(folder)
        samples.append(sample(len(samples) + 1, started))
        print(*samples[-1], flush=True)
    return samples


def complaints(samples: Sequence[Sample], left: Sequence[str]) -> Iterator[str]:
    """What did not stay as it was. left: in the temporary folder, after the end."""
    warm = [cycle for cycle in samples if cycle.seconds >= samples[-1].seconds / 5]
    quarter = max(1, len(warm) // 4)
    first, last = warm[:quarter], warm[-quarter:]
    growth = (
        statistics.median(s.memory for s in last) / statistics.median(s.memory for s in first) - 1
    )
    print(f"{len(samples)} cycles, {len(warm)} after the warm-up; memory {100 * growth:+.2f} %")
    if growth >= GROWTH:
        yield f"memory grew by {100 * growth:.2f} %"
    for what in ("files", "threads"):
        before, after = (max(getattr(s, what) for s in part) for part in (first, last))
        print(f"{what}: {before} at first, {after} at last")
        if after > before:
            yield f"{what}: {before} became {after}"
    if left:
        yield f"left in the temporary folder: {', '.join(left)}"


def main(minutes: str, table: Path) -> int:
    """Libraries clear what they have in the temporary folder when the process ends: so it is another one's."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as torchs:
        places = {"TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": torchs}  # a cache, meant to stay
        subprocess.run(
            [sys.executable, __file__, minutes, str(table), INSIDE],
            env=os.environ | places,
            check=True,
        )
        left = sorted(os.listdir(folder))
    with table.open(newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    bad = list(complaints([Sample(**row) for row in rows], left))  # type: ignore[arg-type]
    print(*(bad or ["nothing stays behind"]), sep="\n")
    return 1 if bad else 0


INSIDE = "inside"

if __name__ == "__main__":
    minutes, table, *inside = [*sys.argv[1:], *("30", "soak.csv")[len(sys.argv) - 1 :]]
    if not inside:
        sys.exit(main(minutes, Path(table)))
    with Path(table).open("w", newline="") as file:
        csv.writer(file).writerows([Sample._fields, *soak(float(minutes))])
