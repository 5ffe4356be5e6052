"""Read files that may be a stranger's: ordinary ones of a limited size, looked at before they are opened.

A pipe would be waited for, a device has no end, and a large JSON takes ten times its size in memory.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from mhprobe.errors import UserError

MOST_JSON = 16_000_000  # bytes; the description of a network with 20,000 named classes has 2 MB


def unlike_ordinary(status: os.stat_result, most: int | None) -> str:
    """Return why a file is not read: it is no ordinary file, or has more than ``most`` bytes; "" if it is read."""
    if not stat.S_ISREG(status.st_mode):
        return "not an ordinary file"
    if most is not None and status.st_size > most:
        return f"{status.st_size:,} bytes, expected at most {most:,}"
    return ""


def ordinary(path: Path, most: int | None, where: str) -> Path:
    """Return ``path``, a file of at most ``most`` bytes (None: any size), or a link to one.

    where: what is being read, for the error. Raises FileNotFoundError if there is none, and
    UserError for a pipe, a device, a folder or a larger file.
    """
    if reason := unlike_ordinary(path.stat(), most):
        raise UserError(f"{where}: {path}: {reason}. It is not read; copy the file again.")
    return path


def read_json(path: Path, where: str, most: int = MOST_JSON) -> Any:
    """Return the plain values in a JSON file.

    Raises UserError as ``ordinary``, OSError if there is none, ValueError or RecursionError for
    what is no JSON.
    """
    return json.loads(ordinary(path, most, where).read_bytes().decode("utf-8"))
