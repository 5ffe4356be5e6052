"""python -m mhprobe.headbench: which measures recognise heads whose function is known.

Builds small ViTs and Swins with planted heads, measures them, and writes tables/headbench.csv and
figures/headbench.png. --enter takes a measure of yours: package.module.Class.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mhprobe.errors import UserError, whole_number
from mhprobe.io.streams import outlive_readers

FAMILIES = ("vit", "swin")


def main() -> int:
    """Prints where the results are; a mistake in one line, exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m mhprobe.headbench", description=__doc__.partition(": ")[2])
    parser.add_argument("--out", type=Path, default=Path("outputs/headbench"), help="the folder to write")
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], help="vit, swin or both")
    parser.add_argument("--seeds", type=int, default=10, help="how many models of each family")
    parser.add_argument("--images", type=int, default=64, help="images that are measured, per model")
    parser.add_argument("--measures", nargs="+", default=None, help="by name; all of conf/measure without it")
    parser.add_argument("--enter", nargs="+", default=[], metavar="CLASS", help="measures of yours: module.Class")
    parser.add_argument("--style", choices=["screen", "paper"], default="screen", help="of figures: paper fits columns")
    given = parser.parse_args()
    try:
        run(given)
    except UserError as error:
        print(f"mhprobe: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def run(given: argparse.Namespace) -> None:
    """The task itself. UserError for a family, a measure or a number that there is not."""
    from mhprobe.headbench.bench import bench
    from mhprobe.headbench.entries import entries
    from mhprobe.report.figures import headbench as figure
    from mhprobe.report.report import Report, Result
    from mhprobe.report.runs.facts import origin_of_script
    from mhprobe.report.tables import Table

    whole_number("headbench: --seeds", given.seeds, 1)
    whole_number("headbench: --images", given.images, 2)
    if unknown := [family for family in given.families if family not in FAMILIES]:
        raise UserError(f"headbench: --families: expected some of {', '.join(FAMILIES)}, got {unknown[0]}.")
    makes = entries(given.measures, given.enter)
    report = Report(given.out, style=given.style)
    report.origin = origin_of_script("headbench")
    rows = bench(makes, given.families, range(given.seeds), given.images, say=lambda line: print(line, flush=True))
    table = Table(list(rows[0]._fields), [list(row) for row in rows])
    for path in report.add("headbench", Result(table, figure.draw(rows), drawn="headbench")):
        print(path)


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
