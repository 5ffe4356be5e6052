"""Trained weights as a pair of files: plain timm keys in safetensors, and a JSON that rebuilds the model.

A description is a dict of plain values: ``backbone`` (what ``backbones.build`` takes), ``class_names``, ``data`` (the
source's name), ``input`` (size, mean, std), ``gates`` (A values, absent when all are one), ``gates_kept`` (A times
0 or 1, which heads learned gates keep, absent without), ``kept`` (which heads are left, absent when all are; see
mhprobe.weights.pruned) and ``made`` (how the weights came to be).
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mhprobe.backbones import attach, build, layout_of
from mhprobe.errors import UserError
from mhprobe.gates import find_gates
from mhprobe.io.files import write_all
from mhprobe.surgery.removal import slice_sites

# the parts of a description that belong to the model, not to the file it came in
DESCRIBES = ("backbone", "class_names", "data", "timm", "kept", "proj_bias")


def save_weights(model: nn.Module, path: Path, description: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Write ``path`` (.safetensors) and its JSON. dtype float16 halves the file; loading gives float32 again."""
    write_all(weights_files(model, path, description, dtype))


def weights_files(
    model: nn.Module, path: Path, description: dict[str, Any], dtype: torch.dtype = torch.float32
) -> dict[Path, bytes]:
    """What ``save_weights`` writes."""
    from safetensors.torch import save

    state = {
        key: value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype).contiguous()
        for key, value in model.state_dict().items()
    }
    data = save(state, metadata={"format": "pt"})
    gates = find_gates(model)
    if gates is not None and not bool((gates.effective() == 1).all()):
        description = {**description, "gates": gates.effective().tolist()}
    description = {**description, "sha256": hashlib.sha256(data).hexdigest()}
    return {path: data, path.with_suffix(".json"): (json.dumps(description, indent=2) + "\n").encode()}


def load_weights(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model and its description from a .safetensors + .json pair or a training checkpoint (.ckpt).

    The returned model is a plain timm model in eval mode, with gates attached only if they differ from one.
    Nothing in the file is executed. Raises UserError for missing, damaged or foreign files.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"weights: no file {path}. Give a .safetensors with its .json, or a .ckpt of mhprobe.train.")
    if path.suffix == ".ckpt":
        checkpoint = load_checkpoint(path)
        description = checkpoint.get("mhprobe")
        if description is None:
            raise UserError(
                f"weights: {path} is not a checkpoint of mhprobe.train: it does not say which backbone it is."
            )
        prefix = "backbone."
        state = {k[len(prefix) :]: v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
        gate_values = checkpoint["state_dict"]["gates.values"]
    else:
        state, description = _load_pair(path)
        gate_values = None
    if "gates" in description:  # in a checkpoint: gates that are learned in another form than their values
        gate_values = torch.tensor(description["gates"])
    if missing := {"backbone", "class_names", "data"} - set(description):
        raise UserError(
            f"weights: the description of {path} lacks {', '.join(sorted(missing))}; it was not made by mhprobe."
        )
    model = build(**{**description["backbone"], "pretrained": False}, num_classes=len(description["class_names"]))
    if "kept" in description:
        _prune_again(model, description["kept"], path)
    try:
        model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"weights: {path} does not fit the backbone it names ({reason}).") from error
    if gate_values is not None and not bool((gate_values == 1).all()):
        gates = attach(model)
        if len(gate_values) != gates.layout.num_heads:
            raise UserError(f"weights: {path} has {len(gate_values)} gates, expected {gates.layout.num_heads}.")
        with torch.no_grad():
            gates.values.copy_(gate_values)
    heads = layout_of(model).num_heads
    if (kept := gates_kept(description)) is not None and len(kept) != heads:
        raise UserError(f"weights: the JSON of {path} has {len(kept)} gates_kept, expected {heads}.")
    return model.eval(), description


def gates_kept(description: dict[str, Any]) -> torch.Tensor | None:
    """(A,) bool: which heads the run that learned the gates keeps, by its own binary decision; None without."""
    found = description.get("gates_kept")
    return None if found is None else torch.tensor(found, dtype=torch.bool)


def _prune_again(model: nn.Module, kept: Any, path: Path) -> None:
    """Give a freshly built model the shape of the pruned one whose heads ``kept`` names."""
    layout = layout_of(model)
    shape = {site.name: site.num_heads for site in layout.sites}
    if not isinstance(kept, dict) or set(kept) != set(shape):
        raise UserError(f"weights: the JSON of {path} says which heads are `kept`, but not of the sites it has.")
    for name, heads in kept.items():
        if heads != sorted(set(heads)) or not set(heads) <= set(range(shape[name])):
            raise UserError(
                f"weights: the JSON of {path} keeps heads {heads} of {name}, expected ascending numbers from 0 to "
                f"{shape[name] - 1}."
            )
    slice_sites(model, layout, kept)


def _load_pair(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        description = json.loads(path.with_suffix(".json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"weights: {path.with_suffix('.json')} is missing or damaged: it rebuilds the model."
        ) from error
    data = path.read_bytes()
    if description.get("sha256") != hashlib.sha256(data).hexdigest():
        raise UserError(f"weights: {path} is not the file its JSON describes (sha256 differs): damaged or replaced.")
    try:
        return load(data), description
    except SafetensorError as error:
        raise UserError(f"weights: {path} is not a safetensors file ({error}).") from error


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint as plain data: every record's checksum is verified, and pickled code is refused, never run."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"checkpoint: no file {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"checkpoint: {path} is truncated or not a checkpoint. Use an earlier one.") from error
    if damaged is not None:
        raise UserError(f"checkpoint: {path} is damaged (checksum of {damaged}). Use an earlier one.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises UnpicklingError, RuntimeError, KeyError ... for foreign content
        raise UserError(
            f"checkpoint: {path} holds more than plain tensors and values; it is refused, since loading "
            f"it could run code."
        ) from error
