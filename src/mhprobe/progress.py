"""A progress bar for work outside Lightning's loops: what is being done, how fast, how long it still takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(description: str, total: int, unit: str = "images", show: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of pieces just finished, out of ``total``."""
    if not show:
        yield lambda pieces: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, transient=True) as bars:
        task = bars.add_task(description, total=total, rate="")

        def advance(pieces: int) -> None:
            bars.advance(task, pieces)
            speed = bars.tasks[task].speed
            bars.update(task, rate="" if speed is None else f"{speed:,.0f}/s")

        yield advance
