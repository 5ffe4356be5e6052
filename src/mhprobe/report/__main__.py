"""python -m mhprobe.report FOLDER: write report.html of a finished run or sweep again (compare: mhprobe.compare)."""

from pathlib import Path

from mhprobe.errors import one_line
from mhprobe.io.options import Parser
from mhprobe.io.stopping import outlive_readers
from mhprobe.pages.html import write_comparison, write_report
from mhprobe.report.runs.run import expand, read_runs


@one_line()
def main() -> None:
    """Print the path of the page."""
    parser = Parser(prog="python -m mhprobe.report", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="the folder of a finished run, or of a sweep"
    )
    folder = parser.parse_args().folder
    runs = expand([folder])
    print(
        write_report(*runs)
        if len(runs) == 1
        else write_comparison(read_runs(runs), folder / "report.html")
    )


if __name__ == "__main__":
    outlive_readers()
    main()
