"""python -m mhprobe.compare RUN [RUN ...]: runs in one table and one figure, with the spread over seeds (no training).

RUN is the folder of a run or of a sweep. Writes tables and figures ``runs``, ``groups``, ``curves``
and ``agreement`` (of the heads); the table ``paired`` (McNemar's test of every two runs on the same
test images); the table ``grid`` (accuracy by setting) of runs that differ in two settings or more;
the matrix ``claims`` of runs of mhprobe.lab.claims; ``prunebench_ranking`` of runs of
mhprobe.prunebench (methods over networks); comparison.html, the runs side by side. Of two runs of
one architecture a line says which ``mhprobe diff`` compares their heads.
"""

from pathlib import Path

from mhprobe.errors import one_line, short
from mhprobe.io.options import Parser
from mhprobe.io.stopping import outlive_readers


@one_line()
def main() -> None:
    """Print a line per group and the places of the files."""
    parser = Parser(
        prog="python -m mhprobe.compare", description=(__doc__ or "").partition(": ")[2]
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=Path,
        help="the folder of a finished run, or of a sweep",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("comparison"), help="the folder to write into"
    )
    parser.add_argument(
        "--over",
        nargs="+",
        default=["seed"],
        metavar="SETTING",
        help="what runs of a group differ in",
    )
    parser.add_argument(
        "--style",
        choices=["screen", "paper"],
        default="screen",
        help="of figures: paper fits columns",
    )
    options = parser.parse_args()
    from mhprobe.io.tensors import digest
    from mhprobe.pages.html import write_comparison
    from mhprobe.pages.several import (
        answers,
        data_of_runs,
        groups_in_words,
        head_by_head,
        inert,
        several,
    )
    from mhprobe.report.report import Report
    from mhprobe.report.runs.facts import origin_of_script
    from mhprobe.report.runs.folder import reading
    from mhprobe.report.runs.run import names, read_runs
    from mhprobe.report.runs.words import unread

    report = Report(options.out, style=options.style)
    report.origin = origin_of_script("compare")
    with reading(Path(", ".join(map(str, options.runs)))):
        runs = read_runs(options.runs)
        compared = {str(run.folder): "run" for run in runs} | dict.fromkeys(options.over, "over")
        report.begin(
            {
                digest({}, compared)[:8]: short(
                    ", ".join(run.resolve().name for run in options.runs), 80
                )
            }
        )
        results = several(runs, options.over)
        report.data, report.images = data_of_runs(runs)
    report.add({name: inert(result) for name, result in results.items()})
    page = write_comparison(
        runs, options.out / "comparison.html", results.get("prunebench_ranking")
    )
    first = answers(runs, names(runs))
    said = [*unread(runs), *first, *groups_in_words(results), *head_by_head(runs)]
    print(*said, f"tables and figures: {options.out}", page, sep="\n")


if __name__ == "__main__":
    outlive_readers()
    main()
