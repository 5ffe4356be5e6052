"""A progress bar for work outside Lightning's loops: what is being done, how fast, how long it still takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol


class Advance(Protocol):
    """What ``progress`` yields."""

    def __call__(self, pieces: int, text: str | None = None, done: int | None = None) -> None:
        """``pieces`` were just finished. text: a new description. done: that many are finished or not needed."""
        ...


@contextlib.contextmanager
def progress(description: str, total: int, unit: str = "images", show: bool = True) -> Iterator[Advance]:
    """Yields a function to call with the number of pieces just finished, out of ``total``."""
    if not show:
        yield lambda pieces, text=None, done=None: None
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

        def advance(pieces: int, text: str | None = None, done: int | None = None) -> None:
            bars.advance(task, pieces)
            speed = bars.tasks[task].speed
            bars.update(
                task, description=text, completed=done, rate="" if speed is None else f"{speed:,.0f}/s"
            )  # fmt: skip

        yield advance
