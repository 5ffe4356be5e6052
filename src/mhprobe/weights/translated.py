"""Put the tensors of a file under a timm model's names, and tell what became of each of them.

timm's ``checkpoint_filter_fn`` renames the tensors of other projects (the original DeiT, DINO, EVA
...), resamples positions, patch embeddings and bias tables, and leaves some tensors out. It tells
little of this: here the tensors before and after are compared.
"""

import contextlib
import io
import logging
import math
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from timm.models import vision_transformer
from torch import Tensor, nn

from mhprobe.backbones.parts.timm_models import untold
from mhprobe.weights.networks import State, grouped, some

PATCHES = "patch_embed.proj.weight"


class Translated(NamedTuple):
    """The state under the model's names; sentences on changes; those that only tell new names."""

    state: State
    changes: list[str]
    renamed: list[str]


def translated(plain: State, model: nn.Module) -> Translated:
    """Return ``plain`` under the names of ``model``, in timm's translation if that fits better."""
    tensors = model.state_dict()
    plain = _apart(plain)
    translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if translate is None or (
        plain.keys() == tensors.keys() and hits(plain, tensors) == len(tensors)
    ):
        return Translated(plain, [], [])
    try:
        # it logs, and prints, a line for each tensor; the lines here say what it did
        with (
            untold("timm.layers", logging.WARNING),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            state: State = translate(_as_whole(plain), model)
    except Exception:  # it looks for names of other projects; what it misses is reported as it is
        return Translated(plain, [], [])
    if hits(state, tensors) < hits(plain, tensors):
        return Translated(plain, [], [])
    return Translated(state, *_told(plain, state, model))


def _as_whole(plain: State) -> State:
    """The tensors under the names that a whole CLIP has for them, if they are its image tower alone."""
    tower = {"class_embedding", "positional_embedding", "conv1.weight"} <= plain.keys()
    return {f"visual.{key}": value for key, value in plain.items()} if tower else dict(plain)


def _apart(state: State) -> State:
    """The same tensors, each with memory of its own, by which it is known behind the translation."""
    counts = Counter(value.untyped_storage().data_ptr() for value in state.values())
    return {
        key: value.clone() if counts[value.untyped_storage().data_ptr()] > 1 else value
        for key, value in state.items()
    }


def hits(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> int:
    """Number of the model's ``tensors`` that ``state`` has, by name and shape."""
    return sum(key in state and state[key].shape == value.shape for key, value in tensors.items())


def _told(plain: State, state: State, model: nn.Module) -> tuple[list[str], list[str]]:
    """Sentences on tensors that were resampled, joined or left out; and on those that only have new names."""
    by_storage: dict[int, list[str]] = {}
    for key, value in state.items():
        by_storage.setdefault(value.untyped_storage().data_ptr(), []).append(key)
    resampled = dict[str, str]()
    renamed = dict[str, str]()
    gone = State()
    for key, value in plain.items():
        arrived = by_storage.get(value.untyped_storage().data_ptr(), [])
        if key in arrived and state[key].shape == value.shape:
            continue
        if arrived:
            if key not in arrived:
                renamed[key] = arrived[0]
        elif key in state:
            resampled[key] = _resampled(key, value, state[key], plain.get(PATCHES), model)
        else:
            gone[key] = value
    known = {*plain, *renamed.values(), *_other_names(by_storage)}
    made = {key: value for key, value in state.items() if key not in known}
    changes = _patterns(resampled)
    sources = {key: value for key, value in gone.items() if _beside(key, made)}
    if sources:
        changes.append(f"{grouped(made)} is made of {grouped(sources)}")
    if left := {key: value for key, value in gone.items() if key not in sources}:
        changes.append(f"timm's translation leaves out {grouped(left)}")
    names = [f"{old} is {new}" for old, new in renamed.items()]
    return changes, [f"{len(names)} names are translated: {some(names, 2)}"] if names else []


def _other_names(by_storage: Mapping[int, Sequence[str]]) -> set[str]:
    """Return the names of tensors that have another name before it."""
    return {name for names in by_storage.values() for name in names[1:]}


def _beside(key: str, made: Mapping[str, Any]) -> bool:
    """True if a tensor of the same block, or the same layer, was made anew."""
    if key.count(".") < 2:
        return any("." not in name for name in made)
    block = key.rsplit(".", 2)[0]
    return any(name.startswith(f"{block}.") for name in made)


def _resampled(
    key: str, old: Tensor, new: Tensor, patch_weight: Tensor | None, model: nn.Module
) -> str:
    if old.shape == new.shape:
        return f"{tuple(old.shape)} is resampled"
    text = f"{tuple(old.shape)} is resampled to {tuple(new.shape)}"
    if key.rpartition(".")[2] == "pos_embed" and old.ndim == 3:
        text += _grid(old.shape[1], patch_weight, model)
    return text


def _grid(tokens: int, patch_weight: Tensor | None, model: Any) -> str:
    """A clause on the grid that timm takes old positions for, which a file does not say.

    It is the grid of the images that timm's own weights are for if that has as many patches, else a
    square.
    """
    whole = getattr(model, "no_embed_class", False)
    patches = tokens - (0 if whole else getattr(model, "num_prefix_tokens", 1))
    known = getattr(vision_transformer, "get_pretrained_grid_size", lambda *_: None)
    side = math.isqrt(max(patches, 0))
    height, width = known(model, patch_weight, patches) or (side, side)
    fits = height * width == patches
    return f", read as a grid of {height} x {width} (a guess)" if fits else ""


def _patterns(resampled: Mapping[str, str]) -> list[str]:
    """One sentence for tensors of all blocks that changed alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for key, text in resampled.items():
        pattern = ".".join("*" if part.isdigit() else part for part in key.split("."))
        alike.setdefault((pattern, text), []).append(key)
    return [
        f"{keys[0]} {text}" if len(keys) == 1 else f"{pattern} {text} ({len(keys)} tensors)"
        for (pattern, text), keys in alike.items()
    ]
