"""Files by name from a folder, a tar or a zip, read in one stream. Nothing is unpacked to disk."""

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mhprobe.data.recognised import other_file
from mhprobe.errors import UserError, first_line, refusing
from mhprobe.io.code import file_digest

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
LARGEST = 6 * 10**8  # bytes of one file: of the largest image that is read, in 16-bit colours
MOST = 2**24  # files: more than any set of images in use
DEPTH, WAYS = 64, 16  # of folders: how deep, and how often one may be reached over links
SAMPLES, BLOCK = 64, 2**12  # of contents, in a key: how many blocks of how many bytes
LeftOut = dict[str, UserError]  # errors of files by name
# errors of the standard library for damage; RuntimeError, ValueError and KeyError come from broken
# headers
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError),
    *(OSError, RuntimeError, ValueError, KeyError),
)


def open_archive(path: str | Path) -> "Archive":
    """The folder or archive at ``path``; UserError when it is missing or neither."""
    path = Path(path).expanduser()
    if path.is_dir():
        return FileFolder(path)
    if not path.exists():
        raise UserError(
            f"root: {path} does not exist. Give a folder or a .tar, .tar.gz, .tgz or .zip archive."
        )
    name = path.name.lower() if path.is_file() else ""  # a pipe would be waited for
    if name.endswith(TAR_SUFFIXES):
        return Tar(path)
    if name.endswith(".zip"):
        return Zip(path)
    form = other_file(path.name) if name else ""
    raise UserError(
        f"root: expected a folder or a .tar, .tar.gz, .tgz or .zip archive, got {path}."
        f"{form and f' {form}'}"
    )


class FileFolder:
    """A folder of files, at any depth."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, left_out: LeftOut | None = None) -> list[str]:
        """Name of every file below the root, with / between parts.

        left_out: takes the errors of folders that cannot be read, by name; without it they are
        raised.
        """
        names: list[str] = []

        def unreadable(error: OSError) -> None:
            told = UserError(
                f"root: {error.filename} cannot be read ({error.strerror}). Remove it, or the link."
            )
            if left_out is None or Path(error.filename) == self.path:
                raise told from None
            left_out[str(error.filename)] = told

        ways: Counter[tuple[int, int]] = Counter()  # by the folder itself, whatever path led there
        # class folders are often links to somewhere else
        for folder, _, files in os.walk(self.path, onerror=unreadable, followlinks=True):
            place, itself = Path(folder).relative_to(self.path), os.stat(folder)
            ways[itself.st_dev, itself.st_ino] += 1
            if ways[itself.st_dev, itself.st_ino] > WAYS or len(place.parts) > DEPTH:
                raise UserError(
                    f"root: {folder} is a link back to a folder it lies in, or too deep (over "
                    f"{DEPTH}) or too "
                    f"often (over {WAYS} times) linked to. Remove such links."
                )
            names += [(place / file).as_posix() for file in files]
            if len(names) > MOST:
                raise UserError(
                    f"root: {self.path} has more than {MOST:,} files. Is it the folder you mean?"
                )
        return names

    def read(
        self, wanted: Collection[str], left_out: LeftOut | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the contents of the wanted files, in the order that streams best.

        left_out: takes the errors of files that cannot be read, by name; without it they are
        raised.
        """
        for name in wanted:
            try:
                yield name, self._contents(self.path / name)
            except UserError as error:
                if left_out is None:
                    raise
                left_out[name] = error

    def _contents(self, path: Path) -> bytes:
        try:
            what = path.stat()
            if not stat.S_ISREG(what.st_mode):
                raise UserError(f"root: {path} is a device or a pipe, expected a file. Remove it.")
            small_enough(path, what.st_size)
            return path.read_bytes()
        except OSError as error:
            raise UserError(f"root: {path} cannot be read ({error.strerror}).") from None

    def key(self) -> dict[str, Any]:
        """Return facts that change with the contents, without reading all of them."""
        digest = hashlib.sha256()
        names = sorted(self.names())
        for name in names:
            line = f"{name}\0{_state(self.path / name)}\n"
            digest.update(line.encode(errors="surrogateescape"))  # names may be any bytes
        for name in names[:: max(1, len(names) // SAMPLES)]:
            digest.update(_sample(self.path / name, parts=1))
        return {"path": str(self.path.resolve()), "files": digest.hexdigest()}


def _state(path: Path) -> str:
    """Return facts of a file, or of a link's target, that change with its contents.

    Size and modification time are not enough: ``cp -p`` sets the time, and files that exchange
    their names keep both.
    """
    try:
        file = path.stat()
    except OSError:  # a link that leads nowhere; reading says so
        file = path.lstat()
    return f"{file.st_size} {file.st_mtime_ns} {file.st_ctime_ns} {file.st_ino}"


def _sample(path: Path, parts: int) -> bytes:
    """Blocks evenly from all of a file, as some file systems invent inodes and times; empty of what is no file."""
    try:
        size = path.stat().st_size if path.is_file() else 0
        with path.open("rb") if size else io.BytesIO() as file:
            blocks = []
            for part in range(parts):
                file.seek(max(0, size - BLOCK) * part // max(1, parts - 1))
                blocks.append(file.read(BLOCK))
            return b"".join(blocks)
    except OSError:  # reading says so
        return b""


def small_enough(where: object, size: int) -> None:
    """UserError if ``size`` bytes are more than one image can have."""
    if size > LARGEST:
        raise UserError(
            f"root: {where} claims {size:,} bytes, expected at most {LARGEST:,} of one image. "
            "Remove it."
        )


class _File(ABC):
    """An archive that is one file.

    Beside it may lie ``<file>.sha256``, as sha256sum writes it: then it must agree.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def key(self) -> dict[str, Any]:
        sample = hashlib.sha256(_sample(self.path, SAMPLES)).hexdigest()
        return {"path": str(self.path.resolve()), "state": _state(self.path), "sample": sample}

    def names(self, left_out: LeftOut | None = None) -> list[str]:
        """Name of every file. left_out: takes the errors of those that cannot be read, by name."""
        beside, names = self.path.with_name(f"{self.path.name}.sha256"), []
        with self._intact():
            if beside.is_file() and beside.read_text(errors="replace").split()[:1] != [
                file_digest(self.path)
            ]:
                raise ValueError(f"its SHA-256 is not the one in {beside.name}")
            for name, size in self._members(left_out):
                try:
                    small_enough(f"{self.path}: {name}", size)
                    names.append(name)
                except UserError as error:
                    if left_out is None:
                        raise
                    left_out[name] = error
                if len(names) > MOST:
                    raise UserError(
                        f"root: {self.path} has more than {MOST:,} files, expected images."
                    )
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise UserError(
                f"root: {self.path} holds {twice[0]} {names.count(twice[0])} times ({len(twice)} "
                "such files): "
                f"which is meant? Pack it anew, each file once."
            )
        return names

    @abstractmethod
    def _members(self, left_out: LeftOut | None) -> Iterator[tuple[str, int]]:
        """Name and size in bytes of every file."""

    def _damaged(self, name: str, error: Exception) -> UserError:
        return UserError(
            f"root: {self.path}: {name} is damaged ({first_line(error)}). Replace or remove it."
        )

    def _intact(self) -> contextlib.AbstractContextManager[None]:
        """Turn what Python raises for damage into a UserError with its first line: tarfile lists all formats."""
        where, size = (
            f"root: {self.path} is damaged or cut short",
            lambda: f"{self.path.stat().st_size:,} bytes",
        )
        todo = "Fetch it again and compare its size or checksum with the original."
        return refusing(
            lambda error: f"{where} ({first_line(error)}); it has {size()}. {todo}", _DAMAGE
        )


class Tar(_File):
    """A tar, which may be compressed.

    Where its files were listed, a walk finds them by their places: to parse the headers of sixty
    thousand takes longer than to unpack them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # by name: where its bytes begin in the unpacked tar, and their number
        self._places: dict[str, tuple[int, int]] = {}
        self._listed = ""  # the state of the file that they are of
        self._linked: dict[str, str] = {}  # links to what is not in the tar, by name

    def _members(self, left_out: LeftOut | None) -> Iterator[tuple[str, int]]:
        places: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        state, whole = _state(self.path), True
        with tarfile.open(self.path, "r:*") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.isfile():
                    places[name] = (member.offset_data, member.size)
                    whole = whole and not member.issparse()
                    yield name, member.size
                elif member.islnk() or member.issym():
                    links[name] = _target(name, member)
        for name, target in links.items():
            target = _followed(target, links)
            if target in places:
                places[name] = places[target]
            elif _may_be_folder(name):
                told = self._leads_out(name, target)
                if left_out is None:
                    raise told
                left_out[name] = told
                continue
            yield name, places.get(name, (0, 0))[1]
        self._linked = {name: of for name, of in links.items() if name not in places}
        if whole:
            self._places, self._listed = places, state

    def read(
        self, wanted: Collection[str], left_out: LeftOut | None = None
    ) -> Iterator[tuple[str, bytes]]:
        wanted = set(wanted)  # damage to a stream is damage to all behind it: nothing is left out
        for name in sorted(wanted & self._linked.keys()):
            told = self._leads_out(name, self._linked[name])
            if left_out is None:
                raise told
            left_out[name] = told
            wanted.remove(name)
        with self._intact(), self._unpacked() as file:
            # tarfile's own streams skip the compressor's checksum; a zero block tells that the end
            # was not cut off
            stream: Any = _Stream(file)
            known = self._listed == _state(self.path) and wanted <= self._places.keys()
            yield from self._by_place(stream, wanted) if known else self._by_name(stream, wanted)
            while stream.read(1 << 20):
                pass
            if any(stream.end):
                raise EOFError("its end is missing")

    def _leads_out(self, name: str, target: str) -> UserError:
        return UserError(
            f"root: {self.path}: {name} is a link to {target}, which is no file in the archive. "
            "Pack the files themselves (tar -h)."
        )

    def _by_place(self, stream: Any, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        at = 0
        before, data = (-1, 0), b""
        for begin, size, name in sorted((*self._places[name], name) for name in wanted):
            if (begin, size) == before:  # a link to the same
                yield name, data
                continue
            before = begin, size
            while at < begin:
                skipped = len(stream.read(min(begin - at, 1 << 20)))
                if not skipped:
                    raise EOFError("its end is missing")
                at += skipped
            data = stream.read(size)
            if len(data) < size:
                raise EOFError("its end is missing")
            at += size
            yield name, data

    @staticmethod
    def _by_name(stream: Any, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name in wanted and (contents := tar.extractfile(member)) is not None:
                    yield name, contents.read()

    def _unpacked(self) -> Any:
        with self.path.open("rb") as file:
            start = file.read(6)
        kinds = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
        opens = next((opens for magic, opens in kinds if start.startswith(magic)), open)
        return opens(self.path, "rb")


def _target(name: str, member: tarfile.TarInfo) -> str:
    """Return the name that a link in a tar leads to: a hard link's is from the top, another's from its own folder."""
    if member.islnk():
        return member.linkname.removeprefix("./")
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))


def _followed(name: str, links: dict[str, str]) -> str:
    """Return where links of links end, or one of them where they are in a circle."""
    for _ in range(DEPTH):
        if name not in links:
            break
        name = links[name]
    return name


def _may_be_folder(name: str) -> bool:
    """Return True for a link that may stand for a folder, as of a class; hidden ones do not matter."""
    return "." not in posixpath.basename(name) and not any(
        part.startswith(".") for part in name.split("/")
    )


class _Stream:
    """A file that remembers its last block."""

    def __init__(self, file: Any) -> None:
        self.file, self.end = file, b""

    def read(self, size: int) -> bytes:
        data: bytes = self.file.read(size)
        self.end = (self.end + data)[-tarfile.BLOCKSIZE :]
        return data


class Zip(_File):
    def _members(self, left_out: LeftOut | None) -> Iterator[tuple[str, int]]:
        with zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                try:  # compares the name here with the one beside the contents
                    archive.open(info).close()
                    yield info.filename, info.file_size
                except _DAMAGE as error:
                    if left_out is None or isinstance(error, UserError):
                        raise
                    left_out[info.filename] = self._damaged(info.filename, error)

    def read(
        self, wanted: Collection[str], left_out: LeftOut | None = None
    ) -> Iterator[tuple[str, bytes]]:
        with self._intact(), zipfile.ZipFile(self.path) as archive:
            for name in wanted:
                try:
                    data = archive.read(name)  # to its end, where zipfile compares the checksum
                except _DAMAGE as error:
                    if left_out is None:
                        raise
                    left_out[name] = self._damaged(name, error)
                else:
                    yield name, data


Archive = FileFolder | Tar | Zip
