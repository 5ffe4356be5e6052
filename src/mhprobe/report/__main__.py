"""python -m mhprobe.report RUN [RUN ...]: a run's report.html again, or several runs side by side in one page.

The folder of a sweep stands for its jobs.
"""

import argparse
from pathlib import Path

from mhprobe.errors import UserError, one_line
from mhprobe.io.stopping import outlive_readers
from mhprobe.report.html import write_comparison, write_report
from mhprobe.report.runs.run import expand


@one_line()
def main() -> None:
    """Print where the page is."""
    parser = argparse.ArgumentParser(prog="python -m mhprobe.report", description=__doc__.partition(": ")[2])
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="the folder of a finished run, or of a sweep")
    parser.add_argument("--out", type=Path, help="of a comparison: the page to write; comparison.html")
    given = parser.parse_args()
    runs = expand(given.runs)
    if len(runs) == 1 and given.out is not None:
        raise UserError(f"report: --out is for several runs; the page of one run goes into its folder, {runs[0]}.")
    print(write_report(runs[0]) if len(runs) == 1 else write_comparison(runs, given.out or Path("comparison.html")))


if __name__ == "__main__":
    outlive_readers()
    main()
