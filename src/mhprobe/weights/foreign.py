"""Load weights trained elsewhere into a model: a state dict under any usual key and prefix.

A .pth, .pt, .bin or .ckpt is unpickled with torch's ``weights_only``: tensors, plain values and
argparse's Namespace; no code runs. timm translates the names that it knows
(``checkpoint_filter_fn``: the original DeiT, DINO, EVA ...).
"""

import argparse
import logging
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mhprobe.backbones import build, family_of
from mhprobe.backbones.parts.timm_models import untold
from mhprobe.errors import UserError, refusing
from mhprobe.io.files import unreadable

log = logging.getLogger(__name__)

State = dict[str, Tensor]
# under which keys training scripts keep a state dict; averaged weights are the ones that are
# evaluated
HOLDERS = (
    *("state_dict_ema", "model_ema", "ema", "teacher"),
    *("state_dict", "model_state_dict", "model", "module", "student"),
)
_SHOWN = 4  # keys in an error


def load_foreign(
    model: nn.Module, path: str | Path, where: str, new_classifier: bool = False
) -> None:
    """Put the weights in ``path`` into ``model``, in place.

    where: the key that the user gave, for errors. new_classifier: keep the model's own classifier
    where the file has none, or one for another number of classes; a warning says so.
    Raises UserError for a file that is missing, damaged or holds code, and for keys or shapes that
    do not fit.
    """
    path = Path(path)
    weights, tensors = read_state(path, where), model.state_dict()
    with untold(
        "timm.layers", logging.WARNING
    ):  # load_foreign says in its own line what was resampled
        state = _fitting(weights, model)
    shapes = {
        key: (tuple(state[key].shape), tuple(tensors[key].shape)) for key in tensors if key in state
    }
    wrong = {key: pair for key, pair in shapes.items() if pair[0] != pair[1]}
    missing, extra = (
        [key for key in tensors if key not in state],
        [key for key in state if key not in tensors],
    )
    if (fits := len(tensors) - len(wrong) - len(missing)) < len(tensors) / 2:
        raise UserError(
            f"{where}: {path} is of another architecture: {fits} of the {len(tensors)} tensors of "
            "this "
            f"{type(model).__name__} are in it. It has {_some(list(weights))}. Give the backbone's "
            "name and sizes that "
            f"it was trained with."
        )
    changes = _changed(weights, state, tensors)
    layer = f"{_classifier_name(model)}."
    classifier = {key for key in tensors if key.startswith(layer)}
    if not classifier:
        extra = [
            key for key in extra if not key.startswith(layer)
        ]  # a feature extractor needs none
    if {*wrong, *missing} <= classifier and not extra and {*wrong, *missing}:
        theirs = f"{next(iter(wrong.values()))[0][0]} classes" if wrong else ""
        if not new_classifier:
            raise UserError(
                f"{where}: {path} fits but for its classifier: the data has "
                f"{len(tensors[min(classifier)])} classes, "
                f"the file {f'one for {theirs}' if wrong else 'none'}. Train a new one "
                "(mhprobe.train), or use the "
                f"data that it was trained on."
            )
        lost = (
            f"the classifier for {theirs} does not fit this data"
            if wrong
            else "it has no classifier"
        )
        changes.append(f"{lost}, a new one begins")
        wrong, missing = {}, []
    if wrong or missing or extra:
        unlike = [f"{key} {got} instead of {expected}" for key, (got, expected) in wrong.items()]
        parts = {"not in it": missing, "unknown to the model": extra, "of another shape": unlike}
        differences = "; ".join(f"{what}: {_some(keys)}" for what, keys in parts.items() if keys)
        raise UserError(f"{where}: {path} does not fit: {differences}.")
    if changes:
        log.warning("%s: %s: %s.", where, path, "; ".join(changes))
    fitting = {
        key: value
        for key, value in state.items()
        if key in tensors and value.shape == tensors[key].shape
    }
    model.load_state_dict(tensors | in_float32(fitting))


def in_float32(state: Mapping[str, Tensor]) -> State:
    """The same tensors, those of other floating-point types in float32."""
    return {
        key: value.float() if value.is_floating_point() else value for key, value in state.items()
    }


def model_from(path: str | Path, name: str, **settings: Any) -> nn.Module:
    """The backbone ``name`` in eval mode, with the weights and classes in ``path``.

    UserError as ``load_foreign``.
    """
    if "num_classes" not in settings:
        model = build(name, **settings)
        state, layer = _fitting(read_state(Path(path), "load"), model), _classifier_name(model)
        settings["num_classes"] = len(state[f"{layer}.weight"]) if f"{layer}.weight" in state else 0
    model = build(name, **settings)
    load_foreign(model, path, "load")
    return model.eval()


def read_state(path: Path, where: str) -> State:
    """The state dict in a file, whatever key it is under. UserError as in ``load_foreign``."""
    if wrong := unreadable(path):
        raise UserError(f"{where}: {wrong}")
    state = _read(path, where)
    # of a state dict most values are tensors: Lightning's gates and metrics keep other things
    # beside them
    while (
        isinstance(state, Mapping)
        and sum(isinstance(part, Tensor) for part in state.values()) <= len(state) / 2
    ):
        key = next((key for key in HOLDERS if isinstance(state.get(key), Mapping)), None)
        if key is None:
            raise UserError(
                f"{where}: {path} holds no state dict: it has "
                f"{_some([str(key) for key in state])}, expected tensors "
                f"by name, or such a dict under {', '.join(HOLDERS)}."
            )
        state = state[key]
    if not isinstance(state, Mapping):
        raise UserError(
            f"{where}: {path} holds a {type(state).__name__}, expected tensors by name (a state "
            "dict)."
        )
    return {str(key): value for key, value in state.items() if isinstance(value, Tensor)}


def _read(path: Path, where: str) -> Any:
    if path.suffix == ".safetensors":
        whole = f"{where}: {path} is not a whole safetensors file"
        with refusing(
            lambda error: f"{whole} ({error}). Copy it again.", (SafetensorError, OSError)
        ):
            return load_file(path)
    with path.open("rb") as file:
        if file.read(2) == b"PK" and not zipfile.is_zipfile(
            path
        ):  # its table of contents stands at its end
            raise UserError(f"{where}: {path} is cut short. Copy it again.")
    pickled = (
        f"{where}: {path} is refused: it is damaged, or holds more than tensors and plain values, "
        "and loading that "
        f"could run code. Save model.state_dict() alone, or as .safetensors."
    )  # torch raises UnpicklingError, RuntimeError, EOFError, KeyError ...
    with refusing(lambda _: pickled), torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _fitting(state: State, model: nn.Module) -> State:
    """Return ``state`` under the model's own names, if need be in timm's translation."""
    tensors = model.state_dict()
    plain = _without_prefix(state, set(tensors))
    translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if translate is None or (
        plain.keys() == tensors.keys() and _hits(plain, tensors) == len(tensors)
    ):
        return plain
    try:
        translated = translate(dict(plain), model)
    except (
        Exception
    ):  # it looks for names of other projects' files; whatever it misses is reported as it is
        return plain
    return translated if _hits(translated, tensors) >= _hits(plain, tensors) else plain


def _hits(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> int:
    return sum(key in state and state[key].shape == value.shape for key, value in tensors.items())


def _changed(weights: State, state: State, tensors: State) -> list[str]:
    """Sentences on what was done to the weights of a file to fit the model: another precision, another grid."""
    changes = []
    floats = [value.dtype for value in state.values() if value.is_floating_point()]
    if narrow := {str(kind).removeprefix("torch.") for kind in floats if kind.itemsize < 4}:
        changes.append(f"its {' and '.join(sorted(narrow))} weights become float32")
    before = {key.rpartition(".")[2]: tuple(value.shape) for key, value in weights.items()}
    for key, value in state.items():
        old = before.get(key.rpartition(".")[2])
        if (
            "." not in key and key in tensors and old not in (None, tuple(value.shape))
        ):  # the model's own: positions
            changes.append(f"{key} {old} is resampled to {tuple(value.shape)}")
    return changes


def _without_prefix(state: State, names: set[str]) -> State:
    """Strip the prefix (``module.``, ``teacher.backbone.`` ...) that most names are behind."""
    behind: Counter[str] = Counter()
    for key in state:
        parts = key.split(".")
        behind.update(
            ".".join(parts[:i]) for i in range(len(parts)) if ".".join(parts[i:]) in names
        )
    # of equals averaged weights, which are the ones that are evaluated
    prefix = max(
        sorted(behind), key=lambda p: (behind[p], "ema" in p or "teacher" in p, -len(p)), default=""
    )
    dotted = f"{prefix}." if prefix else ""
    return {
        key.removeprefix(dotted): value for key, value in state.items() if key.startswith(dotted)
    }


def _classifier_name(model: nn.Module) -> str | None:
    classifier = family_of(model).classifier(model)
    return next((name for name, module in model.named_modules() if module is classifier), None)


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{', '.join(keys[:_SHOWN])}{more}"
