"""Scores of masks on disk, shared by processes and kept when one is killed.

One file per (weights, data, split). Records are appended, each in one write and with a checksum. A
record that is damaged, or cut off where a process was killed, is skipped with a warning. A search
that is repeated, or another job of the sweep, asks the same questions and reads the answers: so
searches are resumed and shared.

    record = "mhps" | length of the body u32 | crc32 of the body u32 | body
    body   = sha256 of the question | answer
    answer = bytes per loss u8 | n u32 | n bits right or wrong | n losses      to (mask, images): scores
           | float64 numbers                                                   to anything else: slopes, measures

Shapes: M masks, A heads, N images of the split, n of them in a record.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhprobe.io.code import code_digests, file_digest, is_file
from mhprobe.io.files import reason
from mhprobe.masking.base import Scores

log = logging.getLogger(__name__)

# raise it where a score, a slope or a measure comes to mean another number: old answers are not
# read then
SCHEME = 3
_MAGIC = b"mhps"
_HEAD = struct.Struct("<4sII")
_NAME = 32  # bytes of a question's sha256
_SCORES = struct.Struct("<BI")
_warned: set[Path] = set()
_LOSS: dict[int, np.dtype[Any]] = {4: np.dtype("<f4"), 8: np.dtype("<f8")}


class MaskCache:
    """Known scores of masks of one model on one split, in the file ``folder``/``key``.scores (see ``cache_key``)."""

    def __init__(self, folder: Path | str, key: str) -> None:
        self.file = Path(folder) / f"{key}.scores"
        self.places: dict[
            bytes, tuple[int, int]
        ] = {}  # question -> (position, length) of its answer in the file
        self.read = self.inode = (
            0  # bytes of the file that are in ``places``, and which file that was
        )

    def load(
        self, masks: Tensor, images: Tensor | None, num_images: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(M,) bool, masks that are known on ``images`` (n,), None for all N; their (M, n) right and losses."""
        self._scan()
        n = num_images if images is None else len(images)
        hits = torch.zeros(len(masks), dtype=torch.bool)
        right = torch.zeros(len(masks), n, dtype=torch.bool)
        losses = torch.zeros(len(masks), n, dtype=torch.float64)
        for number, mask in enumerate(masks):
            place, columns = self.places.get(_name(mask, images)), None
            if (
                place is None and images is not None
            ):  # a mask that is known on all images is known on some
                place, columns = self.places.get(_name(mask, None)), images
            if place is not None:
                rows = _unpack(self._read(place))
                hits[number] = True
                right[number], losses[number] = (
                    rows if columns is None else (row[columns] for row in rows)
                )
        return hits, right, losses

    def save(self, masks: Tensor, images: Tensor | None, scores: Scores) -> None:
        """Keep the scores of ``masks`` on ``images``; warn if the disk is full or read-only."""
        rows = zip(masks, scores.right, scores.losses, strict=True)
        self._append([_name(mask, images) + _pack(right, losses) for mask, right, losses in rows])

    def numbers(self, *question: Any) -> Tensor | None:
        """The float64 numbers that ``save_numbers`` kept for this question, flat; None for a new question."""
        self._scan()
        place = self.places.get(_digest(question))
        return (
            None
            if place is None
            else torch.frombuffer(bytearray(self._read(place)), dtype=torch.float64)
        )

    def save_numbers(self, numbers: Tensor, *question: Any) -> None:
        """Keep numbers.

        question: the plain values and masks that they depend on, besides the cache's key.
        """
        self._append(
            [
                _digest(question)
                + numbers.double().cpu().contiguous().numpy().astype("<f8").tobytes()
            ]
        )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let one process at a time ask; the others wait, and then read what it has found.

        Where files cannot be locked, as on some network file systems, nobody waits. The lock ends
        here, or with its process. A process that was forked meanwhile, such as a loader's worker,
        does not keep it.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError, OSError):
                import fcntl  # not on Windows

                self.file.parent.mkdir(parents=True, exist_ok=True)
                handle = stack.enter_context(self.file.open("ab"))
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    log.info("another job searches this curve; waiting for what it finds")
                    fcntl.flock(handle, fcntl.LOCK_EX)
                # closing the file would leave the lock with whoever was forked meanwhile
                stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)
            yield

    def _append(self, bodies: list[bytes]) -> None:
        data = b"".join(_HEAD.pack(_MAGIC, len(body), zlib.crc32(body)) + body for body in bodies)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                if os.write(handle, data) < len(
                    data
                ):  # the disk is full; readers skip what is cut off
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(handle)
        except OSError as error:  # scores are right without the cache: no reason to lose a search
            self._warn(
                "cannot write %s (%s): what is evaluated is not kept.",
                self.file,
                reason(error, self.file),
            )

    def _scan(self) -> None:
        """Read the records that were appended since the last time."""
        try:
            with self.file.open("rb") as file:
                status = os.fstat(file.fileno())
                if (
                    status.st_ino != self.inode or status.st_size < self.read
                ):  # removed, replaced or cut off meanwhile
                    self.places, self.read, self.inode = {}, 0, status.st_ino
                file.seek(self.read)
                data = file.read()
        except OSError:  # no such file yet, or no longer: its masks are evaluated again
            self.places, self.read = {}, 0
            return
        at = 0
        while at + _HEAD.size <= len(data):
            magic, length, checksum = _HEAD.unpack_from(data, at)
            body = at + _HEAD.size
            if magic == _MAGIC and body + length > len(data) and data.find(_MAGIC, body) < 0:
                break  # cut off, or still being written: look again next time
            if magic == _MAGIC and zlib.crc32(data[body : body + length]) == checksum:
                self.places[data[body : body + _NAME]] = self.read + body + _NAME, length - _NAME
                at = body + length
                continue
            self._warn("%s is damaged in part; what is lost of it is evaluated again.", self.file)
            following = data.find(_MAGIC, at + 1)
            at = len(data) if following < 0 else following
        self.read += at

    def _warn(self, text: str, *about: Any) -> None:
        if self.file not in _warned:
            log.warning(text, *about)
        _warned.add(self.file)

    def _read(self, place: tuple[int, int]) -> bytes:
        at, length = place
        with self.file.open("rb") as file:
            file.seek(at)
            return file.read(length)


def cache_key(**parts: Any) -> str:
    """sha256 of all that answers depend on besides the question: weights, data, split, ``SCHEME``.

    Plain values.
    """
    return hashlib.sha256(
        json.dumps({"scheme": SCHEME, **parts}, sort_keys=True).encode()
    ).hexdigest()


def describe(value: Any) -> Any:
    """A thing and its options in values that JSON knows, with digests of files and of the user's own code.

    ValueError for a thing without a name, as a lambda or a notebook's class.
    """
    if isinstance(value, functools.partial):
        return [describe(value.func), describe(value.args), describe(value.keywords)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [describe(type(value)), describe(options)]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, str) and is_file(value):
        return [value, file_digest(value)]
    if isinstance(value, str | int | float | None):
        return value
    name = (
        f"{getattr(value, '__module__', '__main__')}.{getattr(value, '__qualname__', '<no name>')}"
    )
    if "<" in name or name.startswith("__main__."):
        raise ValueError(f"{value!r} has no name of its own")
    digests = code_digests(value)
    return [name, digests] if digests else name


def _digest(question: tuple[Any, ...]) -> bytes:
    plain = [part.int().tolist() if isinstance(part, Tensor) else part for part in question]
    return hashlib.sha256(json.dumps(plain).encode()).digest()


def _pack(right: Tensor, losses: Tensor) -> bytes:
    wide = losses.numpy()
    width = 4 if (wide.astype(_LOSS[4]) == wide).all() else 8  # float32 models give float32 losses
    bits = np.packbits(right.numpy()).tobytes()
    return _SCORES.pack(width, len(wide)) + bits + wide.astype(_LOSS[width]).tobytes()


def _unpack(answer: bytes) -> tuple[Tensor, Tensor]:
    width, n = _SCORES.unpack_from(answer)
    losses_at = _SCORES.size + -(-n // 8)
    bits = np.frombuffer(answer[_SCORES.size : losses_at], dtype=np.uint8)
    losses = np.frombuffer(answer[losses_at:], dtype=_LOSS[width])
    return torch.from_numpy(np.unpackbits(bits, count=n).astype(bool)), torch.from_numpy(
        losses.astype(np.float64)
    )


def _name(mask: Tensor, images: Tensor | None) -> bytes:
    places = b"all" if images is None else images.numpy().astype("<i8").tobytes()
    return hashlib.sha256(mask.numpy().tobytes() + places).digest()
