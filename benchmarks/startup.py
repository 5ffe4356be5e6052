"""How long --help takes, against importing what a run needs."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import Ratio, compare


def run() -> list[Ratio]:
    def call(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return [
        compare(
            'python -m mhprobe.train --help / python -c "import torch, lightning, timm"',
            lambda: call("-m", "mhprobe.train", "--help"),
            lambda: call("-c", "import torch, lightning, timm"),
            rounds=7,
            limit="<= 1.5",
        )
    ]
