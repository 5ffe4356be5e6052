"""Files appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mhprobe.errors import UserError


def write(path: Path, data: bytes) -> Path:
    """Write under a temporary name in the same folder, flush to disk, rename. UserError where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    except OSError as error:
        raise _refused(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's 0600 would hide results from the group
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise _refused(path, error) from error
    return path


def _refused(path: Path, error: OSError) -> UserError:
    return UserError(f"results: cannot write {path} ({error.strerror or error}). Free space or name another folder.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
