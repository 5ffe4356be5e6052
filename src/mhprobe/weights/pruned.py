"""A pruned model as a pair of files: safetensors with plain timm keys, and a JSON that says how to rebuild it.

The JSON is a description as in ``mhprobe.weights.checkpoint``, and besides:
    timm: what ``timm.create_model`` takes to build the model before pruning;
    kept: site name -> the heads (of an MLP the neurons) that stayed, by their number in that model; an empty list is an
        emptied layer;
    chosen_by: the images that chose them, "split:digest" each; promises and tests on these images are refused;
    proj_bias: whether an emptied layer still adds its projection's bias, "keep" or "drop";
    gates: absent: they are multiplied into the weights (``gates_folded`` lists what they were).
docs/pruning.md rebuilds it in plain timm.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mhprobe.errors import UserError
from mhprobe.weights.checkpoint import load_weights
from mhprobe.weights.description import for_timm


def pruned_description(
    description: Mapping[str, Any], kept: Mapping[str, Sequence[int]], proj_bias: str, gates: Sequence[float] | None
) -> dict[str, Any]:
    """Turn the ``description`` of a loaded model into that of the model without the heads missing from ``kept``.

    kept: by site of the loaded model, heads numbered within it. If that model was pruned before, its own ``kept`` says
    which heads those are in the first one.
    """
    before = {site: range(max(heads, default=0) + 1) for site, heads in kept.items()} | description.get("kept", {})
    described = {
        **description,
        "timm": for_timm(description),
        "kept": {site: [heads[n] for n in kept.get(site, range(len(heads)))] for site, heads in before.items()},
        "proj_bias": proj_bias,
    }
    if gates is not None:
        described["gates_folded"] = list(gates)
    return described


def load_pruned(path: str | Path) -> nn.Module:
    """The pruned model that ``python -m mhprobe.prune`` saved as ``path`` (.safetensors), in eval mode.

    Raises UserError if a file is missing or damaged, if JSON and weights disagree, or if nothing was pruned.
    """
    model, description = load_weights(path)
    if "kept" not in description:
        raise UserError(f"load_pruned: {path} is a model with all its heads; load it with mhprobe.load.")
    return model
