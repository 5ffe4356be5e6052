"""Tensors in a file with a digest of its contents, so that a damaged or edited file is refused.

One such file holds a run's outcomes (which test images are right): runs are compared image by
image.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mhprobe.io import files
from mhprobe.io.ordinary import ordinary

DIGEST = "sha256"
OUTCOMES = "outcomes.safetensors"
MASKED = "masked_outcomes.safetensors"
BENCH = "bench.safetensors"  # by cell and stage of PruneBench


def packed(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """A safetensors file, the same bytes for the same content.

    about: what its header says beside the digest.
    """
    data = save(dict(tensors), {**about, DIGEST: digest(tensors, about)})
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(
        sorted(header["__metadata__"].items())
    )  # its order differs from call to call
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def unpacked(path: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """The tensors of such a file and what its header says; None if it cannot be read, or is not as it was written.

    A pipe or a device, which has no end, cannot be read.
    """
    try:
        ordinary(path, None, "tensors")
        with safe_open(str(path), "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    return (tensors, metadata) if metadata.pop(DIGEST, None) == digest(tensors, metadata) else None


def digest(tensors: Mapping[str, Any], about: Mapping[str, str] | None = None) -> str:
    """SHA-256 of the names, types, shapes and values of all tensors among these.

    about: texts that are part of it.
    """
    content = hashlib.sha256(json.dumps(dict(sorted((about or {}).items()))).encode())
    for name, values in sorted(
        (name, part) for name, part in tensors.items() if isinstance(part, Tensor)
    ):
        content.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        flat = (
            values.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
        )  # no strides of 0
        content.update(flat.view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


class Outcomes(NamedTuple):
    """Outcomes of N test images: right (N,) bool; images, a digest that is equal for the same pixels and labels."""

    right: Tensor
    images: str


def write_outcomes(folder: Path, right: Tensor, positions: Tensor, images: str) -> Path:
    """``folder/outcomes.safetensors``: ``right`` and ``positions`` in the data set's whole test set, (N,) each."""
    tensors = {"right": right.to("cpu", torch.uint8), "positions": positions.to("cpu", torch.int32)}
    return files.write(folder / OUTCOMES, packed(tensors, {"images": images}))


def read_outcomes(folder: Path) -> Outcomes | None:
    """Read the outcomes of a run; None if there are none that can be read."""
    contents = unpacked(folder / OUTCOMES)
    if contents is None or "right" not in contents[0] or "images" not in contents[1]:
        return None
    return Outcomes(contents[0]["right"].bool(), contents[1]["images"])


def write_masked(folder: Path, right: Mapping[str, Tensor], images: str) -> Path:
    """``folder/masked_outcomes.safetensors``: (N,) right test images of a masked network, by its curve."""
    tensors = {name: flags.to("cpu", torch.uint8) for name, flags in right.items()}
    metadata = {"images": images, "curves": json.dumps([*right])}
    return files.write(folder / MASKED, packed(tensors, metadata))


def read_masked(folder: Path) -> dict[str, Outcomes]:
    """Read the outcomes of masked networks by their curves; {} if there are none that can be read."""
    contents = unpacked(folder / MASKED)
    if contents is None or not {"images", "curves"} <= set(contents[1]):
        return {}
    tensors, metadata = contents
    try:
        curves = [name for name in json.loads(metadata["curves"]) if name in tensors]
    except (ValueError, TypeError):
        return {}
    return {name: Outcomes(tensors[name].bool(), metadata["images"]) for name in curves}
