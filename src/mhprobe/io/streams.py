"""Standard output that goes away does not take a run along: what is printed after ``| head`` has left is dropped."""

import os
import sys
from typing import IO, Any


def outlive_readers() -> None:
    """From now on a closed or broken standard output or error is as good as one that nobody reads."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # closed before Python began; a file that is opened later must not get its number
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

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _to_nowhere(number: int) -> None:
    """The file descriptor ``number``, also of child processes that begin later, is /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
