"""python -m benchmarks [part ...]: every part, or the named ones, as one table."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

PARTS = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__init__", "__main__", "timing")
)


def main() -> None:
    import torch
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "ratio", "quartiles", "rounds", "aim")
    for part in sys.argv[1:] or PARTS:
        print(f"{part} ...", file=sys.stderr, flush=True)
        for row in importlib.import_module(f"benchmarks.{part}").run():
            spread = f"{row.low:.3g} - {row.high:.3g}"
            table.add_row(row.what, f"{row.ratio:.3g}", spread, str(row.rounds), row.limit)
            print(f"  {row.what}: {row.ratio:.3g}", file=sys.stderr, flush=True)
    console = Console(width=140)
    console.print(table)
    threads = torch.get_num_threads()
    console.print(f"{os.cpu_count()} CPU cores, {platform.machine()}, torch {torch.__version__}, {threads} threads")


if __name__ == "__main__":
    main()
