"""Files by name, out of a folder, a tar or a zip, read in one stream; nothing is unpacked to disk."""

from __future__ import annotations

import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from mhprobe.errors import UserError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
# what the standard library raises for damage; RuntimeError is zipfile's for encrypted files
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError, RuntimeError)


class Archive(Protocol):
    path: Path

    def names(self) -> list[str]:
        """Every file's name below the root, with / between parts."""

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """The wanted files' contents, in the order that streams best."""

    def key(self) -> dict[str, Any]:
        """What changes when the contents change, without reading them."""


def open_archive(path: str | Path) -> Archive:
    """The folder or archive at ``path``; UserError when it is missing or neither."""
    path = Path(path).expanduser()
    if path.is_dir():
        return Folder(path)
    if not path.exists():
        raise UserError(f"data.root: {path} does not exist. Give a folder or a .tar, .tar.gz, .tgz or .zip archive.")
    name = path.name.lower()
    if name.endswith(TAR_SUFFIXES):
        return Tar(path)
    if name.endswith(".zip"):
        return Zip(path)
    raise UserError(f"data.root: expected a folder or a .tar, .tar.gz, .tgz or .zip archive, got {path}.")


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        # class folders are often links to somewhere else
        return [
            (Path(folder) / file).relative_to(self.path).as_posix()
            for folder, _, files in os.walk(self.path, followlinks=True)
            for file in files
        ]

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        for name in wanted:
            try:
                data = (self.path / name).read_bytes()
            except OSError as error:
                raise UserError(f"data.root: {self.path / name} cannot be read ({error.strerror}).") from None
            yield name, data

    def key(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for name in sorted(self.names()):
            stat = (self.path / name).lstat()  # of a link itself, which may point nowhere
            digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
        return {"path": str(self.path.resolve()), "files": digest.hexdigest()}


class _File:
    """An archive that is one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def key(self) -> dict[str, Any]:
        stat = self.path.stat()
        return {"path": str(self.path.resolve()), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}

    def _damaged(self, error: Exception) -> UserError:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")  # tarfile lists every format it tried
        return UserError(
            f"data.root: {self.path} is damaged or cut short ({reason}); it has {self.path.stat().st_size:,} bytes. "
            f"Fetch it again and compare its size or checksum with the original."
        )


class Tar(_File):
    def names(self) -> list[str]:
        try:
            with tarfile.open(self.path, "r:*") as tar:
                return [member.name.removeprefix("./") for member in tar if member.isfile()]
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        wanted = set(wanted)
        try:
            with tarfile.open(self.path, "r|*") as tar:
                for member in tar:
                    name = member.name.removeprefix("./")
                    if name in wanted and (file := tar.extractfile(member)) is not None:
                        yield name, file.read()
        except _DAMAGE as error:
            raise self._damaged(error) from None


class Zip(_File):
    def names(self) -> list[str]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                return [info.filename for info in archive.infolist() if not info.is_dir()]
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                for name in wanted:
                    yield name, archive.read(name)
        except _DAMAGE as error:
            raise self._damaged(error) from None
