"""Ctrl-C and SIGTERM: the process says one line, keeps what is finished, and ends within ten seconds.

The handler says the line and raises. Every file is written whole or not at all, so a run may be left at any point. Only
training waits: it finishes its step and saves it (training/checkpoints.py).
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

GRACE = 8.0  # seconds for what has to be closed, e.g. a dashboard whose server is gone; then the process just ends
_tell: Callable[[int], object] = id  # who is told that a signal came


class Stopped(BaseException):
    """Somebody wants it to end. Not KeyboardInterrupt, which Lightning answers by itself with exit code 1."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.code = number, 128 + number


def listen(tell: Callable[[int], object]) -> None:
    """From now on SIGINT and SIGTERM stop this process. tell: is told at once which it was, before anything ends."""
    global _tell
    _tell = tell
    handle(stop)


def handle(handler: Any) -> None:
    """Both signals go to ``handler``. Only a main thread may say so; elsewhere somebody else does."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)


def stop(number: int, _frame: object = None) -> NoReturn:
    """Tell who listens, raise Stopped, and see to it that the process ends even if something holds the exception up."""
    handle(signal.SIG_IGN)  # the second of two signals must not break what the first has begun to close
    _tell(number)
    ending = threading.Timer(GRACE, os._exit, (128 + number,))
    ending.daemon = True
    ending.start()
    raise Stopped(number)
