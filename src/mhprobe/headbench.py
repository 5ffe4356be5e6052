"""python -m mhprobe.headbench: which measures recognise heads whose function is known.

Builds small ViTs and Swins with planted heads, measures them, and writes tables/headbench.csv and
figures/headbench.png. Trains small ViTs, changes heads of theirs by grades (grafts), and writes
tables/headbench_grades.csv, headbench_sensitivity.csv and figures/headbench_sensitivity.png.
--enter takes a measure
of yours: package.module.Class.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhprobe.errors import UserError, one_line, whole_number
from mhprobe.io.options import Parser
from mhprobe.io.stopping import outlive_readers

if TYPE_CHECKING:
    from mhprobe.report.tables import Table

FAMILIES = ("vit", "swin")
KINDS = ("written", "grafts")
IMAGES = 64


@one_line()
def main() -> None:
    parser = Parser(prog="python -m mhprobe.headbench", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/headbench"), help="the folder to write"
    )
    parser.add_argument(
        "--heads", nargs="+", default=KINDS, choices=KINDS, help="written by hand, grafts, or both"
    )
    parser.add_argument(
        "--families", nargs="+", default=None, choices=FAMILIES, help="of the written networks"
    )
    parser.add_argument(
        "--seeds", type=int, default=10, help="how many models of each family, and trained ones"
    )
    parser.add_argument(
        "--images",
        type=int,
        default=None,
        help=f"images that are measured, per written model; {IMAGES} without it",
    )
    parser.add_argument("--measures", nargs="+", default=None, help="by name; all without it")
    parser.add_argument(
        "--enter", nargs="+", default=[], metavar="CLASS", help="measures of yours: module.Class"
    )
    parser.add_argument(
        "--style",
        choices=["screen", "paper"],
        default="screen",
        help="of figures: paper fits columns",
    )
    run(parser.parse_args())


def run(options: argparse.Namespace) -> None:
    """Run the benchmark.

    UserError for an unknown measure, for numbers that are too small, and for an option that the
    kinds of heads do not take.
    """
    from mhprobe.lab.headbench.bench import bench, entries
    from mhprobe.lab.headbench.sensitivity import refuse_without_grafts, sensitivities
    from mhprobe.report.figures import headbench as figure
    from mhprobe.report.report import Report, Result
    from mhprobe.report.runs.facts import origin_of_script

    whole_number("headbench: --seeds", options.seeds, 1)
    for name in ("families", "images"):
        if getattr(options, name) is not None and "written" not in options.heads:
            raise UserError(
                f"headbench: --{name}: is of written heads, got --heads {' '.join(options.heads)}. "
                "Leave it out, or add written to --heads."
            )
    families = FAMILIES if options.families is None else options.families
    images = IMAGES if options.images is None else options.images
    whole_number("headbench: --images", images, 2)
    makes = entries(options.measures, options.enter)
    entered = list(entries([], options.enter))
    if "grafts" in options.heads:
        refuse_without_grafts(makes, entered)
    report = Report(options.out, style=options.style)
    report.origin = origin_of_script("headbench")
    say = functools.partial(print, flush=True)
    seeds = range(options.seeds)
    about = "how well a measure finds planted heads", "it finds more of them"
    for kind in dict.fromkeys(options.heads):
        if kind == "written":
            rows = bench(makes, families, seeds, images, say=say)
            results = {
                "headbench": Result(_table(rows), figure.headbench(rows), drawn="headbench").saying(
                    *about
                )
            }
        else:
            grades, over_grades = sensitivities(makes, entered, seeds, say=say)
            drawn = Result(
                _table(over_grades), figure.sensitivity(grades, over_grades), drawn="sensitivity"
            )
            graded = Result(_table(grades)).saying(*about)
            results = {"headbench_grades": graded, "headbench_sensitivity": drawn.saying(*about)}
        print(*report.add(results), sep="\n")


def _table(rows: Sequence[Any]) -> "Table":
    from mhprobe.report.tables import from_rows

    if not rows:
        raise UserError(
            "headbench: none of the heads was verified, so nothing was measured. Raise --seeds."
        )
    return from_rows([row._asdict() for row in rows])


if __name__ == "__main__":
    outlive_readers()
    main()
