"""python -m mhprobe.headbench: which measures recognise heads whose function is known.

Builds small ViTs and Swins with planted heads, measures them, and writes tables/headbench.csv and
figures/headbench.png. Trains small ViTs, changes heads of theirs by grades (grafts), and writes
tables/headbench_grades.csv, headbench_sensitivity.csv and figures/headbench_sensitivity.png. --enter takes a measure
of yours: package.module.Class.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhprobe.errors import UserError, whole_number
from mhprobe.io.streams import outlive_readers

if TYPE_CHECKING:
    from mhprobe.headbench.bench import Make
    from mhprobe.report.report import Result
    from mhprobe.report.tables import Table

FAMILIES = ("vit", "swin")
KINDS = ("written", "grafts")


def main() -> int:
    """Prints where the results are; a mistake in one line, exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m mhprobe.headbench", description=__doc__.partition(": ")[2])
    parser.add_argument("--out", type=Path, default=Path("outputs/headbench"), help="the folder to write")
    parser.add_argument("--heads", nargs="+", default=KINDS, choices=KINDS, help="written by hand, grafts, or both")
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], help="vit, swin or both")
    parser.add_argument("--seeds", type=int, default=10, help="how many models of each family, and trained ones")
    parser.add_argument("--images", type=int, default=64, help="images that are measured, per model")
    parser.add_argument("--measures", nargs="+", default=None, help="by name; all without it")
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
    from mhprobe.headbench.bench import entries
    from mhprobe.headbench.sensitivity import check
    from mhprobe.report.report import Report
    from mhprobe.report.runs.facts import origin_of_script

    whole_number("headbench: --seeds", given.seeds, 1)
    whole_number("headbench: --images", given.images, 2)
    if unknown := [family for family in given.families if family not in FAMILIES]:
        raise UserError(f"headbench: --families: expected some of {', '.join(FAMILIES)}, got {unknown[0]}.")
    makes = entries(given.measures, given.enter)
    if "grafts" in given.heads:
        check(makes, list(entries([], given.enter)))
    report = Report(given.out, style=given.style)
    report.origin = origin_of_script("headbench")
    parts = {"written": _written, "grafts": _grafts}
    for kind in dict.fromkeys(given.heads):
        for name, result in parts[kind](given, makes).items():
            for path in report.add(name, result):
                print(path)


def _written(given: argparse.Namespace, makes: Mapping[str, Make]) -> dict[str, Result]:
    from mhprobe.headbench.bench import bench
    from mhprobe.report.figures import headbench as figure
    from mhprobe.report.report import Result

    rows = bench(makes, given.families, range(given.seeds), given.images, say=_say)
    return {"headbench": Result(_table(rows), figure.headbench(rows), drawn="headbench")}


def _grafts(given: argparse.Namespace, makes: Mapping[str, Make]) -> dict[str, Result]:
    from mhprobe.headbench.bench import entries
    from mhprobe.headbench.sensitivity import sensitivities
    from mhprobe.report.figures import headbench as figure
    from mhprobe.report.report import Result

    entered = list(entries([], given.enter))
    grades, found = sensitivities(makes, entered, range(given.seeds), say=_say)
    return {
        "headbench_grades": Result(_table(grades)),
        "headbench_sensitivity": Result(_table(found), figure.sensitivity(grades, found), drawn="sensitivity"),
    }


def _table(rows: Sequence[Any]) -> Table:
    """Of named tuples of one kind. UserError where there are none."""
    from mhprobe.report.tables import Table

    if not rows:
        raise UserError("headbench: none of the heads was verified, so nothing was measured. Raise --seeds.")
    return Table(list(rows[0]._fields), [list(row) for row in rows])


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
