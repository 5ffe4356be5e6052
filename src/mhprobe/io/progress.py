"""Progress of a command: on a terminal one live view, elsewhere a line per event, or nothing.

A command opens a ``screen``; without one, as in a notebook, ``progress`` is a bar of its own. rich
draws bars; where it is not installed, lines stand in for them.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("mhprobe")
EVERY = 60  # seconds between two lines about the same piece of work
WORTH_A_LINE = 5  # seconds that work has to take for a line at its end

Advance = Callable[..., None]
"""(pieces, text=None, done=None) counts ``pieces`` as finished. text: a new description. done: pieces that an earlier
run finished; the rate leaves them out."""


class _Screen:
    bars: "Progress | None" = None  # the live view, None where there is no terminal to show it on
    mode: str | None = None  # None: no command has opened one
    title = stage = best = ""

    @property
    def header(self) -> str:
        return "  ".join(part for part in (self.title, self.stage, self.best) if part)


_screen = _Screen()


@contextlib.contextmanager
def screen(title: str, mode: str = "auto", verbose: bool = False) -> Iterator[None]:
    """Everything inside is shown in one place. title: what runs.

    mode: "auto" (live on a terminal, lines elsewhere), "lines", or "off". verbose: every event is a
    line, also details.
    """
    global _screen
    live = mode == "auto" and sys.stdout.isatty()
    before, _screen = _screen, _Screen()
    _screen.mode, _screen.title = mode, title
    level = logging.WARNING if live or mode == "off" else logging.INFO
    with (
        _events(logging.DEBUG if verbose else level, verbose),
        _view() if live else contextlib.nullcontext() as bars,
    ):
        _screen.bars = bars
        try:
            yield
        finally:
            _screen = before


def announce_stage(text: str) -> None:
    """Announce the next piece of work, e.g. "masking curve 2 of 6: layer_max"."""
    _screen.stage, _screen.best = text, ""
    log.info("%s", text)


def announce(lines: Sequence[str]) -> None:
    """Lines that are shown above a live view, too: what a command is about to do."""
    for line in lines:
        log.info("%s", line)
        if _screen.bars is not None:
            _screen.bars.console.print(line, highlight=False, markup=False)


def show_best(text: str) -> None:
    """Show the best result so far in the live view."""
    _screen.best = f"best: {text}"


@contextlib.contextmanager
def progress(
    description: str, total: int, unit: str = "images", show: bool = True
) -> Iterator[Advance]:
    """Yields a function to call with the number of pieces just finished, out of ``total``."""
    if not show or _screen.mode == "off":
        yield lambda pieces, text=None, done=None: None
    elif _screen.bars is not None:
        with _bar(_screen.bars, description, total, unit) as advance:
            yield advance
    elif _screen.mode is not None or not _can_move():
        with _lines(description, total, unit) as advance:
            yield advance
    else:
        with _view() as bars, _bar(bars, description, total, unit) as advance:
            yield advance


@contextlib.contextmanager
def _bar(bars: "Progress", description: str, total: int, unit: str) -> Iterator[Advance]:
    task = bars.add_task(description, total=total, unit=unit, rate="")

    def advance(pieces: int, text: str | None = None, done: int | None = None) -> None:
        if done is not None:
            bars.reset(task, completed=done)
        bars.advance(task, pieces)
        speed = bars.tasks[bars.task_ids.index(task)].speed
        bars.update(task, description=text, rate="" if speed is None else pace(speed))

    try:
        yield advance
    finally:
        bars.remove_task(task)


def pace(rate: float) -> str:
    """Return pieces per second in words, slow ones as seconds for each.

    >>> pace(1234.5), pace(1.46), pace(0.05)
    ('1,234/s', '1.5/s', '20 s each')
    """
    if rate >= 1:
        return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
    return f"{1 / rate:.0f} s each" if rate > 0 else ""


@contextlib.contextmanager
def _lines(description: str, total: int, unit: str) -> Iterator[Advance]:
    """Log a line a minute, and one at the end of work that took a while."""
    began = since = last_line = time.monotonic()
    finished, earlier, work = 0, 0, description

    def advance(pieces: int, text: str | None = None, done: int | None = None) -> None:
        nonlocal last_line, finished, earlier, since, description
        now, description = time.monotonic(), text or description
        if done is not None:
            finished, earlier, since = done, done, now
        finished += pieces
        if now - last_line > EVERY and finished > earlier:
            last_line, rate = now, (finished - earlier) / (now - since)
            rest = (
                f"about {duration((total - finished) / rate)} left"
                if finished <= total
                else "more than expected"
            )
            log.info(
                "%s: %s of %s %s, %s, %s",
                description,
                f"{finished:,}",
                f"{total:,}",
                unit,
                pace(rate),
                rest,
            )

    yield advance
    took = time.monotonic() - began
    level = logging.INFO if took > WORTH_A_LINE else logging.DEBUG
    log.log(level, "%s: %s %s in %s", work, f"{finished:,}", unit, duration(took))


def duration(seconds: float) -> str:
    """Seconds in words: "8 s", "3 min", "2 h 5 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _can_move() -> bool:
    """Return True if written lines can be rewritten: at a terminal, in a notebook, with rich to do it."""
    try:
        from rich.console import Console
    except ImportError:
        return False
    console = Console()  # rich's own remembers what stdout was when somebody first asked
    return console.is_interactive or console.is_jupyter


def _view() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class View(Progress):
        def get_renderables(self) -> Iterator[Any]:
            if _screen.header:
                yield Text(_screen.header, style="bold", overflow="ellipsis", no_wrap=True)
            yield self.make_tasks_table(self.tasks)

    count = TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn()
    speed = (
        TextColumn("{task.fields[unit]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    return View(*count, *speed, console=Console(), transient=True, refresh_per_second=4)


class _Terminal(logging.Handler):
    """Lines to the streams of the moment: a live view stands in for them.

    What is wrong goes to stderr.
    """

    def emit(self, record: logging.LogRecord) -> None:
        wrong = record.levelno >= logging.WARNING
        print(
            record.getMessage() if wrong else self.format(record),
            file=sys.stderr if wrong else sys.stdout,
        )


@contextlib.contextmanager
def _events(level: int, verbose: bool) -> Iterator[None]:
    """Let events of ``level`` and above through to the terminal."""
    handler, before = _Terminal(level), (log.level, log.propagate)
    where = " %(levelname)s %(name)s:" if verbose else ""
    handler.setFormatter(logging.Formatter(f"%(asctime)s{where} %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(min(level, logging.WARNING))
    log.propagate = False  # Hydra has a handler at the root
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before
