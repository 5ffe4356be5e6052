"""Columns of measures in files, so that a study that is run again does not measure again.

A file holds the tensors, and in its header the key of what they were measured on. A file that cannot be read, is not
as it was written, or holds something else, is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mhprobe.io import files
from mhprobe.io.tensors import packed, unpacked


class Stored(NamedTuple):
    """Columns of a measure, kept on disk.

    columns: as the measure gave them. axes: names along further axes of columns.
    """

    columns: dict[str, Tensor]
    axes: dict[str, list[str]]


def write(folder: Path, name: str, key: str, columns: Mapping[str, Tensor], axes: Mapping[str, Sequence[str]]) -> Path:
    """``folder/<name>.safetensors``. key: of the model, the images and the measure's options."""
    about = {"key": key, "order": json.dumps(list(columns)), "axes": json.dumps(axes)}
    tensors = {column: values.contiguous().clone() for column, values in columns.items()}
    return files.write(folder / f"{name}.safetensors", packed(tensors, about))


def read_all(folder: Path, keys: Mapping[str, str], suffix: str = "") -> dict[str, Stored]:
    """Read the named measures that are there under the right keys. suffix: ends the files' names."""
    found = {name: _read(folder / f"{name}{suffix}.safetensors", key) for name, key in keys.items()}
    return {name: stored for name, stored in found.items() if stored is not None}


def _read(path: Path, key: str) -> Stored | None:
    found = unpacked(path)
    if found is None or found[1].get("key") != key:
        return None
    tensors, about = found
    return Stored({name: tensors[name] for name in json.loads(about["order"])}, json.loads(about["axes"]))
