"""A disk that is full from a moment on: at each moment of a command a fork finds it so, and says how it ends.

A command runs once. Whenever it creates a file or a folder, and whenever it writes, it forks: the
child is refused, then and from there on, and goes to its end; the parent waits, puts back what the
child changed, and goes on. So a sweep over all writes costs one run, and an end for each of them.

``obey`` is asked of a fork of the server of tests. It prints a line of JSON per moment.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

REAL = {
    name: getattr(os, name)
    for name in ("open", "write", "fsync", "mkdir", "posix_fallocate", "ftruncate")
}
OPEN = io.open


class Disk:
    """What lies in ``folder``.

    full: "files" if nothing can be created, "bytes" if nothing can be written.
    """

    def __init__(self, folder: Path, told: Any) -> None:
        self.folder, self.told, self.full, self.busy = folder, told, "", False

    def has(self, path: Any) -> bool:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        return Path(os.path.abspath(os.fsdecode(path))).is_relative_to(self.folder)

    def moment(self, kind: str, path: Any) -> None:
        """``path`` is about to be created ("files") or written to ("bytes")."""
        if self.busy or not self.has(path):
            return
        if not self.full:
            self._fork(
                kind,
                os.readlink(f"/proc/self/fd/{path}")
                if isinstance(path, int)
                else os.fsdecode(path),
            )
        if self.full == kind:
            raise OSError(
                errno.ENOSPC,
                os.strerror(errno.ENOSPC),
                *([] if kind == "bytes" else [os.fsdecode(path)]),
            )

    def _fork(self, kind: str, path: str) -> None:
        self.busy = True
        safe = Path(tempfile.mkdtemp(dir=self.folder.parent))
        before = {each: each.read_bytes() for each in self._files()}
        for number, each in enumerate(before):
            os.link(each, safe / str(number))
        folders = {each for each in self.folder.rglob("*") if each.is_dir()}
        out = os.memfd_create("out")
        err = os.memfd_create("err")
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.dup2(out, 1), os.dup2(err, 2)
            signal.alarm(100)
            self.full, self.busy = kind, False
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        after = {each: each.read_bytes() for each in self._files()}
        end = {
            "kind": kind,
            "path": str(Path(path).absolute().relative_to(self.folder)),
            "code": code,
            "out": os.pread(out, 1 << 20, 0).decode(),
            "err": os.pread(err, 1 << 20, 0).decode(),
            "left": [str(each.relative_to(self.folder)) for each in after],
            "changed": [
                str(each.relative_to(self.folder))
                for each, data in before.items()
                if after.get(each, data) != data
            ],
            "lost": [str(each.relative_to(self.folder)) for each in before if each not in after],
        }
        os.close(out), os.close(err)
        for number, (each, data) in enumerate(
            before.items()
        ):  # the very files: the parent has some of them open
            if each not in after:
                each.parent.mkdir(parents=True, exist_ok=True)
                os.link(safe / str(number), each)
            elif after[each] != data:
                each.write_bytes(data)
        for each in folders:
            each.mkdir(parents=True, exist_ok=True)
        for each in set(after) - set(before):
            each.unlink()
        for each in sorted(
            (p for p in self.folder.rglob("*") if p.is_dir() and p not in folders), reverse=True
        ):
            each.rmdir()
        shutil.rmtree(safe)
        self.busy = False
        REAL["write"](self.told, (json.dumps(end) + "\n").encode())

    def _files(self) -> list[Path]:
        return [each for each in self.folder.rglob("*") if each.is_file()]


def watch(disk: Disk) -> None:
    """From now on all that this process creates and writes is asked of ``disk``."""

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            disk.moment("bytes", self.fileno())
            return super().write(data)

    def opened(
        file,
        mode="r",
        buffering=-1,
        encoding=None,
        errors=None,
        newline=None,
        closefd=True,
        opener=None,
    ):
        if not set(mode) & set("wax+") or not disk.has(file):
            return OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int) and not os.path.exists(file):
            disk.moment("files", file)
        raw = File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline)
        text.mode = mode
        return text

    def os_open(path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is None and flags & os.O_CREAT and not os.path.exists(path):
            disk.moment("files", path)
        return REAL["open"](path, flags, mode, dir_fd=dir_fd)

    def mkdir(path, mode=0o777, *, dir_fd=None):
        if dir_fd is None and not os.path.exists(path):
            disk.moment("files", path)
        return REAL["mkdir"](path, mode, dir_fd=dir_fd)

    def on_bytes(name):
        def called(handle, *rest):
            disk.moment("bytes", handle)
            return REAL[name](handle, *rest)

        return called

    builtins.open = io.open = opened
    os.open, os.mkdir = os_open, mkdir
    os.write, os.fsync, os.posix_fallocate = (
        on_bytes("write"),
        on_bytes("fsync"),
        on_bytes("posix_fallocate"),
    )


def ended(task: str) -> int:
    import mhprobe.framework.run.cli

    try:
        mhprobe.framework.run.cli.main(task)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush(), sys.stderr.flush()
    return 0


def obey(task: str, overrides: list[str], folder: str) -> None:
    """A command whose disk is ``folder``: what lies elsewhere can be written."""
    told = os.dup(1)
    os.dup2(2, 1)
    sys.argv = [f"python -m mhprobe.{task}", *overrides]
    Path(folder).mkdir(parents=True)
    watch(Disk(Path(folder).resolve(), told))
    os._exit(ended(task))  # who tidies up a copy of all memory copies it
