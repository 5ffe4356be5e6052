"""What a command shows: one live view on a terminal, a line per event elsewhere, nothing when it is off."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys

import pytest

from mhprobe.io import progress as shown
from mhprobe.io.progress import announce_stage, duration, progress, screen, show_best

log = logging.getLogger("mhprobe.somewhere")


def work() -> None:
    announce_stage("masking curve 1 of 2: head_max")
    with progress("head_max on test", 30) as done:
        done(10, "head_max on test, step 1")
        show_best("91.0 %")
        log.info("an event")
        log.debug("a detail")
        done(20)


def test_without_a_terminal_every_event_is_a_line_and_nothing_is_blank(capsys):
    with screen("mhprobe.mask digits"):
        work()
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line[9:] for line in lines] == ["masking curve 1 of 2: head_max", "an event"]
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines) and not said.err


def test_long_work_is_a_line_at_times_and_at_its_end(capsys, monkeypatch):
    now = iter([0.0, 10.0, 70.0, 80.0, 200.0])
    monkeypatch.setattr(shown.time, "monotonic", lambda: next(now))
    with screen("", "lines"), progress("probing", 1000) as done:
        done(100)
        done(600)
        done(300)
    lines = [line[9:] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "probing: 700 of 1,000 images, 10/s, about 30 s left",
        "probing: 1,000 images in 3 min",
    ]


def test_the_rate_of_resumed_work_leaves_out_what_an_earlier_run_finished(capsys, monkeypatch):
    now = iter([0.0, 0.0, 70.0, 80.0])
    monkeypatch.setattr(shown.time, "monotonic", lambda: next(now))
    with screen("", "lines"), progress("training", 6000, "batches") as done:
        done(0, done=5000)
        done(140)
    lines = [line[9:] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "training: 5,140 of 6,000 batches, 2.0/s, about 7 min left"


def test_the_rate_is_that_of_the_step_which_skipped_work_led_to(capsys, monkeypatch):
    """A search that need not try every candidate jumps ahead: 10/s are not 600 in 190 s."""
    now = iter([0.0, 100.0, 130.0, 190.0, 200.0])
    monkeypatch.setattr(shown.time, "monotonic", lambda: next(now))
    with screen("", "lines"), progress("choosing", 6000, "image-forwards") as done:
        done(100)
        done(0, "step 2", done=3000)
        done(600)
    lines = [line[9:] for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "step 2: 3,600 of 6,000 image-forwards, 10/s, about 4 min left"


def test_work_that_takes_longer_than_guessed_does_not_say_that_it_is_done(capsys, monkeypatch):
    now = iter([0.0, 100.0, 200.0])
    monkeypatch.setattr(shown.time, "monotonic", lambda: next(now))
    with screen("", "lines"), progress("choosing", 1000, "image-forwards") as done:
        done(2000)
    lines = [line[9:] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "choosing: 2,000 of 1,000 image-forwards, 20/s, more than expected"


def test_a_bar_of_resumed_work_does_too(monkeypatch):
    with (
        screen("", "lines"),
        shown._view() as bars,
        shown._bar(bars, "training", 6000, "batches") as done,
    ):
        done(0, done=5000)
        task = bars.tasks[0]
        assert (task.completed, task.total) == (5000, 6000) and not task.speed
        task.start_time -= 70
        done(140)
        assert task.completed == 5140 and sum(sample.completed for sample in task._progress) == 140


def test_verbose_says_details_and_who_says_them(capsys):
    with screen("", "auto", verbose=True):
        work()
    out = capsys.readouterr().out
    assert (
        "DEBUG mhprobe.somewhere: a detail" in out and "head_max on test: 30 images in 0 s" in out
    )


def test_off_is_silent_but_for_warnings(capsys):
    with screen("", "off"):
        work()
        log.warning("no server")
    assert capsys.readouterr() == ("", "no server\n")


def test_logging_is_left_as_it_was():
    logger = logging.getLogger("mhprobe")
    before = logger.handlers[:], logger.level, logger.propagate
    with pytest.raises(KeyError), screen("", "lines"):
        assert logger.handlers != before[0]
        raise KeyError
    assert (logger.handlers, logger.level, logger.propagate) == before


def everything(terminal: int) -> bytes:
    """What was written to it: one read gives no more than one of its buffers."""
    found = b""
    with contextlib.suppress(OSError):  # at the end, as nobody writes any more
        while more := os.read(terminal, 1 << 16):
            found += more
    return found


def test_a_terminal_has_one_view_with_the_title_the_stage_and_the_best(monkeypatch):
    reading, writing = os.openpty()
    with os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        with screen("mhprobe.mask digits"):
            assert shown._screen.bars is not None
            work()
            shown._screen.bars.refresh()
            with progress("outer", 2), progress("inner", 2):
                shown._screen.bars.refresh()
    written = everything(reading).decode()
    os.close(reading)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    assert "mhprobe.mask digits  masking curve 1 of 2: head_max  best: 91.0 %" in text
    assert "an event" not in text  # the view has it
    last = text.split("mhprobe.mask")[-1]
    assert "outer" in last and "inner" in last  # one view, a row each


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (7500, "2 h 5 min")]
)
def test_durations_are_short(seconds, said):
    assert duration(seconds) == said
