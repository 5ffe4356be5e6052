"""The output of a model as one tensor, and the scalar that gradients are of: loss, a logit, or features' length."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import puts_out_features
from mhprobe.errors import UserError, one_of
from mhprobe.gates import HeadGates
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.heads import wide
from mhprobe.recording.state import usable

# of Hugging Face's outputs, what is closest to logits first
_NAMED = ("logits", "pooler_output", "image_embeds", "text_embeds")


def logits_of(output: Any) -> Tensor:
    """(B, C) output of a model: the tensor itself, or the logits or features in a dict or a Hugging Face output.

    Of several outputs the first; of tokens (B, T, C) their mean. Raises UserError without such a
    tensor.
    """
    tensor = _tensor_in(output)
    if not isinstance(tensor, Tensor) or tensor.dim() not in (2, 3):
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(output).__name__
        raise UserError(
            f"the model gives back {got}, expected logits or features (B, C), or something with "
            "them in it (a tuple's "
            f"first, a dict's or an output's {', '.join(_NAMED)}). Wrap it in a module that gives "
            "back one tensor."
        )
    return tensor.mean(1) if tensor.dim() == 3 else tensor


def broken(outputs: Tensor) -> Tensor:
    """(B,) bool: images with a NaN or an infinity in one of their (..., B, C) outputs."""
    bad_MB = ~outputs.isfinite().all(-1)
    return bad_MB.flatten(0, -2).any(0) if bad_MB.dim() > 1 else bad_MB


def refuse_broken(broken_N: Tensor, what: str) -> None:
    """Raise UserError for images with ``broken`` outputs. what: name of the outputs."""
    if bool(broken_N.any()):
        raise UserError(
            f"{what} is NaN or infinite for {int(broken_N.sum())} of {len(broken_N)} images, the "
            "first is image "
            f"{int(broken_N.int().argmax())}: no score could be given. Check the weights, the "
            "precision and the "
            f"normalisation of the images."
        )


def _tensor_in(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    for name in (*_NAMED, "last_hidden_state"):
        value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    return output[0] if isinstance(output, tuple | list) and output else None


Of = Literal["loss", "top1", "label", "norm"]
UNLABELLED = ("top1", "norm")  # of these, which need no labels


def refuse_features(model: nn.Module, of: str, where: str = "record") -> None:
    """Raise UserError if features would be taken for logits; a wrapper may have its own classifier."""
    if of != "norm" and puts_out_features(model):
        raise UserError(
            f"{where}: {type(model).__name__} gives features, no logits, so its {of} means "
            "nothing. Ask for their "
            "length (target='norm' of mhprobe.measure, a measure or a map; of='norm' of "
            "mhprobe.record)."
        )


def objective(logits: Tensor, labels: Tensor | None, of: str) -> Tensor:
    """(B,) cross-entropy of the label in nats, the largest logit, the label's, or the length of (B, C) logits."""
    one_of("record", "of", of, Of)
    if of == "norm":
        return wide(logits).norm(dim=1)
    if of == "top1":
        return logits.amax(1)
    if labels is None:
        raise UserError(f"record: the slope of the {of} needs labels, got None.")
    labels = usable(labels)
    if of == "label":
        return logits.gather(1, labels[:, None]).squeeze(1)
    # in the model's own precision, as its slope is; a loss to be summed is that of
    # measures/parts/losses.py
    return nn.functional.cross_entropy(wide(logits), labels, reduction="none")


def slopes_along(of: Tensor, along: Sequence[Tensor], again: bool = False) -> tuple[Tensor, ...]:
    """Slopes of a scalar; 0 along what does not reach it.

    again: keep the graph. UserError if nothing reaches it.
    """
    slopes = (
        torch.autograd.grad(of, along, retain_graph=again, allow_unused=True)
        if of.requires_grad
        else ()
    )
    if along and all(slope is None for slope in slopes):
        raise UserError(
            "record: no slope arrives at the heads, expected outputs that hang on them by "
            "differentiable operations. "
            "torch.no_grad, detach and quantised layers stop it: give a model without them, or the "
            "backbone itself."
        )
    return tuple(
        torch.zeros_like(x) if slope is None else slope
        for x, slope in zip(along, slopes, strict=True)
    )


def gate_slope(
    model: nn.Module,
    gates: HeadGates,
    values: Tensor,
    parts: Iterable[tuple[Tensor, Tensor | None]],
    of: Of = "loss",
) -> Tensor:
    """(A,) float64 slope of the mean objective along the gates at ``values`` (A,), which they keep.

    parts: images and labels of one forward pass each, or none; the mean is over all images of all
    ranks. ``model`` is being inspected.
    """
    leaf = gates.values
    sums = torch.zeros(len(leaf) + 1, dtype=torch.float64, device=leaf.device)
    with torch.no_grad():
        leaf.copy_(values)
    with meanwhile([leaf], requires_grad=True):
        for images, labels in parts:
            if len(images):
                total = objective(logits_of(model(images)), labels, of).sum()
                sums[:-1] += torch.autograd.grad(total, [leaf])[0]
                sums[-1] += len(images)
    ranks.total(sums)
    return sums[:-1] / sums[-1]
