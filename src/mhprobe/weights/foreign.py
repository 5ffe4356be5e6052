"""Load weights trained elsewhere into a model: a state dict under any usual key and prefix.

Files are read without running code in them (``reading.py``). timm translates the names that it
knows (``checkpoint_filter_fn``: the original DeiT, DINO, EVA ...).
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import build, family_of
from mhprobe.backbones.parts.timm_models import note
from mhprobe.errors import UserError, quoted
from mhprobe.io.readings import Reading
from mhprobe.weights.classifiers import with_classifier
from mhprobe.weights.networks import NetworkInFile, State, find_network, grouped, option, some
from mhprobe.weights.normed import normed
from mhprobe.weights.others import other_library
from mhprobe.weights.reading import read_content
from mhprobe.weights.translated import translated

log = logging.getLogger(__name__)

LeaveOut = bool | str | Sequence[str]
# parts of names of a Vision Transformer, and the option of timm's that makes them
_OPTIONS = (
    (r"\bq_norm\.", "qk_norm", "True"),
    (r"\.ls1\.gamma$", "init_values", "1e-5"),
    (r"^norm_pre\.", "pre_norm", "True"),
)
# of averages of weights: how often they were updated
_COUNTERS = {"n_averaged", "num_updates", "initted", "step", "decay"}


def load_foreign(
    model: nn.Module,
    path: str | Path,
    where: str,
    new_classifier: bool = False,
    prefix: str | None = None,
    leave_out: LeaveOut = False,
) -> None:
    """Put the weights in ``path`` into ``model``, in place.

    where: the key that the user gave, for errors. new_classifier: keep the model's own classifier
    where the file has none, or one for another number of classes. prefix: which network of the file;
    None takes the one most like the model. leave_out: beginnings of names to leave out, or True for
    all that the model has not. One line says what was resampled, renamed, left out or chosen.
    Raises UserError for a file that is missing, damaged or holds code, for keys or shapes that do
    not fit, and for a prefix or a name to leave out that the file has not.
    """
    path = Path(path)
    _put(read_content(path, where), model, path, where, new_classifier, prefix, leave_out)


def _put(
    content: Any,
    model: nn.Module,
    path: Path,
    where: str,
    new_classifier: bool,
    prefix: str | None,
    leave_out: LeaveOut,
) -> None:
    network, state, changes, renamed = _fitting(content, model, path, where, prefix, leave_out)
    changes = [*network.notes, *changes]
    tensors = model.state_dict()
    state, extra = _without_extra(state, tensors, leave_out, changes)
    beside = _Beside(f"{where}: {path}", state, tensors, extra)
    beside.refuse_another_architecture(network, model)
    layer = f"{_classifier_name(model)}."
    left, whole = beside.leave_out_classifier(layer)
    (renamed if whole else changes).extend(left)
    changes += beside.begin_classifier(layer, new_classifier)
    beside.refuse_differences(where)
    told = [*_in_float32(state), *changes, *renamed]
    unsaid = "its names and shapes are the network's"
    note(model, Reading("weights", "; ".join(told) or unsaid, f"of {path.name}"))
    _note_positions(model, network.state, path)
    if told:
        level = logging.WARNING if len(told) > len(renamed) else logging.INFO
        log.log(level, "%s: %s: %s.", where, path, "; ".join(told))
    fitting = beside.fitting()
    _refuse_numbers(fitting, tensors, model, path, where)
    model.load_state_dict(tensors | in_float32(fitting))


class _Beside:
    """The tensors of a file beside those of a model.

    place: of the file, for messages. state: the file's. tensors: the model's. extra: names in the
    file that the model has not. wrong: shapes in the file and in the model, where they differ.
    missing: names that the file has not.
    """

    def __init__(self, place: str, state: State, tensors: State, extra: list[str]) -> None:
        self.place, self.state, self.tensors, self.extra = place, state, tensors, extra
        self.wrong = {
            key: (tuple(state[key].shape), tuple(value.shape))
            for key, value in tensors.items()
            if key in state and state[key].shape != value.shape
        }
        self.missing = [key for key in tensors if key not in state]

    def refuse_another_architecture(self, network: NetworkInFile, model: nn.Module) -> None:
        """UserError where less than half of the model is in the file."""
        fits = len(self.tensors) - len(self.wrong) - len(self.missing)
        if fits >= len(self.tensors) / 2:
            return
        reason = other_library(network.state) or (
            f"It has {some(list(network.state))}. Give the backbone's name and sizes that it was "
            "trained with."
        )
        raise UserError(
            f"{self.place} is of another architecture: {fits} of the {len(self.tensors)} tensors of "
            f"this {type(model).__name__} are in it. {reason}"
        )

    def leave_out_classifier(self, layer: str) -> tuple[list[str], bool]:
        """Leave out the file's classifier for a feature extractor, which needs none.

        Return a sentence on it, and True if it is one layer, which the model could have had.
        """
        asked = {key: self.state[key] for key in self.extra if key.startswith(layer)}
        whole = asked.keys() <= {f"{layer}weight", f"{layer}bias"}
        if not asked or any(key.startswith(layer) for key in self.tensors):
            return [], whole
        self.extra = [key for key in self.extra if key not in asked]
        if whole:
            return [f"the classifier is left out: {grouped(asked)}"], whole
        return [
            f"the classifier is more than one layer and left out: {grouped(asked)}; so the network gives "
            "features, no logits"
        ], whole

    def begin_classifier(self, layer: str, new: bool) -> list[str]:
        """Keep the model's own classifier where nothing but the file's does not fit, and say so.

        new: False for a UserError instead.
        """
        classifier = {key for key in self.tensors if key.startswith(layer)}
        unfit = {*self.wrong, *self.missing}
        if not unfit or not unfit <= classifier or self.extra:
            return []
        theirs = f"{next(iter(self.wrong.values()))[0][0]} classes" if self.wrong else ""
        if not new:
            raise UserError(
                f"{self.place} fits but for its classifier: the data has "
                f"{len(self.tensors[min(classifier)])} classes, "
                f"the file {f'one for {theirs}' if theirs else 'none'}. Train a new one "
                "(mhprobe.train), or use the data that it was trained on."
            )
        self.wrong, self.missing = {}, []
        lost = "it has no classifier"
        if theirs:
            lost = f"the classifier for {theirs} does not fit this data"
        return [f"{lost}, a new one begins"]

    def refuse_differences(self, where: str) -> None:
        """UserError for names and shapes that do not fit. where: the key that the user gave."""
        if not (self.wrong or self.missing or self.extra):
            return
        unlike = [
            f"{key} {got} instead of {expected}" for key, (got, expected) in self.wrong.items()
        ]
        parts = {
            "not in it": self.missing,
            "unknown to the model": self.extra,
            "of another shape": unlike,
        }
        differences = "; ".join(f"{what}: {some(keys)}" for what, keys in parts.items() if keys)
        raise UserError(f"{self.place} does not fit: {differences}.{_next_step(self, where)}")

    def fitting(self) -> State:
        """Return the file's tensors that the model has, of the same shape."""
        return {
            key: value
            for key, value in self.state.items()
            if key in self.tensors and value.shape == self.tensors[key].shape
        }


def _note_positions(model: nn.Module, state: State, path: Path) -> None:
    """Keep in ``model.readings`` the grid that embeddings of positions are read as, where their number has several.

    state: of the file. If its embeddings have another shape they are resampled, which is told elsewhere.
    """
    own = model.state_dict().get("pos_embed")
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if own is None or grid is None:
        return
    if not any(value.shape == own.shape for value in state.values()):
        return
    patches = grid[0] * grid[1]
    if any(patches % rows == 0 for rows in range(2, patches) if rows != grid[0]):
        source = f"the network's, since {path.name} has only their number"
        read_as = f"read as a grid of {grid[0]} x {grid[1]}"
        reading = Reading("positions", read_as, source, True, "img_size")
        note(model, reading)
        log.info("%s: %s.", path, reading)


def _fitting(
    content: Any, model: nn.Module, path: Path, where: str, prefix: str | None, leave_out: LeaveOut
) -> tuple[NetworkInFile, State, list[str], list[str]]:
    """The network of the file that is like the model; its tensors under the model's names; what became of them."""
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    network = find_network(content, shapes, path, where, prefix)
    begun = _beginnings(leave_out)
    named = {key: of for key, of in network.state.items() if _begins(network, key, begun)}
    _refuse_absent(network, begun, path, where)
    state = {key: value for key, value in network.state.items() if key not in named}
    state, made = normed(_plain(state, path, where), shapes)
    state, changes, renamed = translated(state, model)
    beside = {key: of for key, of in network.beside.items() if not key.startswith(begun)}
    layer = str(_classifier_name(model))
    weight = model.state_dict().get(f"{layer}.weight")
    state, name, told = with_classifier(state, beside, layer, weight)
    changes = [*made, *changes, *told]
    used = [f"{name}.{part}" for part in ("weight", "bias") if name]
    left = {**named, **{key: of for key, of in network.beside.items() if key not in used}}
    if left:
        changes = [*changes, f"left out: {grouped(left)}"]
    return network, state, changes, renamed


def _begins(network: NetworkInFile, key: str, begun: tuple[str, ...]) -> bool:
    """True if a tensor's name begins so: behind the network's prefix, or with its last parts before it.

    Where the prefix is ``model.net``, ``decoder``, ``net.decoder`` and ``model.net.decoder`` are one.
    """
    parts = network.prefix.split(".")
    longer = [".".join((*parts[at:], key)) for at in range(len(parts))]
    return any(name.startswith(begun) for name in (key, *longer))


def _refuse_absent(network: NetworkInFile, begun: tuple[str, ...], path: Path, where: str) -> None:
    """UserError for a beginning that no tensor has."""
    for begin in begun:
        if not begin:
            raise UserError(
                f"{option(where, 'leave_out')}: expected the beginning of a name, got '', with which "
                "every name begins."
            )
        of_network = any(_begins(network, key, (begin,)) for key in network.state)
        if not of_network and not any(key.startswith(begin) for key in network.beside):
            raise UserError(
                f"{option(where, 'leave_out')}: no tensor of {path} begins with {quoted(begin)}. "
                f"It has {some(list(network.state), 12)}."
            )


def _plain(state: State, path: Path, where: str) -> State:
    """The same tensors, none of them sparse. Raises UserError for tensors without numbers."""
    if empty := [key for key, value in state.items() if value.is_meta]:
        raise UserError(
            f"{where}: {path} holds shapes without numbers: {some(empty)} is on the meta device. "
            "Save the network after its weights are loaded."
        )
    return {
        key: value if value.layout is torch.strided else value.to_dense()
        for key, value in state.items()
    }


def _refuse_numbers(state: State, tensors: State, model: nn.Module, path: Path, where: str) -> None:
    """Raise UserError for whole numbers in the place of weights, and for weights that are not finite."""
    whole = [
        key
        for key, value in state.items()
        if tensors[key].is_floating_point() and not value.is_floating_point()
    ]
    if whole:
        raise UserError(
            f"{where}: {path} holds whole numbers where the network has weights: {some(whole)}, as "
            "after quantising. Give the weights from before it."
        )
    learned = {key for key, _ in model.named_parameters()}
    broken = [
        key
        for key, value in state.items()
        if key in learned and not bool(value.float().isfinite().all())
    ]
    if broken:
        raise UserError(
            f"{where}: {path}: {some(broken)} is not finite, so every output is NaN. Take the weights "
            "of an earlier epoch."
        )


def _beginnings(leave_out: LeaveOut) -> tuple[str, ...]:
    if isinstance(leave_out, bool):
        return ()
    return (leave_out,) if isinstance(leave_out, str) else tuple(leave_out)


def _without_extra(
    state: State, tensors: State, leave_out: LeaveOut, changes: list[str]
) -> tuple[State, list[str]]:
    """The state, and its names that the model has not; leave_out=True takes these out and tells them in ``changes``."""
    counters = [key for key in state if key not in tensors and key.rpartition(".")[2] in _COUNTERS]
    if counters:
        changes.append(f"left out: {grouped({key: state[key] for key in counters})}")
        state = {key: value for key, value in state.items() if key not in counters}
    extra = {key: value for key, value in state.items() if key not in tensors}
    if leave_out is not True or not extra:
        return state, list(extra)
    changes.append(f"left out: {grouped(extra)}")
    return {key: value for key, value in state.items() if key in tensors}, []


def _next_step(beside: _Beside, where: str) -> str:
    """A sentence on how a file that does not fit may fit; "" where nothing is known."""
    extra, missing = beside.extra, beside.missing
    section, assigned = ("+backbone.", "true") if where.startswith("backbone.") else ("", "True")
    if any(key.startswith("fc_norm.") for key in extra):
        return (
            " fc_norm stands behind the mean over patches: the file's network pools so; give "
            f"{section}global_pool=avg."
        )
    if any(key.startswith("fc_norm.") for key in missing):
        return (
            " This network has fc_norm, since it pools by the mean over patches, and the file has "
            f"not; give {section}global_pool=token."
        )
    if any(key.startswith("attn_pool.") for key in extra):
        return (
            " attn_pool is a pooling by attention in the place of the class token: the file's network "
            f"pools so; give {section}global_pool=map."
        )
    if any("lora_" in key or ".base_layer." in key for key in extra):
        return (
            " It holds adapters (LoRA) beside the weights that they change: merge them first "
            "(merge_and_unload of peft), and save the merged network."
        )
    if options := _options_of_others(beside):
        given = [
            f"{section.lstrip('+') if name == 'depth' else section}{name}={value}"
            for name, value in options.items()
        ]
        return f" The file's network was made with other options: give {' '.join(given)}."
    if not extra or missing or beside.wrong:
        return ""
    leave = f"{option(where, 'leave_out')}={assigned}"
    if inside := [key for key in extra if _is_inside(key, beside.tensors)]:
        return (
            f" {inside[0]} stands inside of a part of this network, so the file's was made with "
            f"other options: give them. {leave} leaves it out, which changes what is computed."
        )
    return f" The network is whole in it; {leave} leaves the rest out."


def _options_of_others(beside: _Beside) -> dict[str, str]:
    """Return the options of timm's that the file's network was made with, as its names tell."""
    extra, missing = beside.extra, beside.missing
    options = {
        name: value
        for pattern, name, value in _OPTIONS
        if any(re.search(pattern, key) for key in extra)
    }
    if "reg_token" in extra:
        options["reg_tokens"] = str(beside.state["reg_token"].shape[1])
    if "cls_token" in missing and "pos_embed" not in missing:
        options["class_token"] = "False"
    channels = [
        shapes[0][1] for key, shapes in beside.wrong.items() if _other_channels(key, shapes)
    ]
    if channels:
        options["in_chans"] = str(channels[0])
    without = [key for key in missing if key.endswith(".attn.qkv.bias")]
    if without and not any(key.replace(".bias", ".weight") in missing for key in without):
        options["qkv_bias"] = "False"
    blocks, own = (_numbered(keys) for keys in (beside.state, beside.tensors))
    if own and blocks not in (0, own):
        options["depth"] = str(blocks)
    return options


def _other_channels(key: str, shapes: tuple[Sequence[int], Sequence[int]]) -> bool:
    """True for patch embeddings that differ in the channels of images alone. shapes: the file's, the model's."""
    theirs, own = shapes
    if not key.startswith("patch_embed.") or len(theirs) != 4 or len(own) != 4:
        return False
    return theirs[1] != own[1] and (theirs[0], *theirs[2:]) == (own[0], *own[2:])


def _numbered(keys: Iterable[str]) -> int:
    """The number of blocks that names count: 3 for "blocks.2.norm1.weight"."""
    found = [re.match(r"blocks\.(\d+)\.\D", key) for key in keys]
    return max((int(one[1]) + 1 for one in found if one), default=0)


def _is_inside(key: str, tensors: State) -> bool:
    """Return True for a name inside of a part that the model has."""
    part, dot, _ = key.partition(".")
    return bool(dot) and any(name.startswith(f"{part}.") for name in tensors)


def _in_float32(state: State) -> list[str]:
    """A sentence on floating-point types that become float32, if there are any."""
    floats = [value.dtype for value in state.values() if value.is_floating_point()]
    narrow = {str(kind).removeprefix("torch.") for kind in floats if kind.itemsize < 4}
    return [f"its {' and '.join(sorted(narrow))} weights become float32"] if narrow else []


def in_float32(state: Mapping[str, Tensor]) -> State:
    """The same tensors, those of other floating-point types in float32."""
    return {
        key: value.float() if value.is_floating_point() else value for key, value in state.items()
    }


def model_from(
    path: str | Path,
    name: str,
    prefix: str | None = None,
    leave_out: LeaveOut = False,
    **settings: Any,
) -> nn.Module:
    """The backbone ``name`` in eval mode, with the weights and classes in ``path``.

    prefix, leave_out, UserError: as ``load_foreign``.
    """
    path = Path(path)
    content = read_content(path, "load")
    if "num_classes" not in settings:
        model = build(name, **settings)
        _, state, _, _ = _fitting(content, model, path, "load", prefix, leave_out)
        layer = _classifier_name(model)
        settings["num_classes"] = len(state[f"{layer}.weight"]) if f"{layer}.weight" in state else 0
    model = build(name, **settings)
    _put(content, model, path, "load", False, prefix, leave_out)
    return model.eval()


def _classifier_name(model: nn.Module) -> str | None:
    classifier = family_of(model).classifier(model)
    return next((name for name, module in model.named_modules() if module is classifier), None)
