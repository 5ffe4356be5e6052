"""Memory that was freed, given back to the system."""

import ctypes
import sys


def give_back() -> None:
    """Hand freed memory back, where the C library is glibc: it keeps what lies between blocks still in use.

    Of torch's aligned blocks it can seldom use such a gap again, so a process that keeps a little of
    every batch grows with each. Elsewhere this does nothing.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)
