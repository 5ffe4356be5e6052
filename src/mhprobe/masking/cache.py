"""Scores of masks on disk, so that no process evaluates what another has, or what it had when it was killed.

One file per (weights, data, split), to which records are only ever appended, each in one write and with a checksum. A
record that is damaged, or cut off where a process was killed, is skipped with a warning; the others are found behind
it. Jobs of a sweep write to the same file and see each other's records.

    record = "mhps" | length of the body u32 | crc32 of the body u32 | body
    body   = sha256 of (mask, images) | bytes per loss u8 | n u32 | n bits right or wrong | n losses

Shapes: M masks, A heads, N images of the split, n of them in a record.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhprobe.masking.base import Scores

log = logging.getLogger(__name__)

_MAGIC = b"mhps"
_HEAD = struct.Struct("<4sII")
_BODY = struct.Struct("<32sBI")
_LOSS: dict[int, np.dtype[Any]] = {4: np.dtype("<f4"), 8: np.dtype("<f8")}


class MaskCache:
    """The scores that are known for one model and split.

    folder, key: name the file; the key (see store.order_key) stands for everything besides masks and images that
        decides a score: weights, data, split.
    """

    def __init__(self, folder: Path | str, key: str) -> None:
        self.file = Path(folder) / f"{key}.scores"
        self.known: dict[bytes, int] = {}  # (mask, images) -> where in the file its body begins
        self.read = 0  # the file up to here is in ``known``
        self.warned = False

    def load(self, masks: Tensor, images: Tensor | None, num_images: int) -> tuple[Tensor, Tensor, Tensor]:
        """(M,) bool, which masks are known on ``images`` (n,), None for all N; their (M, n) right and losses."""
        self._scan()
        n = num_images if images is None else len(images)
        known = torch.zeros(len(masks), dtype=torch.bool)
        right = torch.zeros(len(masks), n, dtype=torch.bool)
        losses = torch.zeros(len(masks), n, dtype=torch.float64)
        for number, mask in enumerate(masks):
            place, columns = self.known.get(_name(mask, images)), None
            if place is None and images is not None:  # what is known on all images is known on some
                place, columns = self.known.get(_name(mask, None)), images
            if place is None:
                continue
            row_right, row_losses = self._body(place)
            known[number] = True
            right[number] = row_right if columns is None else row_right[columns]
            losses[number] = row_losses if columns is None else row_losses[columns]
        return known, right, losses

    def save(self, masks: Tensor, images: Tensor | None, scores: Scores) -> None:
        """Keep what ``masks`` scored on ``images``; with a warning instead if the disk will not take it."""
        records = []
        for mask, right, losses in zip(masks, scores.right, scores.losses.numpy(), strict=True):
            width = 4 if (losses.astype(_LOSS[4]) == losses).all() else 8  # float32 models give float32 losses
            body = (
                _BODY.pack(_name(mask, images), width, len(losses))
                + np.packbits(right.numpy()).tobytes()
                + losses.astype(_LOSS[width]).tobytes()
            )
            records.append(_HEAD.pack(_MAGIC, len(body), zlib.crc32(body)) + body)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(handle, b"".join(records))
            finally:
                os.close(handle)
        except OSError as error:
            # scores are still right without it: no reason to lose a search
            log.warning("cannot write %s (%s): what is evaluated is not kept.", self.file, error.strerror or error)

    def _scan(self) -> None:
        """Take in what was appended since the last time."""
        try:
            with self.file.open("rb") as file:
                file.seek(self.read)
                data = file.read()
        except OSError:  # not there yet; what cannot be read is evaluated again
            return
        at = 0
        while at + _HEAD.size <= len(data):
            magic, length, checksum = _HEAD.unpack_from(data, at)
            body = at + _HEAD.size
            if magic == _MAGIC and body + length > len(data) and data.find(_MAGIC, body) < 0:
                break  # cut off, or still being written: look again next time
            if magic == _MAGIC and zlib.crc32(data[body : body + length]) == checksum:
                self.known[data[body : body + 32]] = self.read + body
                at = body + length
                continue
            if not self.warned:
                log.warning("%s is damaged in part; what is lost of it is evaluated again.", self.file)
                self.warned = True
            following = data.find(_MAGIC, at + 1)
            at = len(data) if following < 0 else following
        self.read += at

    def _body(self, place: int) -> tuple[Tensor, Tensor]:
        with self.file.open("rb") as file:
            file.seek(place)
            _, width, n = _BODY.unpack(file.read(_BODY.size))
            bits = np.frombuffer(file.read(-(-n // 8)), dtype=np.uint8)
            losses = np.frombuffer(file.read(n * width), dtype=_LOSS[width])
        right = np.unpackbits(bits, count=n).astype(bool)
        return torch.from_numpy(right), torch.from_numpy(losses.astype(np.float64))


def _name(mask: Tensor, images: Tensor | None) -> bytes:
    digest = hashlib.sha256(mask.numpy().tobytes())
    digest.update(b"all" if images is None else images.numpy().astype("<i8").tobytes())
    return digest.digest()
