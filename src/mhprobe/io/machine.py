"""Name of the machine's processor."""

import contextlib
import platform
import re
from pathlib import Path


def processor() -> str:
    """Return the processor's name as Linux gives it, else the kind of machine."""
    with contextlib.suppress(OSError):
        if name := re.search(r"^model name\s*: *(.*?)\s*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return name[1]
    return platform.processor() or platform.machine()
