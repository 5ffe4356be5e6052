"""Name of the machine's processor, and the memory that is free."""

import contextlib
import math
import platform
import re
from pathlib import Path


def processor() -> str:
    """Return the processor's name as Linux gives it, else the kind of machine."""
    with contextlib.suppress(OSError):
        if name := re.search(
            r"^model name\s*: *(.*?)\s*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        ):
            return name[1]
    return platform.processor() or platform.machine()


def free_memory(
    machine: Path = Path("/proc/meminfo"), container: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return the bytes that Linux calls available, with swap, within a container's limit; infinity elsewhere."""
    sizes = [math.inf]
    with contextlib.suppress(
        OSError, KeyError, ValueError
    ):  # a container without a limit has "max"
        lines = dict(re.findall(r"^(\w+): *(\d+) kB$", machine.read_text(), re.MULTILINE))
        sizes.append(1024 * (int(lines["MemAvailable"]) + int(lines["SwapFree"])))
        limit, used = (
            int((container / name).read_text()) for name in ("memory.max", "memory.current")
        )
        lines = dict(
            re.findall(r"^(\w+) (\d+)$", (container / "memory.stat").read_text(), re.MULTILINE)
        )
        sizes.append(limit - used + int(lines["inactive_file"]))  # a cache of files makes room
    return min(sizes)
