"""Summary of a run on the terminal: sentences, heads that each order lets go, places of the files."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.run import Run, read_run

WIDTH = 110  # of what is read; paths are never broken


def show(folder: Path, console: Console | None = None) -> None:
    """Print the results of the run in ``folder``, and links to its files."""
    console = console or Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    run = read_run(folder)
    for line in words.result(run, atlas.heads(run), atlas.measures(run)):
        console.print(line, markup=False, soft_wrap=True)
    if (table := _curves(run)) is not None:
        console.print("\n[bold]heads that can be masked[/bold]", table, sep="\n")
    console.print()
    for name, place in (("tables and figures", run.folder), ("report", run.folder / "report.html")):
        if place.exists():
            console.print(
                f"{name}: [link={place.as_uri()}]{escape(str(place))}[/link]", soft_wrap=True
            )


def _curves(run: Run) -> Table | None:
    """Return a table of the heads that each searched order lets go, on test images and on those that chose it."""
    chosen_on = {
        line["curve"]: line["chosen_on"] for line in atlas.lines(run) if not line["averaged"]
    }
    totals = {(row["curve"], row["split"]): row for row in atlas.totals(run)}
    orders = [name for name, split in chosen_on.items() if (name, split) in totals]
    if not orders or words.guesses(run):
        return None
    table = Table("order", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("within 1 point on test", "where chosen", "before test is worse"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in orders:
        here, test = totals[name, chosen_on[name]], totals.get((name, "test"), {})
        counts = (
            test.get("heads_within_1_point"),
            here.get("heads_within_1_point"),
            test.get("heads_before_worse"),
        )
        table.add_row(
            escape(str(name)), *("-" if count is None else f"{count:g}" for count in counts)
        )
    return table
