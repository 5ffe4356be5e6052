"""Columns of measures in files, so that what was measured once is not measured again.

A file is named by the digest of everything that decides its columns, and holds the digest of what it says. A file that
cannot be read, or is not as it was written, is ignored. Above ``ROOM`` the files that were not used for longest go.
"""

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.io import files
from mhprobe.io.tensors import packed, unpacked

log = logging.getLogger(__name__)

ROOM = 8 << 30  # bytes of all kept files, about 90 tuned networks of the size of a ViT-S


class Stored(NamedTuple):
    """Columns of a measure, kept on disk.

    columns: as the measure gave them. axes: names along further axes of columns.
    """

    columns: dict[str, Tensor]
    axes: dict[str, list[str]]


def write(
    folder: Path, key: str, columns: Mapping[str, Tensor], axes: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Keep columns as ``folder/<key>.safetensors``; with a warning instead if the disk will not take them."""
    about = {"order": json.dumps(list(columns)), "axes": json.dumps(axes or {})}
    tensors = {column: values.contiguous().clone() for column, values in columns.items()}
    try:
        files.write(folder / f"{key}.safetensors", packed(tensors, about))
        _make_room(folder)
    except UserError as error:  # the columns are there: no reason to lose them
        log.warning("what was measured is not kept: %s", error)


def read(folder: Path, key: str) -> Stored | None:
    """Return the columns that were kept under this key; None if there are none, or the file is damaged."""
    path = folder / f"{key}.safetensors"
    found = unpacked(path)
    if found is None:
        return None
    with contextlib.suppress(OSError):  # of a cache that is read-only, or was removed meanwhile
        os.utime(path)  # used now
    tensors, about = found
    return Stored({name: tensors[name] for name in json.loads(about["order"])}, json.loads(about["axes"]))


def _make_room(folder: Path) -> None:
    """Remove what was not used for longest, down to ``ROOM``. Another process may do so at the same time."""
    with contextlib.suppress(OSError):
        kept = sorted(
            ((path.stat(), path) for path in folder.glob("*.safetensors")), key=lambda file: -file[0].st_mtime
        )
        total = 0
        for about, path in kept:
            total += about.st_size
            if total > ROOM:
                path.unlink(missing_ok=True)
