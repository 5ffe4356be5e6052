"""How long --help takes, against importing what a run needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare


def run(size: Size) -> Iterator[Ratio]:
    def call(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    yield compare(
        'python -m mhprobe.train --help / python -c "import torch, lightning, timm"',
        lambda: call("-m", "mhprobe.train", "--help"),
        lambda: call("-c", f"import {size.pick('torch', 'torch, lightning, timm')}"),
        rounds=size.rounds(7),
        limit="<= 1.5",
    )
