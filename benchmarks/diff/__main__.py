"""python -m benchmarks.diff [CIFAR]: what `mhprobe diff` finds of what is planted in trained networks.

Draws go to a file, one line each, as soon as they are made; started again, it goes on behind them.
The table of docs/diff.md is made of all draws that there are, and its figure of the table. Without
CIFAR the figure alone is drawn anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.diff.draws import KINDS
from benchmarks.diff.summary import draw, write_table

DOCS = Path(__file__).parents[2] / "docs"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diff", description=__doc__)
    parser.add_argument(
        "cifar", type=Path, nargs="?", help="CIFAR-10 as class folders, or a tar of them"
    )
    parser.add_argument("--draws", type=Path, default=Path("diff_draws.jsonl"))
    parser.add_argument("--share", type=float, default=1.0, help="of the draws of each kind")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--docs", type=Path, default=DOCS, help="where table and figure go")
    options = parser.parse_args(arguments)
    if options.cifar is None:
        print(draw(options.docs))
        return 0
    torch.set_num_threads(1)
    there = _read(options.draws)
    open_draws = [one for one in _wanted(options.kinds, options.share) if one not in there]
    total, start = len(open_draws), time.monotonic()
    print(f"{len(there)} draws are there, {total} to do", flush=True)
    with options.draws.open("a") as file:
        for done, (kind, number) in enumerate(open_draws, 1):
            rows = KINDS[kind][1](options.cifar, number)
            file.write(json.dumps({"kind": kind, "draw": number, "rows": rows}) + "\n")
            file.flush()
            left = (time.monotonic() - start) / done * (total - done) / 60
            print(f"{done} of {total}, {left:.0f} minutes left: {kind} {number}", flush=True)
    print(write_table(list(_read(options.draws).values()), options.docs))
    print(draw(options.docs))
    return 0


def _wanted(kinds: list[str], share: float) -> Iterator[tuple[str, int]]:
    """All kinds side by side, so that each has its share of draws whenever the run is stopped."""
    every = [
        ((number + 0.5) / KINDS[kind][0], kind, number)
        for kind in kinds
        for number in range(round(share * KINDS[kind][0]))
    ]
    for _, kind, number in sorted(every):
        yield kind, number


def _read(file: Path) -> dict[tuple[str, int], list[dict[str, object]]]:
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return {(line["kind"], line["draw"]): line["rows"] for line in lines}


if __name__ == "__main__":
    sys.exit(main())
