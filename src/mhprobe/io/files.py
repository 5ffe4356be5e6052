"""Files appear whole or not at all."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from mhprobe.errors import UserError, short


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to under a temporary name in the same folder; synced and renamed to ``path`` at the end.

    A failure leaves ``path`` as it was and nothing else; one of the folder or the disk is a
    UserError.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
        )
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.umask(mask := os.umask(0))
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp's 0600 would hide results from the group
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UserError(
                f"cannot write {path} ({reason(error, path)}). Make room or choose out=..."
            ) from error
        raise


def reason(error: OSError, path: Path) -> str:
    """Why ``path`` cannot be written: in the system's words, and where room is short how much there is."""
    message = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return message
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return f"{message}: {shutil.disk_usage(there).free:,} bytes are free there"


def absent(path: Path) -> str:
    """Return "no file PATH", or that it is a folder."""
    return f"{path} is a folder, expected a file" if path.is_dir() else f"no file {path}"


def unreadable(path: Path) -> str:
    """Return a clause on a path that is no file with something in it, with what to do; "" for one that is."""
    try:
        path.stat()
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # a name of 300 letters
            return f"{short(str(path), 100)} cannot be read ({error.strerror})."
    if path.is_dir():
        return f"{path} is a folder, expected a file. Name the file of weights in it."
    if not path.is_file():
        return f"no file {path}."
    return "" if path.stat().st_size else f"{path} is empty (0 bytes). Copy it again."


def write(path: Path, data: bytes) -> Path:
    """Write ``data`` as the file ``path``, whole or not at all."""
    return write_all({path: data})[0]


def write_all(files: Mapping[Path, bytes]) -> list[Path]:
    """Several files that belong together.

    A full disk is noticed before the first of them appears.
    """
    with contextlib.ExitStack() as stack:
        for path, data in files.items():
            file = stack.enter_context(replacing(path))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    return list(files)
