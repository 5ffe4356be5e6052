"""Summary of a run on the terminal: sentences, extreme heads, places of the files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.run import Run, read_run

SHOWN = 5  # heads at either end
WIDTH = 110  # of what is read; paths are never broken


def show(folder: Path, console: Console | None = None) -> None:
    """Print the results of the run in ``folder``, and links to its files."""
    console = console or Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    run = read_run(folder)
    heads, measures = atlas.heads(run), atlas.measures(run)
    for line in words.result(run, heads, measures, extremes=False):
        console.print(line, markup=False, soft_wrap=True)
    for title, table in (*_curves(run), *_extremes(run, heads, measures)):
        console.print(f"\n[bold]{escape(title)}[/bold]")
        console.print(table)
    console.print()
    for name, place in (("tables and figures", run.folder), ("report", run.folder / "report.html")):
        if place.exists():
            console.print(f"{name}: [link={place.as_uri()}]{escape(str(place))}[/link]", soft_wrap=True)


def _extremes(run: Run, heads: list[dict[str, Any]], measures: list[dict[str, Any]]) -> Iterable[tuple[str, Table]]:
    """Yield a table of the heads with the largest and the smallest values of the run's first measure."""
    keys = [measure["key"] for measure in measures]
    key = next((name for name in run.config.get("measure") or {} if name in keys), keys[0] if keys else "")
    first = measures[keys.index(key)] if keys else None
    order = words.by_size(first) if first else []
    if first is None or len(order) < 2 or len(set(words.values(first))) <= 2:
        return
    some = min(SHOWN, len(order) // 2)
    table = _table({"the largest": "left", "": "right", "the smallest": "left", " ": "right"})
    for high, low in zip(order[:some], order[::-1][:some], strict=True):
        table.add_row(*words.named(heads, first, high), *words.named(heads, first, low))
    yield first["label"], table


def _curves(run: Run) -> Iterable[tuple[str, Table]]:
    """Yield a table of the heads that each searched order lets go, on test images and on those that chose it."""
    chosen_on = {line["curve"]: line["chosen_on"] for line in atlas.lines(run) if not line["averaged"]}
    totals = {(row["curve"], row["split"]): row for row in atlas.totals(run)}
    orders = [name for name, split in chosen_on.items() if (name, split) in totals]
    if not orders or words.guesses(run):
        return
    sides: dict[str, JustifyMethod] = {"order": "left", "within 1 point on test": "right", "where chosen": "right"}
    table = _table({**sides, "before test is worse": "right"})
    for name in orders:
        here, test = totals[name, chosen_on[name]], totals.get((name, "test"), {})
        counts = (test.get("heads_within_1_point"), here.get("heads_within_1_point"), test.get("heads_before_worse"))
        table.add_row(escape(str(name)), *("-" if count is None else f"{count:g}" for count in counts))
    yield "heads that can be masked", table


def _table(columns: Mapping[str, JustifyMethod]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, side in columns.items():
        table.add_column(column, justify=side, no_wrap=True)
    return table
