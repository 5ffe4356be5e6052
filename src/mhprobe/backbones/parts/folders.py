"""Look at a folder of timm or transformers before it is loaded. A stranger may have written it.

The libraries read config.json as if their own save had written it: other types end in a traceback
somewhere in them, and sizes take memory before a tensor is compared.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from mhprobe.errors import UserError, quoted, refusing
from mhprobe.io.ordinary import ordinary, read_json

CONFIG = "config.json"
PIXELS = 4096**2  # of an image that a network takes
CHANNELS = 1024
MOST = 2**16  # pixels of a side, blocks
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".npz", ".tar")


def _whole(value: Any) -> bool:
    return type(value) is int and 0 < value <= MOST


def _blocks(value: Any) -> bool:
    return all(map(_whole, value)) if isinstance(value, list) and value else _whole(value)


def _size(value: Any) -> bool:
    sides = value if isinstance(value, list) else [value] * 2
    return len(sides) in (2, 3) and all(map(_whole, sides)) and math.prod(sides[-2:]) <= PIXELS


def _numbers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= CHANNELS
        and all(type(one) in (int, float) and math.isfinite(one) for one in value)
    )


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _numbers(value) and all(low <= one <= high for one in value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def _object(value: Any) -> bool:
    return isinstance(value, Mapping)


# what a value is called in an error, and the test of it
_Rule = tuple[str, Callable[[Any], bool]]
_SIZE: _Rule = (f"sizes of at most {PIXELS:,} pixels", _size)
_MEAN: _Rule = ("a list of finite numbers, one per channel", _numbers)
_PICTURES: dict[str, _Rule] = {
    **dict.fromkeys(("input_size", "test_input_size", "min_input_size"), _SIZE),
    "mean": ("numbers from 0 to 1, of pixels in [0, 1], one per channel", _between(0, 1)),
    "std": ("numbers from 1e-06 to 1, of pixels in [0, 1], one per channel", _between(1e-6, 1)),
}
# timm and transformers make a list of so many numbers before they make the first block
_BLOCKS: dict[str, _Rule] = dict.fromkeys(
    ("depth", "depths", "num_hidden_layers"), (f"a number of blocks up to {MOST:,}", _blocks)
)
_POSITIVE: _Rule = (
    "a positive number",
    lambda value: type(value) in (int, float) and 0 < value < math.inf,
)
_PROCESSOR: dict[str, _Rule] = {
    "image_mean": _MEAN,  # of pixels in [0, 255] where nothing is rescaled
    "image_std": ("a list of positive numbers, one per channel", _between(1e-6, math.inf)),
    **dict.fromkeys(("do_normalize", "do_rescale"), ("true or false", lambda v: type(v) is bool)),
    "rescale_factor": _POSITIVE,
}
_RULES: dict[str, _Rule] = {
    "architecture": ("the name of a model", _text),
    "model_type": ("the name of a kind of model", _text),
    **dict.fromkeys(("pretrained_cfg", "model_args"), ("an object", _object)),
    **dict.fromkeys(("num_classes", "num_features"), ("a whole number", lambda v: type(v) is int)),
    "image_size": _SIZE,
    **_PICTURES,
    **_PROCESSOR,
    **_BLOCKS,
}
_NAMES = ("architecture", "model_type")  # null is no name; elsewhere it leaves the choice open


class Held(NamedTuple):
    """Numbers and tensors in a folder's files of weights; ``tensors`` is None where they are not counted."""

    numbers: int
    tensors: int | None


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Return the settings in ``folder/config.json``, or another file of it; {} if there is none.

    Raises UserError for a pipe, a device or a large file, for what is no JSON object, and for a
    value of another type than timm and transformers write.
    """
    path = folder / name
    if not path.exists():
        return {}
    with refusing(
        lambda error: f"{path} is no JSON ({type(error).__name__}). Copy it again.",
        (OSError, ValueError, RecursionError),
    ):
        config = read_json(path, "config")
    if not isinstance(config, Mapping):
        raise UserError(
            f"{path}: expected an object with the settings of a model, got {quoted(config)}. "
            "Copy it again."
        )
    _check(config, _RULES, path, "")
    if isinstance(config.get("pretrained_cfg"), Mapping):
        _check(config["pretrained_cfg"], _PICTURES, path, "pretrained_cfg.")
    if isinstance(config.get("image_processor"), Mapping):
        _check(config["image_processor"], _PROCESSOR, path, "image_processor.")
    if isinstance(config.get("model_args"), Mapping):
        _check(config["model_args"], {"img_size": _SIZE} | _BLOCKS, path, "model_args.")
    return dict(config)


def held_in(folder: Path) -> Held:
    """Count what the files of weights in ``folder`` may hold. UserError for one that is no ordinary file."""
    numbers, tensors = 0, 0
    counted = True
    files = [path for path in sorted(folder.iterdir()) if path.suffix in _WEIGHTS and path.exists()]
    for path in files:
        numbers += ordinary(path, None, "weights").stat().st_size // 2  # in float16 two bytes each
        if path.suffix != ".safetensors":
            counted = False
            continue
        with (
            refusing(
                lambda error, path=path: f"weights: {path} is not a safetensors file ({error}).",  # type: ignore[misc]
                (SafetensorError, OSError),
            ),
            safe_open(str(path), "pt") as file,
        ):
            tensors += len(file.keys())
    return Held(numbers, tensors if files and counted else None)


def folder_of_others(folder: Path) -> str:
    """Say how a folder of transformers or timm is given, in a sentence; "" for what is none."""
    config: dict[str, Any] = {}
    with contextlib.suppress(UserError):
        config = read_config(folder)
    if "model_type" in config:
        return (
            f"{folder} is a model of transformers: mhprobe look takes the folder, and diff; in "
            "Python give AutoModel.from_pretrained(folder), or AutoModelForImageClassification's, to "
            "mhprobe.measure and the others. Other commands read networks of timm."
        )
    if "architecture" in config:
        return (
            f"{folder} is a model of timm: give the backbone name=local-dir:{folder} and "
            "pretrained=true in the place of weights. For shrink, and mhprobe.load, write it once: "
            "mhprobe.save(timm.create_model('local-dir:FOLDER', pretrained=True), FILE)."
        )
    return ""


def _check(config: Mapping[str, Any], rules: Mapping[str, _Rule], path: Path, place: str) -> None:
    for key, (expected, fits) in rules.items():
        if key not in config or (config[key] is None and key not in _NAMES):
            continue
        if not fits(config[key]):
            raise UserError(
                f"{path}: {place}{key}: expected {expected}, got {quoted(config[key])}. Correct "
                "it, or copy the file again."
            )
