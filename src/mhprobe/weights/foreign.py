"""Weights of somebody else's training, put into a model: a state dict under whatever key and prefix it was saved.

.safetensors hold tensors and nothing else. A .pth, .pt, .bin or .ckpt is unpickled with torch's ``weights_only``: what
is more than tensors, plain values and the arguments of a command line (argparse's Namespace, which holds values) is
refused, and no code runs. What timm knows of other people's names (``checkpoint_filter_fn``: the original DeiT, DINO,
EVA ...) it translates.
"""

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import build, family_of
from mhprobe.backbones.parts.timm_models import untold
from mhprobe.errors import UserError

log = logging.getLogger(__name__)

State = dict[str, Tensor]
# under which keys training scripts keep a state dict; averaged weights are the ones that are evaluated
HOLDERS = (
    *("state_dict_ema", "model_ema", "ema", "teacher"),
    *("state_dict", "model_state_dict", "model", "module", "student"),
)
_SHOWN = 4  # keys in an error


def load_foreign(model: nn.Module, path: str | Path, where: str, new_classifier: bool = False) -> None:
    """Put the weights in ``path`` into ``model``, in place.

    where: the key that the user gave, for errors. new_classifier: keep the model's own classifier where the file has
    none, or one for another number of classes; a warning says so.

    Raises UserError for a file that is missing, damaged or holds code, weights of another architecture, and keys or
    shapes that do not fit: all of them in one line.
    """
    path = Path(path)
    found, own = read_state(path, where), model.state_dict()
    with untold("timm.layers", logging.WARNING):  # load_foreign says in its own line what was resampled
        state = _fitting(found, model)
    shapes = {k: (tuple(state[k].shape), tuple(own[k].shape)) for k in own if k in state}
    wrong = {key: pair for key, pair in shapes.items() if pair[0] != pair[1]}
    missing, extra = [k for k in own if k not in state], [k for k in state if k not in own]
    fits = len(own) - len(wrong) - len(missing)
    if fits < len(own) / 2:
        raise UserError(
            f"{where}: {path} is of another architecture: {fits} of the {len(own)} tensors of this "
            f"{type(model).__name__} are in it. It has {_some(list(found))}. Give the backbone's name and sizes that "
            f"it was trained with."
        )
    changes = _changed(found, state, own)
    classifier = _classifier_keys(model)
    if not classifier and (name := _classifier_name(model)):
        extra = [key for key in extra if not key.startswith(f"{name}.")]  # a feature extractor needs none
    if {*wrong, *missing} <= classifier and not extra and {*wrong, *missing}:
        if not new_classifier:
            rows = f"one for {next(iter(wrong.values()))[0][0]} classes" if wrong else "none"
            raise UserError(
                f"{where}: {path} fits but for its classifier: the data has {len(own[min(classifier)])} classes, the "
                f"file {rows}. Train a new one (mhprobe.train), or use the data that it was trained on."
            )
        changes.append(
            f"the classifier for {next(iter(wrong.values()))[0][0]} classes does not fit this data, a new one begins"
            if wrong
            else "it has no classifier, a new one begins"
        )
        wrong, missing = {}, []
    if wrong or missing or extra:
        raise UserError(f"{where}: {path} does not fit: {_differences(wrong, missing, extra)}.")
    fresh = {key: own[key] for key in classifier if key not in state or state[key].shape != own[key].shape}
    if changes:
        log.warning("%s: %s: %s.", where, path, "; ".join(changes))
    floats = {key: value.float() if value.is_floating_point() else value for key, value in state.items()}
    model.load_state_dict({**{key: floats[key] for key in own if key in floats}, **fresh})


def model_from(path: str | Path, name: str, **settings: Any) -> nn.Module:
    """The backbone ``name`` with the weights in ``path``, in eval mode; its number of classes is the file's.

    settings: as for ``mhprobe.backbones.build``. Raises UserError as ``load_foreign`` does.
    """
    where = "load"
    if "num_classes" not in settings:
        model = build(name, **settings)
        state, layer = _fitting(read_state(Path(path), where), model), _classifier_name(model)
        settings["num_classes"] = len(state[f"{layer}.weight"]) if f"{layer}.weight" in state else 0
    model = build(name, **settings)
    load_foreign(model, path, where)
    return model.eval()


def read_state(path: Path, where: str) -> State:
    """The state dict in a file, whatever key it is under. UserError as in ``load_foreign``."""
    if not path.is_file():
        raise UserError(f"{where}: no file {path}.")
    found = _read_safetensors(path, where) if path.suffix == ".safetensors" else _read_pickle(path, where)
    while isinstance(found, Mapping) and not _is_state(found):
        key = next((key for key in HOLDERS if isinstance(found.get(key), Mapping)), None)
        if key is None:
            raise UserError(
                f"{where}: {path} holds no state dict: it has {_some([str(key) for key in found])}, expected tensors "
                f"by name, or such a dict under {', '.join(HOLDERS)}."
            )
        found = found[key]
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: {path} holds a {type(found).__name__}, expected tensors by name (a state dict).")
    return {str(key): value for key, value in found.items() if isinstance(value, Tensor)}


def _is_state(found: Mapping[Any, Any]) -> bool:
    """Return True if most values are tensors: Lightning's gates and metrics keep other things beside them."""
    tensors = sum(isinstance(value, Tensor) for value in found.values())
    return tensors > len(found) / 2


def _read_safetensors(path: Path, where: str) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{where}: {path} is not a whole safetensors file ({error}).") from error


def _read_pickle(path: Path, where: str) -> Any:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises UnpicklingError, RuntimeError, EOFError, KeyError ...
        raise UserError(
            f"{where}: {path} is refused: it is damaged, or holds more than tensors and plain values, and loading that "
            f"could run code. Save model.state_dict() alone, or as .safetensors."
        ) from error


def _fitting(state: State, model: nn.Module) -> State:
    """Return ``state`` under the model's own names, if need be in timm's translation."""
    own = model.state_dict()
    plain = _without_prefix(state, set(own))
    if _same(plain, own):
        return plain
    translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if translate is None:
        return plain
    try:
        translated = translate(dict(plain), model)
    except Exception:  # it looks for names of other projects' files; whatever it misses is reported as it is
        return plain
    return translated if _hits(translated, own) >= _hits(plain, own) else plain


def _same(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    return state.keys() == own.keys() and all(state[key].shape == own[key].shape for key in own)


def _hits(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> int:
    return sum(key in state and state[key].shape == value.shape for key, value in own.items())


def _changed(found: State, state: State, own: State) -> list[str]:
    """Sentences on what was done to the weights of a file to fit the model: another precision, another grid."""
    changes = []
    floats = [value.dtype for value in state.values() if value.is_floating_point()]
    if narrow := {str(kind).removeprefix("torch.") for kind in floats if kind.itemsize < 4}:
        changes.append(f"its {' and '.join(sorted(narrow))} weights become float32")
    before = {key.rpartition(".")[2]: tuple(value.shape) for key, value in found.items()}
    for key, value in state.items():
        old = before.get(key.rpartition(".")[2])
        if "." not in key and key in own and old not in (None, tuple(value.shape)):  # the model's own: positions
            changes.append(f"{key} {old} is resampled to {tuple(value.shape)}")
    return changes


def _without_prefix(state: State, names: set[str]) -> State:
    """Strip the prefix (``module.``, ``model.``, ``teacher.backbone.`` ...) that most names are behind."""
    behind: Counter[str] = Counter()
    for key in state:
        parts = key.split(".")
        behind.update(".".join(parts[:i]) for i in range(len(parts)) if ".".join(parts[i:]) in names)
    if not behind:
        return state
    # of equals averaged weights, which are the ones that are evaluated
    prefix = max(sorted(behind), key=lambda p: (behind[p], "ema" in p or "teacher" in p, -len(p)))
    if not prefix:
        return state
    return {key.removeprefix(f"{prefix}."): value for key, value in state.items() if key.startswith(f"{prefix}.")}


def _classifier_keys(model: nn.Module) -> set[str]:
    inside = {id(parameter) for parameter in family_of(model).classifier(model).parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in inside}


def _classifier_name(model: nn.Module) -> str | None:
    found = family_of(model).classifier(model)
    return next((name for name, module in model.named_modules() if module is found), None)


def _differences(wrong: Mapping[str, Any], missing: list[str], extra: list[str]) -> str:
    shapes = [f"{key} {got} instead of {expected}" for key, (got, expected) in wrong.items()]
    parts = {"not in it": missing, "unknown to the model": extra, "of another shape": shapes}
    return "; ".join(f"{what}: {_some(keys)}" for what, keys in parts.items() if keys)


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{', '.join(keys[:_SHOWN])}{more}"
