"""Summary of a run on the terminal: sentences, what each order leaves of half the heads, places of the files."""

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
    for line in words.result_in_words(run, atlas.heads_listed(run), atlas.measures(run)):
        console.print(line, markup=False, soft_wrap=True)
    if (table := _curves(run)) is not None:
        named = words.half(run, len(atlas.heads_listed(run)))
        title = f"{named.point['heads_masked']} of {named.total} heads off" if named else ""
        console.print(f"\n[bold]{title}[/bold]", table, sep="\n")
    console.print()
    for name, place in (("tables and figures", run.folder), ("report", run.folder / "report.html")):
        if place.exists():
            console.print(
                f"{name}: [link={place.as_uri()}]{escape(str(place))}[/link]", soft_wrap=True
            )


def _curves(run: Run) -> Table | None:
    """Return a table of what each order leaves with the same number of heads off, on the same images."""
    chosen = words.half(run, len(atlas.heads_listed(run)))
    if chosen is None or words.guesses(run):
        return None
    count = chosen.point["heads_masked"]
    table = Table("order", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(f"{chosen.reported} {atlas.score_name(run)}", justify="right", no_wrap=True)
    table.add_column("change in points", justify="right", no_wrap=True)
    for line in atlas.lines(run):
        point = next((p for p in line["points"] if p["heads_masked"] == count), None)
        if line["split"] != chosen.reported or point is None:
            continue
        table.add_row(
            escape(str(line["curve"])), words.accuracy_with_interval(point), words.change(point)
        )
    return table
