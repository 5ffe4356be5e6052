"""Read a file of weights by what it holds, without running code in it.

A .pth, .pt, .bin or .ckpt is unpickled with torch's ``weights_only``. A training's notes beside the
tensors (paths, settings of OmegaConf, numbers of numpy) are of classes that this refuses: an inert
object takes their place, and no code of theirs is imported or called.
"""

import argparse
import contextlib
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mhprobe.errors import UserError, quoted, refusing
from mhprobe.io.files import unreadable
from mhprobe.io.ordinary import read_json

INDEX = ".index.json"  # of transformers: which file holds which tensor
_TYPES = {f"builtins.{kind}" for kind in ("bool", "dict", "float", "int", "list", "str", "tuple")}
_INERT = (
    *("pathlib.", "omegaconf.", "typing.", "datetime.", "collections.defaultdict"),
    *("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype"),
)
_MAPPINGS = ("AttributeDict", "CfgNode", "ConfigDict", "EasyDict", "OrderedDict")
_STARTS = (
    (
        b"version https://git-lfs",
        "a pointer of Git LFS, not the weights: fetch them (git lfs pull)",
    ),
    (b"<!doctype html", "a web page, as of a download that failed: download the file again"),
    (b"<html", "a web page, as of a download that failed: download the file again"),
    (b"\x89hdf", "a file of HDF5, as Keras writes: save the PyTorch network's state dict"),
    (b"\x1f\x8b", "packed with gzip: unpack it first"),
    (b"bzh", "packed with bzip2: unpack it first"),
    (b"\xfd7zxz", "packed with xz: unpack it first"),
    (b"\x93numpy", "an array of numpy: save tensors by name, with torch.save or safetensors"),
    (b"gguf", "a file of GGUF: take the .safetensors that it was made from"),
)
_SUFFIXES = {
    ".onnx": "an ONNX file: give the PyTorch weights that it was exported from",
    ".h5": "a file of Keras: save the PyTorch network's state dict",
    ".tflite": "a file of TensorFlow Lite: give the PyTorch weights",
    ".msgpack": "a file of Flax: save the PyTorch network's state dict",
}


class Unread:
    """An inert object in the place of one whose class is not imported."""

    def __new__(cls, *_args: Any, **_options: Any) -> "Unread":
        return super().__new__(cls)

    def __init__(self, *_args: Any, **_options: Any) -> None:
        return

    def __setstate__(self, state: Any) -> None:
        return


def read_content(path: Path, where: str) -> Any:
    """Return what a file holds: tensors by name, or a training's mappings of them.

    where: the key that the user gave, for errors. Raises UserError for a file that is missing,
    damaged, of another kind, or of which code is a part.
    """
    if wrong := unreadable(path):
        raise UserError(f"{where}: {wrong}")
    if path.name.endswith(INDEX):
        return _shards(path, where)
    if kind := other_kind(path):
        raise UserError(f"{where}: {path} is {kind}.")
    form = _form_of(path)
    if path.suffix == ".safetensors" and form == "pickle":
        raise UserError(
            f"{where}: {path} is a file of torch.save, whatever its name says. Rename it to .pth."
        )
    if path.suffix == ".safetensors" or form == "safetensors":
        return _safetensors(path, where)
    return _pickled(path, where)


def _form_of(path: Path) -> str:
    """Return "safetensors", "pickle" or "" by the first bytes of a file, whatever its name is."""
    with path.open("rb") as file:
        begin = file.read(9)
    if begin.startswith((b"PK\x03\x04", b"\x80\x02")):
        return "pickle"
    header = int.from_bytes(begin[:8], "little")
    long_enough = 8 + header <= path.stat().st_size
    return "safetensors" if begin[8:] == b"{" and long_enough else ""


def _safetensors(path: Path, where: str) -> dict[str, Tensor]:
    whole = f"{where}: {path} is not a whole safetensors file"
    with refusing(lambda error: f"{whole} ({error}). Copy it again.", (SafetensorError, OSError)):
        return load_file(path)


def _shards(path: Path, where: str) -> dict[str, Tensor]:
    """The tensors of all files that an index names; they lie in its folder."""
    said = f"{where}: {path} is not an index of weights"
    with refusing(
        lambda error: f"{said} ({type(error).__name__}). Copy it again.",
        (ValueError, OSError, RecursionError),
    ):
        index = read_json(path, where)
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise UserError(f"{said}: expected weight_map, a file's name for each tensor.")
    names = sorted({str(name) for name in files.values()})
    if elsewhere := [of for of in names if Path(of).name != of or of.endswith(INDEX)]:
        raise UserError(
            f"{said}: expected files of weights beside it, got {quoted(elsewhere[0])}. Copy them there."
        )
    tensors: dict[str, Tensor] = {}
    for name in names:
        part = read_content(path.with_name(name), where)
        if not isinstance(part, dict):
            raise UserError(f"{where}: {path.with_name(name)} holds no tensors by name.")
        tensors |= part
    if lost := sorted({*files} - {*tensors}):
        raise UserError(
            f"{where}: {path} names {lost[0]} and {len(lost) - 1} more that its files have not. "
            "Copy them again."
        )
    return tensors


def other_kind(path: Path) -> str:
    """Return words on a file that holds no weights of PyTorch; "" for one that may."""
    with path.open("rb") as file:
        begin = file.read(64).lstrip().lower()
    for start, kind in _STARTS:
        if begin.startswith(start):
            return kind
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    if begin.startswith(b"pk"):
        return _kind_of_zip(path)
    words = begin.decode("ascii", errors="replace")
    return "a text, and no weights" if words and all(map(_in_texts, words)) else ""


def _in_texts(letter: str) -> bool:
    return letter.isspace() or (letter.isascii() and letter.isprintable())


def _kind_of_zip(path: Path) -> str:
    if not zipfile.is_zipfile(path):  # its table of contents stands at its end
        return "cut short. Copy it again"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("/constants.pkl") for name in names):
        return (
            "a program of TorchScript: save its weights alone, "
            'torch.save(torch.jit.load(file).state_dict(), "weights.pth")'
        )
    if names and all(name.endswith(".npy") for name in names):
        return "an archive of numpy arrays: save tensors by name, with torch.save or safetensors"
    if not any(name.endswith("data.pkl") for name in names):
        return "a zip without weights of PyTorch: unpack it, and name the file in it"
    return ""


def _pickled(path: Path, where: str) -> Any:
    refused = (
        f"{where}: {path} is refused: it is damaged, or holds more than tensors and plain values, "
        "and loading that could run code. Save model.state_dict() alone, or as .safetensors."
    )  # torch raises UnpicklingError, RuntimeError, EOFError, KeyError ...
    with torch.serialization.safe_globals([argparse.Namespace]):
        unsafe: list[str] = []
        with contextlib.suppress(Exception):  # of an old file without a zip they cannot be listed
            unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        inert = [
            name
            for name in unsafe
            if name.startswith(_INERT) or name in _TYPES or _is_mapping(name)
        ]
        if others := sorted({*unsafe} - {*inert}):
            whole = _holds_modules(others)
            raise UserError(
                f"{where}: {path} is refused: beside tensors it holds objects of "
                f"{', '.join(others[:3])}{f' and {len(others) - 3} more' if len(others) > 3 else ''}"
                f"{', so a whole network was pickled' if whole else ''}; loading them could run code. "
                f"Where you trust it, save {'model.state_dict()' if whole else 'the state dict'} "
                "alone, or as .safetensors."
            )
        stand_ins = [_stand_in(name) for name in inert]
        with (
            refusing(lambda _: refused),
            torch.serialization.safe_globals(stand_ins),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", UserWarning)  # of sparse tensors: they take a while
            return torch.load(path, map_location="cpu", weights_only=True)


def _stand_in(name: str) -> Any:
    """Return a class without code of its own that torch takes for the class ``name``."""
    if _is_mapping(name):
        return OrderedDict, name  # torch sets items of exactly this class
    module, _, own = name.rpartition(".")
    return type(own, (Unread,), {"__module__": module, "__qualname__": own})


def _is_mapping(name: str) -> bool:
    return name.rpartition(".")[2] in _MAPPINGS


def _holds_modules(names: list[str]) -> bool:
    return any(
        name.startswith(("torch.nn.modules.", "timm.", "torchvision.models")) for name in names
    )
