"""python -m mhprobe.compare RUN [RUN ...]: runs in one table and one figure, with the spread over seeds (no training).

RUN is the folder of a run or of a sweep. Writes tables and figures ``runs``, ``groups``, ``curves`` and ``agreement``
(of the heads), of runs that differ in two settings or more the table ``grid`` (accuracy by these), the table ``paired``
(McNemar's test of every two runs that were tested on the same images), of runs of mhprobe.claims the matrix ``claims``,
and comparison.html, which shows two or more runs side by side.
"""

import argparse
from pathlib import Path

from mhprobe.errors import one_line
from mhprobe.io.stopping import outlive_readers


@one_line()
def main() -> None:
    """Print a line per group and where the rest is."""
    parser = argparse.ArgumentParser(prog="python -m mhprobe.compare", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="the folder of a finished run, or of a sweep")
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="the folder to write into")
    parser.add_argument("--over", nargs="+", default=["seed"], metavar="SETTING", help="what runs of a group differ in")
    parser.add_argument("--style", choices=["screen", "paper"], default="screen", help="of figures: paper fits columns")
    given = parser.parse_args()
    from mhprobe.report.html import write_comparison
    from mhprobe.report.report import Report
    from mhprobe.report.runs.facts import origin_of_script
    from mhprobe.report.runs.folder import reading
    from mhprobe.report.runs.run import expand
    from mhprobe.report.several import about, inert, lines, several

    with reading(Path(", ".join(map(str, given.runs)))):
        results = several(given.runs, given.over)
        described = about(given.runs)
    report = Report(given.out, style=given.style)
    report.origin = origin_of_script("compare")
    report.data, report.images = described
    report.add_all({name: inert(result) for name, result in results.items()})
    page = write_comparison(expand(given.runs), given.out / "comparison.html")
    print(*lines(results), f"tables and figures: {given.out}", page, sep="\n")


if __name__ == "__main__":
    outlive_readers()
    main()
