"""Find the classifier of a file that has another name for it, as ``fc`` or ``heads.head``, beside a backbone too."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.weights.networks import State

# the last part of a layer's name before .weight
_NAMES = {
    *("fc", "head", "linear", "classifier", "logits", "cls", "cls_head", "class_head"),
    *("classification_head", "head_cls", "fc_cls"),
}


def called_otherwise(known: Mapping[str, Tensor], layer: str, width: int) -> str:
    """Return the name of the one layer that may be the classifier ``layer``; "" if there is none, or several.

    With a bias it may stand in a sequence, as ``head.1`` behind a dropout, if nothing else there has
    tensors.
    known: the tensors that may belong to it, (classes, width) and (classes,).
    """
    found = []
    for key, weight in known.items():
        name = key.removesuffix(".weight")
        fits = weight.ndim == 2 and weight.shape[1] == width and name != key
        within = re.sub(r"\.\d+$", "", name)
        known_name = within.rpartition(".")[2] in _NAMES or within == layer
        if not fits or name == layer or not known_name:
            continue
        parts = {other for other in known if other.startswith(f"{within}.")}
        bias = known.get(f"{name}.bias")
        whole = within == name if bias is None else bias.shape == weight.shape[:1]
        if whole and parts <= {f"{name}.weight", f"{name}.bias"}:
            found.append(name)
    return found[0] if len(found) == 1 else ""


def with_classifier(
    state: State, beside: State, layer: str, weight: Tensor | None
) -> tuple[State, str, list[str]]:
    """Return the state with its classifier under the model's name, the name in the file, and sentences on it.

    beside: tensors of the file that are part of no network. weight: the model's own, (classes, width),
    None for a model without a classifier.
    """
    if weight is None or weight.ndim != 2:
        return state, "", []
    name, told = "", list[str]()
    if f"{layer}.weight" not in state:
        known = {**beside, **state}
        name = called_otherwise(known, layer, weight.shape[1])
        if name:
            state = {key: of for key, of in state.items() if not key.startswith(f"{name}.")}
            parts = [part for part in ("weight", "bias") if f"{name}.{part}" in known]
            state |= {f"{layer}.{part}": known[f"{name}.{part}"] for part in parts}
            told.append(f"{name} {tuple(known[f'{name}.weight'].shape)} is read as the classifier")
    own = state.get(f"{layer}.weight")
    if own is not None and own.ndim == 2 and f"{layer}.bias" not in state:
        state = {**state, f"{layer}.bias": torch.zeros(len(own), dtype=own.dtype)}
        told.append(
            "its classifier has no bias, which is a bias of 0 (a guess: one of cosines has none either)"
        )
    return state, name, told
