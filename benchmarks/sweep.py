"""A sweep over mask steps, against its longest job alone: what jobs share is searched and scored once.

Both are commands as a user types them, each with a cache of its own, and CPU seconds of all their
processes are compared: a sweep takes minutes, in which a busy machine would favour one side.

Without CIFAR-10 (--cifar) a network with random weights is masked on digits. It is so small that
pages and imports decide, not searches: the ratio is then only of interest beside an earlier one.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single

WEIGHTS = Path(__file__).parents[1] / "weights" / "cifar10_vit_taught.safetensors"


def run(size: Size) -> Iterator[Ratio]:
    last = size.pick(1, 6, 12)
    if size.cifar:
        of = [f"weights={WEIGHTS}", f"data.root={size.cifar.resolve()}"]
        of += ["data.limit_val=500", f"data.limit_test={size.pick(100, 500)}"]
        limit, note = "<= 1.2", ""
    else:
        of = ["+experiment=digits_vit", "weights=random", "data.limit_val=100"]
        of += ["data.limit_test=100"]
        limit, note = "", "digits and random weights"
    every = ",".join(map(str, range(last + 1)))
    sweep = _cpu_seconds("-m", *of, f"masking.step={every}")
    alone = _cpu_seconds(*of, f"masking.step={last}")
    what = f"masking.step=0 to {last} in one sweep / step {last} alone"
    yield single(what, sweep / alone, limit, f"{note} {sweep:.0f} s / {alone:.0f} s of CPU".strip())


def _cpu_seconds(*overrides: str) -> float:
    """CPU seconds of mhprobe.mask in an empty folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mhprobe.mask", *overrides]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
