"""Columns of measures kept in files, named by the digest of everything that decides them.

Damaged files are ignored.
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
    """Columns of a measure, kept on disk. axes: names along further axes of columns."""

    columns: dict[str, Tensor]
    axes: dict[str, list[str]]


def write_columns(
    folder: Path,
    key: str,
    columns: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Keep columns as ``folder/<key>.safetensors``; log a warning if that fails."""
    about = {"order": json.dumps(list(columns)), "axes": json.dumps(axes or {})}
    tensors = {column: values.contiguous().clone() for column, values in columns.items()}
    try:
        files.write(folder / f"{key}.safetensors", packed(tensors, about))
        _make_room(folder)
    except UserError as error:  # no reason to lose the run
        log.warning("what was measured is not kept: %s", error)


def read_columns(folder: Path, key: str) -> Stored | None:
    """Return the columns kept under this key; None if there are none, or the file is damaged."""
    path = folder / f"{key}.safetensors"
    if (content := unpacked(path)) is None:
        return None
    with contextlib.suppress(OSError):  # a cache that is read-only, or was removed meanwhile
        os.utime(path)  # used now
    tensors, about = content
    return Stored(
        {name: tensors[name] for name in json.loads(about["order"])}, json.loads(about["axes"])
    )


def _make_room(folder: Path) -> None:
    """Remove the least recently used files, down to ``ROOM``; other processes may do so at the same time."""
    with contextlib.suppress(OSError):
        stats = [(path.stat(), path) for path in folder.glob("*.safetensors")]
        total = 0
        for stat, path in sorted(stats, key=lambda file: -file[0].st_mtime):
            total += stat.st_size
            if total > ROOM:
                path.unlink(missing_ok=True)
