"""The output of a model as one tensor, and the scalar that gradients are of: loss, a logit, or features' length."""

import contextlib
import logging
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import backbone_of, family_of, puts_out_features
from mhprobe.backbones.parts.timm_models import note
from mhprobe.errors import UserError, one_of, quoted
from mhprobe.gates import HeadGates
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.heads import wide
from mhprobe.io.readings import Reading
from mhprobe.recording.state import usable

log = logging.getLogger(__name__)

# of Hugging Face's outputs, what is closest to logits first
_NAMED = ("logits", "pooler_output", "image_embeds", "text_embeds")

Output = int | str | None  # index or key of the logits among a model's outputs; None: found
_asked: ContextVar[Output] = ContextVar("_asked", default=None)
_said: "weakref.WeakKeyDictionary[nn.Module, str]" = weakref.WeakKeyDictionary()
_looked_at: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()  # models whose outputs were seen


@contextlib.contextmanager
def taking(output: Output) -> Iterator[None]:
    """Take this output of a model for its logits inside a with block; None leaves the choice of an outer block.

    UserError for what is no index and no key.
    """
    if isinstance(output, bool) or not isinstance(output, int | str | None):
        raise UserError(
            "output: expected the index or the key of the logits among the model's outputs, e.g. 1 "
            f"or 'logits', got {quoted(output)}."
        )
    token = None if output is None else _asked.set(output)
    try:
        yield
    finally:
        if token is not None:
            _asked.reset(token)


def logits_of(output: Any, model: nn.Module | None = None) -> Tensor:
    """(B, C) output of a model: the tensor itself, or the logits or features in a dict, tuple or named output.

    Of several outputs the one that ``taking`` names; else the one under a known name; else the one
    (B, C) with as many columns as a classifier of ``model``, or the only (B, C), which is logged.
    Of tokens (B, T, C) the mean. Raises UserError without such a tensor, and if several could be
    meant.
    """
    asked = _asked.get()
    tensor: Tensor | None
    if asked is not None:
        tensor = _named(output, asked)
    elif isinstance(output, Tensor):
        tensor = output
    else:
        tensor = _known(output)
        tensor = _found(output, model) if tensor is None else tensor
    if not isinstance(tensor, Tensor) or tensor.dim() not in (2, 3):
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(output).__name__
        raise UserError(
            f"the model gives back {got}, expected logits or features (B, C), or something with "
            "them in it (one tensor of a tuple, a dict's or an output's "
            f"{', '.join(_NAMED)}). Wrap it in a module that gives back one tensor."
        )
    if model is not None and model not in _looked_at:
        _look_once(tensor, model)
    return tensor.mean(1) if tensor.dim() == 3 else tensor


_ENOUGH = 20  # outputs: fewer logits may lie between 0 and 1 by chance


def _look_once(tensor: Tensor, model: nn.Module) -> None:
    """Log outputs that are probabilities where logits are expected, at the first outputs of a model."""
    inside = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(
        tensor
    )
    if inside or type(tensor) is not Tensor or tensor.is_meta:  # whose numbers cannot be seen
        return
    _looked_at.add(model)
    if tensor.dim() == 2 and (told := say_probabilities(tensor.detach())):
        log.warning("the model's outputs: %s.", told)


def say_probabilities(logits: Tensor) -> str:
    """Return a sentence on (B, C) outputs that look like probabilities and not logits; "" for others."""
    if not len(logits) or logits.shape[1] < 2 or not logits.is_floating_point():
        return ""
    within = bool(((logits >= 0) & (logits <= 1)).all())
    sums = logits.float().sum(1)
    if within and logits.numel() >= _ENOUGH and bool(((sums - 1).abs() > 1e-2).any()):
        return (
            "they lie between 0 and 1, as after a sigmoid (a guess). The loss takes logits of one "
            "class per image: give the network without its sigmoid."
        )
    if bool((logits < 0).any()) or not bool((sums - 1).abs().max() < 1e-2):
        return ""
    return (
        "they are not negative and sum to 1 for each image, as probabilities (a guess). The loss "
        "takes logits: give the network without its softmax"
    )


def _known(output: Any) -> Tensor | None:
    """The tensor under the first of the known names that an output has."""
    for name in (*_NAMED, "last_hidden_state"):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    return None


def _parts(output: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor in an output, with the keys or indices that lead to it, joined by dots."""
    if isinstance(output, Tensor):
        yield path, output
        return
    if isinstance(output, Mapping):
        items: Iterable[tuple[Any, Any]] = output.items()
    elif isinstance(output, tuple | list):
        items = zip(getattr(output, "_fields", range(len(output))), output, strict=True)
    else:
        items = getattr(output, "__dict__", {}).items()
    for key, part in items:
        if not isinstance(part, nn.Module):
            yield from _parts(part, f"{path}.{key}" if path else str(key))


def _listed(parts: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{path} {tuple(part.shape)}" for path, part in parts.items())


def _named(output: Any, asked: int | str) -> Tensor:
    """The tensor at the index or key that was asked for."""
    if isinstance(output, Tensor):
        raise UserError(
            f"output: the model gives back one tensor {tuple(output.shape)}, so there is nothing to "
            f"choose; leave output={quoted(asked)} out."
        )
    parts, key = dict(_parts(output)), str(asked)
    if isinstance(asked, int) and isinstance(output, tuple | list):
        names = getattr(output, "_fields", range(len(output)))
        key = str(names[asked]) if -len(names) <= asked < len(names) else key
    if key not in parts or parts[key].dim() not in (2, 3):
        raise UserError(
            f"output: expected the index or the key of logits (B, C) among {_listed(parts)}, got "
            f"{quoted(asked)}."
        )
    return parts[key]


def _found(output: Any, model: nn.Module | None) -> Tensor | None:
    """The only tensor that can be meant among the unnamed parts of an output; None if there is no tensor.

    UserError if several can be meant.
    """
    parts = {
        path: part
        for path, part in _parts(output)
        if part.dim() in (2, 3) and part.is_floating_point()
    }
    if len(parts) <= 1:
        return next(iter(parts.values()), None)
    rows = {path: part for path, part in parts.items() if part.dim() == 2}
    classes = set() if model is None else _classes(model)
    fitting = {path: part for path, part in rows.items() if part.shape[1] in classes}
    meant = fitting or rows
    if len(meant) != 1:
        wide_as = f", with {' or '.join(map(str, sorted(classes)))} classes," if classes else ""
        raise UserError(
            f"the model gives back several outputs: {_listed(parts)}. Expected one that can be its "
            f"logits{wide_as} got {len(meant)}. Say which: output={_example(meant or parts)} of "
            "mhprobe.measure, masking_curve or record, or wrap the model in a module that gives "
            "back one tensor."
        )
    path, tensor = next(iter(meant.items()))
    why = "has as many columns as the classifier" if fitting else "is the only (B, C) among them"
    _say(
        model, f"of the model's outputs {_listed(parts)}, {path} is taken for the logits: it {why}."
    )
    return tensor


def _example(parts: Mapping[str, Tensor]) -> str:
    last = [*parts][-1]
    return last if last.isdigit() else repr(last)


def _say(model: nn.Module | None, text: str) -> None:
    """Log a choice, once for each model and choice of outputs (their number of images aside)."""
    if model is None:
        log.warning("%s", text)
        return
    shapes = re.sub(r"\(\d+,", "(B,", text)
    if _said.get(model) != shapes:
        _said[model] = shapes
        taken = re.sub(r"^of the model's outputs ", "of ", shapes).rstrip(".")
        note(model, Reading("logits", taken, "its shape", True, "output"))
        log.warning("%s", shapes)


def _classes(model: nn.Module) -> set[int]:
    """Numbers of columns of the layers of a model's classifier, and of linear layers around its backbone."""
    backbone = backbone_of(model)
    inside, classifier = {*backbone.modules()}, family_of(backbone).classifier(backbone)
    heads = classifier if isinstance(classifier, tuple | list) else [classifier]
    layers = [part for head in heads for part in head.modules()]
    layers += [part for part in model.modules() if part not in inside]
    return {part.out_features for part in layers if isinstance(part, nn.Linear)}


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
                total = objective(logits_of(model(images), model), labels, of).sum()
                sums[:-1] += torch.autograd.grad(total, [leaf])[0]
                sums[-1] += len(images)
    ranks.total(sums)
    return sums[:-1] / sums[-1]
