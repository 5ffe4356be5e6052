"""Trained weights as a pair of files: plain timm keys in safetensors, and a JSON that rebuilds the model.

A description is a dict of plain values: ``backbone`` (what ``backbones.build`` takes),
``class_names``, ``data`` (the source's name), ``input`` (size, mean, std), ``gates`` (A values,
absent when all are one), ``gates_kept`` (A times 0 or 1, which heads learned gates keep, absent
without), ``made`` (origin of the weights), ``sha256`` (of the tensors' file) and ``digest`` (of the
description itself). A pruned model has no ``gates`` (they are in the weights; ``gates_folded``
lists them), and:
    timm: arguments of ``timm.create_model`` for the model before pruning;
    kept: site name -> numbers, in that model, of the heads or neurons that stayed; empty for an
    emptied layer;
    stands_in: site name -> class of narrow.py (a copy lies beside the weights) where timm's own
    cannot hold the heads;
    chosen_by: the images that chose them, "split:digest" each; promises and tests on these images
    are refused;
    proj_bias: "keep" if an emptied layer still adds its projection's bias, or "drop".
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from mhprobe.backbones import attach, build, channels_of, layout_of, slice_sites
from mhprobe.backbones.parts import narrow
from mhprobe.backbones.parts.bounds import planned
from mhprobe.backbones.parts.folders import folder_of_others
from mhprobe.backbones.parts.timm_models import colours_read, note
from mhprobe.errors import UserError, first_line, quoted, refusing
from mhprobe.gates import find_gates
from mhprobe.heads import KINDS
from mhprobe.io.files import replacing, unreadable, write_all
from mhprobe.io.ordinary import read_json
from mhprobe.weights.description import (
    SWITCHES,
    check_setting,
    checked,
    digest_of_description,
    for_timm,
)
from mhprobe.weights.foreign import in_float32
from mhprobe.weights.reading import other_kind

# the parts of a description that belong to the model, not to the file it came in
DESCRIBES = ("backbone", "class_names", "data", "timm", "kept", "proj_bias", "chosen_by")


def save_weights(
    model: nn.Module, path: Path, description: dict[str, Any], dtype: torch.dtype = torch.float32
) -> None:
    """Write ``path`` (.safetensors) and its JSON.

    dtype: float16 halves the file; loading gives float32 again.
    """
    write_all(weights_files(model, path, description, dtype))


def weights_files(
    model: nn.Module, path: Path, description: dict[str, Any], dtype: torch.dtype = torch.float32
) -> dict[Path, bytes]:
    """Return the files that ``save_weights`` writes."""
    state = {
        key: value.detach()
        .cpu()
        .to(dtype if value.is_floating_point() else value.dtype)
        .contiguous()
        for key, value in model.state_dict().items()
    }
    data = save(state, metadata={"format": "pt"})
    if (gates := find_gates(model)) is not None and not (gates.effective() == 1).all():
        description = {**description, "gates": gates.effective().tolist()}
    description = {**description, "sha256": hashlib.sha256(data).hexdigest()}
    files = {path: data}
    if stands_in := {
        n: type(part).__name__
        for n, part in model.named_modules()
        if isinstance(part, narrow.STANDS_IN)
    }:
        description["stands_in"] = stands_in
        files[path.with_name("narrow.py")] = Path(narrow.__file__).read_bytes()
    return {**files, path.with_suffix(".json"): as_json(description)}


def as_json(description: dict[str, Any]) -> bytes:
    """Return the JSON file of a description, with its digest."""
    return (
        json.dumps({**description, "digest": digest_of_description(description)}, indent=2) + "\n"
    ).encode()


def load_weights(path: str | Path, **changes: float) -> tuple[nn.Module, dict[str, Any]]:
    """Load a model and its description from a .safetensors + .json pair or a training checkpoint (.ckpt).

    The model is timm's, in eval mode, with gates only if they differ from one. No code in the file
    runs.
    changes: rates of dropping (``patch_drop_rate=0``) and ``fused_attn`` in place of the file's;
    they hold no weights. Raises UserError for missing, damaged or foreign files, and for a rate
    that the model has not.
    """
    path = Path(path)
    if wrong := unreadable(path):
        raise UserError(
            f"weights: {wrong} Give a .safetensors with its .json, or a .ckpt of mhprobe.train."
        )
    read = _from_checkpoint if path.suffix == ".ckpt" else _from_pair
    state, description, gate_values = read(path)
    _check_changes(changes, description["backbone"]["name"], path)
    description["backbone"] = {**description["backbone"], **changes}
    if description.get("timm") is not None:
        description["timm"] = for_timm(description)  # which has what changed, too
    # in a checkpoint: learned in another form than their values
    if description.get("gates") is not None:
        gate_values = torch.tensor([float(value) for value in description["gates"]])
    misfit = f"weights: {path} does not fit the backbone it names"
    model: Any = _built(description, path, state, misfit)
    model.chosen_by = description.get("chosen_by")
    with refusing(
        lambda error: f"{misfit} ({' '.join(str(error).split())[:200]}).", (RuntimeError,)
    ):
        model.load_state_dict(in_float32(state))
    if gate_values is not None and not (gate_values == 1).all():
        _attach_gates(model, gate_values, path)
    heads = layout_of(model).num_heads
    kept = gates_kept(description)
    if kept is not None and len(kept) != heads:
        raise UserError(
            f"weights: the JSON of {path} has {len(kept)} gates_kept, expected {heads}."
        )
    return model.eval(), description


def _check_changes(changes: Mapping[str, float], backbone: str, path: Path) -> None:
    """UserError for a change that is neither a switch nor a rate of this backbone from 0 to below 1."""
    for key, rate in changes.items():
        if key in SWITCHES and isinstance(rate, bool):
            continue
        check_setting(backbone, key, rate, path)
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise UserError(f"{key}: expected a share from 0 to below 1, got {rate}.")


def _attach_gates(model: nn.Module, values: Tensor, path: Path) -> None:
    """Attach gates with these values: of heads, of heads and neurons, or of neurons alone.

    UserError for a number of values that is none of these.
    """
    gates = attach(model)
    heads = gates.layout.num_heads
    if values.numel() > heads:
        alone = values.numel() == layout_of(model, {"neuron"}).num_heads
        gates = attach(model, units={"neuron"} if alone else KINDS)
    if values.shape != gates.values.shape:
        units = gates.layout.num_heads
        beside = f" of heads, or {units} with neurons" if units > heads else ""
        raise UserError(f"weights: {path} has {values.numel()} gates, expected {heads}{beside}.")
    with torch.no_grad():
        gates.values.copy_(values)


def load_pruned(path: str | Path) -> nn.Module:
    """Load a pruned model (.safetensors) in eval mode.

    Raises UserError as ``load_weights``, for what is no path, and if nothing was pruned.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"load_pruned: path: expected a file, got {quoted(path)}.")
    model, description = load_weights(path)
    if "kept" not in description:
        raise UserError(
            f"load_pruned: {path} is a model with all its heads; load it with mhprobe.load."
        )
    return model


def gates_kept(description: dict[str, Any]) -> torch.Tensor | None:
    """(A,) bool, True for heads that the run with learned gates decided to keep; None without learned gates."""
    kept = description.get("gates_kept")
    return None if kept is None else torch.tensor(kept, dtype=torch.bool)


def _built(
    description: dict[str, Any], path: Path, state: dict[str, torch.Tensor], misfit: str
) -> nn.Module:
    """The described model with random weights, of the names and shapes in ``state``; made without memory first."""
    # a tensor of a checkpoint may repeat one number: the file's bytes bound what it holds
    held = min(sum(value.numel() for value in state.values()), path.stat().st_size)
    with planned(held, len(state), "backbone"):
        shapes = {key: value.shape for key, value in _made(description, path).state_dict().items()}
    wrong = [
        f"{key} is {_shape(state.get(key))}, expected {_shape(shapes.get(key))}"
        for key in (*shapes, *(state.keys() - shapes.keys()))
        if getattr(state.get(key), "shape", None) != shapes.get(key)
    ]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(f"{misfit} ({wrong[0]}{more}).")
    return _made(description, path)


def _shape(of: Any) -> str:
    return "not there" if of is None else str(tuple(getattr(of, "shape", of)))


def _made(description: dict[str, Any], path: Path) -> nn.Module:
    settings = {**description["backbone"], "pretrained": False}
    try:
        model = build(**settings, num_classes=len(description["class_names"]))
    except UserError as error:
        raise UserError(f"weights: {path}: {error}") from error
    except Exception as error:  # sizes of a stranger can fail anywhere in a constructor
        reason = first_line(error)[:200]
        raise UserError(
            f"weights: {path} describes a backbone that cannot be built ({reason})."
        ) from error
    # what it was trained to see, which need not be what timm's own weights see
    seen = description.get("input")
    if seen:
        colours = {key: tuple(seen[key]) for key in ("mean", "std")}
        channels = channels_of(model)
        if {len(numbers) for numbers in colours.values()} != {channels}:
            raise UserError(
                f"weights: {path}: input: expected a mean and a deviation for each of {channels} "
                f"channels, got {quoted(colours)}. It is damaged, or was not made by mhprobe."
            )
        model.pretrained_cfg = {**model.pretrained_cfg, **colours}  # type: ignore[dict-item, assignment]
        note(model, colours_read(seen["mean"], seen["std"], f"of {path.with_suffix('.json').name}"))
    if description.get("kept") is not None:
        _prune_again(model, description["kept"], path)
    return model


def _prune_again(model: nn.Module, kept: dict[str, list[int]], path: Path) -> None:
    """Remove heads from a newly built model until it has those that ``kept`` names."""
    layout = layout_of(model)
    if not set(kept) <= {site.name for site in layout.sites}:
        whole = layout_of(model, KINDS)
        layout = layout_of(
            model, {site.kind for site in whole.sites if site.name in kept} or {"head"}
        )
    shape = {site.name: site.num_heads for site in layout.sites}
    if set(kept) != set(shape):
        raise UserError(
            f"weights: the JSON of {path} names other sites in `kept` than the model has."
        )
    for name, heads in kept.items():
        if heads != sorted(set(heads)) or not set(heads) <= set(range(shape[name])):
            raise UserError(
                f"weights: the JSON of {path} keeps heads {heads} of {name}, expected ascending "
                "numbers from 0 to "
                f"{shape[name] - 1}."
            )
    slice_sites(model, layout, kept)


Loaded = tuple[
    dict[str, torch.Tensor], dict[str, Any], torch.Tensor | None
]  # weights, description, gates


def _from_pair(path: Path) -> Loaded:
    if path.suffix == ".json":
        beside = path.with_suffix(".safetensors")
        raise UserError(f"weights: {path} describes weights and has none. Give {beside}.")
    description = read_description(path)
    data = path.read_bytes()
    if description.get("sha256") != hashlib.sha256(data).hexdigest():
        raise UserError(
            f"weights: {path} is not the file its JSON describes (sha256 differs). Copy both again."
        )
    with refusing(
        lambda error: f"weights: {path} is not a safetensors file ({error}).", (SafetensorError,)
    ):
        return load(data), description, None


def read_description(path: Path) -> dict[str, Any]:
    """Read the description in a .ckpt, or in the JSON beside weights.

    UserError: damaged, edited, or not harmless.
    """
    if path.suffix == ".ckpt":
        return _from_checkpoint(path)[1]
    file, path = path, path.with_suffix(".json")
    try:
        description = read_json(path, "weights")
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        there = path.exists()
        if not there and (others := folder_of_others(path.parent)):
            raise UserError(f"weights: {others}") from error
        if not there and file.is_file() and (kind := other_kind(file)):
            raise UserError(f"weights: {file} is {kind}.") from error
        other = "" if there else f" {_of_others(path.parent, f'{path.with_suffix(str())}.*')}"
        raise UserError(
            f"weights: {path} is missing or damaged; the model needs it.{other}"
        ) from error
    if checked(description, path).get("digest") != digest_of_description(description):
        raise UserError(
            f"weights: {path} was changed since it was written (its digest differs): damaged or "
            "edited."
        )
    return description


def _of_others(folder: Path, file: str) -> str:
    """Say how weights of another training, or a folder of another library, are given."""
    return folder_of_others(folder) or (
        "Weights of another training have none: give the backbone a name=<timm's name> and "
        f"checkpoint={file}, or mhprobe.load(path, name=<timm's name>)."
    )


def _from_checkpoint(path: Path) -> Loaded:
    checkpoint = load_checkpoint(path)
    state = checkpoint.get("state_dict")
    if checkpoint.get("mhprobe") is None or not isinstance(state, dict):
        raise UserError(
            f"weights: {path} is not a checkpoint of mhprobe.train: it does not say which backbone "
            f"it is. {_of_others(path.parent, str(path))}"
        )
    prefix = "backbone."
    weights = {
        key.removeprefix(prefix): value
        for key, value in state.items()
        if str(key).startswith(prefix)
    }
    gates = state.get("gates.values")
    if not all(isinstance(value, torch.Tensor) for value in (*weights.values(), gates)):
        raise UserError(
            f"weights: {path} is not a checkpoint of mhprobe.train: its state_dict is not its own."
        )
    return weights, checked(checkpoint["mhprobe"], path), gates


def save_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write ``checkpoint`` as torch does, whole or not at all, with a digest of the file as the comment of its zip."""
    with replacing(path) as file:
        torch.save(checkpoint, file)
        file.seek(0)
        comment = _COMMENT + hashlib.file_digest(file, "sha256").hexdigest().encode()  # type: ignore[arg-type]
        file.seek(-len(_NO_COMMENT), os.SEEK_END)
        file.write(len(comment).to_bytes(2, "little") + comment)


_COMMENT, _NO_COMMENT = b"sha256:", b"\0\0"


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint as plain data; verify its checksums, refuse pickled code.

    UserError if that fails.
    """
    path = Path(path)
    if wrong := unreadable(path):
        raise UserError(f"checkpoint: {wrong}")
    broken = f"checkpoint: {path} is truncated or not a checkpoint. Use an earlier one."
    with (
        refusing(lambda _: broken),
        zipfile.ZipFile(path) as archive,
    ):  # its header can also claim an encryption
        # the sum of the whole: where a header names a wrong size torch gives unwritten memory,
        # which no part shows
        damaged = _wrong_digest(path, archive.comment) if archive.comment else archive.testzip()
    if damaged is not None:
        raise UserError(
            f"checkpoint: {path} is damaged (checksum of {damaged}). Use an earlier one."
        )
    pickled = (
        f"checkpoint: {path} holds more than plain tensors and values; it is refused, since loading it "
        "could run code."
    )
    with refusing(
        lambda _: pickled
    ):  # torch raises UnpicklingError, RuntimeError, KeyError ... for foreign content
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise UserError(
            f"checkpoint: {path} is not a checkpoint: it holds a {type(loaded).__name__}."
        )
    return loaded


def _wrong_digest(path: Path, comment: bytes) -> str | None:
    """Return a clause on the damage, if the file is not the one that its comment was made for."""
    digest, left = hashlib.sha256(), path.stat().st_size - len(comment) - len(_NO_COMMENT)
    with path.open("rb") as file:  # block by block: a checkpoint may be larger than memory
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    digest.update(_NO_COMMENT)
    return None if comment == _COMMENT + digest.hexdigest().encode() else "the file"
