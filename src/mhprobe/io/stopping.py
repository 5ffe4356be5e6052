"""Ctrl-C and SIGTERM: the process says one line, keeps what is finished, and ends within ten seconds.

Every file is written whole or not at all, so a run may be left at any point. Only training waits,
to finish its step and save it (framework/training/checkpoints.py).
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO, Any, NoReturn

# seconds for what has to be closed, e.g. a dashboard whose server is gone; then the process just
# ends
GRACE = 8.0
_tell: Callable[[int], object] = id  # who is told that a signal came


class Stopped(BaseException):
    """Somebody wants it to end.

    Not KeyboardInterrupt, which Lightning answers by itself with exit code 1.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.code = number, 128 + number


def listen(tell: Callable[[int], object]) -> None:
    """Make SIGINT and SIGTERM stop this process.

    tell: called at once with the signal, before anything ends.
    """
    global _tell
    _tell = tell
    sys.unraisablehook = _raise_again
    handle(stop)


def handle(handler: Any) -> None:
    """Send both signals to ``handler``.

    Outside the main thread, which alone may, nothing is done.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)


def stop(number: int, _frame: object = None) -> NoReturn:
    """Tell who listens, raise Stopped, and see to it that the process ends even if something holds the exception up."""
    handle(
        signal.SIG_IGN
    )  # the second of two signals must not break what the first has begun to close
    _tell(number)
    # Python has no other way to end a process with this code while its main thread hangs in C
    ending = threading.Timer(GRACE, os._exit, (128 + number,))
    ending.daemon = True
    ending.start()
    raise Stopped(number)


def _raise_again(dropped: Any) -> None:
    """Raise Stopped once more if it came while Python was cleaning up an object: there Python drops any exception.

    dropped: what Python tells of an exception that it dropped. Others are reported as always.
    """
    if not isinstance(dropped.exc_value, Stopped):
        return sys.__unraisablehook__(dropped)
    number = dropped.exc_value.number
    signal.signal(number, _raise)
    threading.Timer(
        0.01, os.kill, (os.getpid(), number)
    ).start()  # from outside of what is cleaned up here


def _raise(number: int, _frame: object) -> NoReturn:
    handle(signal.SIG_IGN)
    raise Stopped(number)


def outlive_readers() -> None:
    """Drop what is written to a closed or broken standard output or error, instead of failing."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if (
            stream is None
        ):  # closed before Python began; a file that is opened later must not get its number
            _to_nowhere(number)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115  # for as long as the process lives
        elif not isinstance(stream, _Outliving):
            setattr(sys, name, _Outliving(stream))


class _Outliving:
    """A text stream whose writes go nowhere once nobody reads them."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            _to_nowhere(self._stream.fileno())
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            _to_nowhere(self._stream.fileno())
            self._stream.flush()  # what was still to be written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _to_nowhere(number: int) -> None:
    """The file descriptor ``number``, also of child processes that begin later, is /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
