"""Input that ``record`` refuses before it runs anything. torch's own errors would come from deep inside the network."""

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import backbone_of, channels_of, input_spec, refuse_no_model
from mhprobe.data.labels import form_of, said_of
from mhprobe.errors import UserError
from mhprobe.heads import Ablation, HeadLayout, Need, Patching, Relevance, Shown, Weights
from mhprobe.io.machine import free_memory
from mhprobe.io.written import counted

# by need: copies of an image's attention weights, and of its tokens in each block, that stand
# beside each other
COPIES: dict[Any, tuple[float, int]] = {
    "attn": (1, 1),
    "attn_grad": (1, 12),
    "rows": (1, 1),
    "row_slopes": (1, 12),
    "grad": (0, 12),
    "stream": (0, 3),
}
COPIES |= {
    Ablation: (0, 12),
    Patching: (0, 12),
    Relevance: (1.5, 36),
}  # the last by its peak at 197 and 1,370 tokens
_REPLICATED = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def refuse_no_forward(where: str, model: nn.Module) -> None:
    """Raise UserError for a module that only holds others, as nn.ModuleList."""
    if type(model).forward is nn.Module.forward and "forward" not in vars(model):
        held = next((name for name, _ in model.named_children()), None)
        todo = f"give the model in it: model.get_submodule({held!r})" if held else "give a model"
        raise UserError(
            f"{where}: model: a {type(model).__name__} only holds modules and computes nothing; {todo}."
        )


def check_model(model: nn.Module) -> None:
    """Raise UserError for no model, a wrapper that runs copies of it, and weights without numbers or gradients."""
    refuse_no_model("record", model)
    refuse_no_forward("record", model)
    if isinstance(model, _REPLICATED):
        raise UserError(
            f"record: {type(model).__name__} runs copies of the model, not recordable; pass "
            "model.module."
        )
    refuse_unusable("record", model)


def refuse_unusable(where: str, model: nn.Module) -> None:
    """Raise UserError for weights without numbers, and for those that can have no gradient."""
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise UserError(
                f"{where}: {name} is on the meta device and holds no numbers; load weights first."
            )
        if weight.is_inference():
            raise UserError(
                f"{where}: {name} was made inside torch.inference_mode(), so it has no gradients; "
                "make it outside."
            )


@contextlib.contextmanager
def sized(model: nn.Module, images: Tensor) -> Iterator[None]:
    """Replace an error inside by a UserError about the size of the images, if it is not the size of the model.

    Or about the types of the model's weights, if the error is of types and these are several.
    """
    try:
        yield
    except UserError:
        raise
    except (AssertionError, RuntimeError, ValueError) as error:
        _refuse_types(model, error)
        backbone, size = backbone_of(model), tuple(images.shape[1:])
        if (
            len(size) != 3
            or (wanted := (channels_of(backbone), *input_spec(backbone)["size"])) == size
        ):
            raise
        got, expected, name = (
            *(" x ".join(map(str, part)) for part in (size, wanted)),
            type(backbone).__name__,
        )
        raise UserError(
            f"images: expected {expected} for this {name}, got {got}: {error}"
        ) from error


def _refuse_types(model: nn.Module, error: Exception) -> None:
    """Raise UserError for an error of torch about types, of a model whose weights have several."""
    first: dict[str, str] = {}
    for name, weight in model.named_parameters():
        if weight.is_floating_point():
            first.setdefault(
                str(weight.dtype).removeprefix("torch."), name.rpartition(".")[0] or name
            )
    if len(first) < 2 or not re.search("dtype|scalar type", str(error)):
        return
    (one, there), (other, here) = list(first.items())[:2]
    raise UserError(
        f"model: its weights have several types: {there} is {one}, {here} is {other}, and what the "
        f"one gives the other cannot take. Make them one, as by model.float(), or use torch.autocast."
    ) from error


def check_batch(
    model: nn.Module, images: Any, labels: Any, layout: HeadLayout, needs: Collection[Need] = ()
) -> None:
    """Raise UserError unless images are (B, channels, height, width) of the model's type and labels (B,) int64.

    For a model of texts they are (B, tokens) whole numbers, or (B, tokens, width). needs: of a
    record that has to fit into the free memory.
    """
    line = any(site.line for site in layout.sites)
    if not (line and isinstance(images, Tensor) and images.dim() in (2, 3)):
        _check_pictures(images)
    _check_type(model, images)
    if labels is not None:
        _check_labels(labels, images)
    if needs:
        _check_memory(layout, needs, images)


def _check_type(model: nn.Module, images: Tensor) -> None:
    """Raise UserError for images on another device than the model, or of another type."""
    device, weights = next(model.parameters()).device, next(model.parameters()).dtype
    if images.device != device:
        raise UserError(
            f"record: images are on {images.device}, the model is on {device}; give "
            f"images.to('{device}')."
        )
    apart = images.is_floating_point() and images.dtype != weights
    if apart and not torch.is_autocast_enabled(images.device.type):  # which reconciles them
        ours, theirs = (str(kind).removeprefix("torch.") for kind in (images.dtype, weights))
        raise UserError(
            f"record: images are {ours}, the model is {theirs}; give images.to(torch.{theirs}), or "
            "use torch.autocast."
        )


def _check_labels(labels: Any, images: Tensor) -> None:
    """Raise UserError unless labels are one int64 per image."""
    one_each = isinstance(labels, Tensor) and labels.shape == images.shape[:1]
    if not one_each or labels.dtype != torch.int64:
        raise UserError(
            f"record: labels: expected ({len(images)},) int64, one class per image, got "
            f"{_labels_called(labels, len(images))}."
        )


def check_lengths(images: int, **per_image: Tensor | None) -> None:
    """Raise UserError for what should have one entry per image, by its name, and has not."""
    for name, value in per_image.items():
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.shape[:1] != (images,):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"record: {name}: expected one for each of {images} images, got {got}.")


def _labels_called(labels: Any, images: int) -> str:
    """The shape and type of labels; their form, too, and the call that would make classes of them."""
    if not isinstance(labels, Tensor):
        return type(labels).__name__
    got, form = f"{tuple(labels.shape)} {labels.dtype}", form_of(labels)
    if form is None or labels.shape[:1] != (images,):
        return got
    todo = f"give labels{form.then}" if form.then else "choose one class per image, or give None"
    return f"{got}, which is {form.called}; {todo}"


def _check_pictures(images: Any) -> None:
    if not isinstance(images, Tensor) or images.dim() != 4:
        got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise UserError(f"record: images: expected a tensor (B, 3, height, width), got {got}.")
    if images.layout is not torch.strided:
        raise UserError(
            f"record: images: expected a dense tensor, got {images.layout}; give images.to_dense()."
        )
    if not len(images):
        raise UserError(f"record: images: expected at least one, got {tuple(images.shape)}.")
    if images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        raise UserError(
            f"record: images: expected (B, 3, height, width), got {tuple(images.shape)}: their "
            "channels come last; "
            f"give images.permute(0, 3, 1, 2) (of WebDataset decode('torchrgb'))."
        )
    if not images.is_floating_point():
        raise UserError(
            f"record: images: expected normalised floating-point numbers, got {images.dtype}; "
            "apply the model's "
            f"transform, e.g. timm.data.create_transform(**timm.data.resolve_model_data_config(model))."
        )


def say_scale(images: Tensor, spec: Mapping[str, Any]) -> str:
    """Return a sentence on images that look as if they were not normalised; "" for others.

    spec: mean and std per channel that the model expects.
    """
    if images.layout is not torch.strided or images.dim() != 4 or not images.numel():
        return ""
    if not images.is_floating_point():
        return ""
    least, largest = float(images.detach().min()), float(images.detach().max())
    if least < 0 or (largest <= 1 and all(one == 0 for one in spec["mean"])):
        return ""
    if largest <= 1:
        scale, todo = "0 to 1", "(images - mean) / std"
    elif 20 < largest <= 65_535:
        scale, todo = "0 to 255 or more", "(images / 255 - mean) / std"
    else:
        return ""
    return (
        f"their values lie between {least:.3g} and {largest:.3g}, as pixels from {scale} that were "
        f"not normalised (a guess). This network saw {todo}, with mean {_short(spec['mean'])} and "
        f"std {_short(spec['std'])}"
    )


def _short(numbers: Sequence[float]) -> str:
    return f"({', '.join(f'{one:.3g}' for one in numbers)})"


def check_labels(labels: Tensor | None, logits: Tensor) -> None:
    """Raise UserError for a label without a logit, and for labels of a network with a single one."""
    if labels is None:
        return
    if (classes := logits.shape[1]) == 1:
        raise UserError(
            "labels: expected a model of at least two classes, got one logit: its loss is 0 and "
            "its class is right, "
            "whatever a head does. Give the images without labels."
        )
    bad = ((labels < 0) | (labels >= classes)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise UserError(
            f"labels: expected 0 to {classes - 1}, for the model gives {classes} logits, got "
            f"{int(labels[at])} "
            f"for image {at} of the batch. {said_of(labels, classes)}"
        )


def refuse_checkpointing(model: nn.Module) -> None:
    """Raise UserError for gradient checkpointing."""
    if any(getattr(module, "grad_checkpointing", False) for module in model.modules()):
        raise UserError(
            "record: gradient checkpointing runs blocks twice; call "
            "model.set_grad_checkpointing(False)."
        )
    for name, module in model.named_modules():
        if type(module).__name__ == "CheckpointWrapper":
            raise UserError(
                f"record: {name} is wrapped for activation checkpointing, which runs it twice; put "
                f"model.{name}._checkpoint_wrapped_module in its place."
            )


def check_finite(
    layout: HeadLayout,
    heads: Sequence[Tensor],
    logits: Tensor,
    valid: Tensor | None,
    index: Tensor | None,
) -> None:
    """Raise UserError for the first NaN: in any head it reaches the logits through the residual stream."""
    bad = ~logits.detach().isfinite().all(1)
    if valid is not None:
        bad &= valid
    if not bad.any():
        return
    image = int(bad.nonzero()[0])
    name = image if index is None else int(index[image])
    for site, z in zip(layout.sites, heads, strict=True):
        of_image = z.unflatten(0, (len(logits), -1))[image]
        if not of_image.isfinite().all():
            where = f"the output of {site.name}'s heads"
            broken_H = ~of_image.unflatten(-1, (site.num_heads, -1)).isfinite().all(-1)
            first = f", first in its head {first_of(broken_H.flatten(0, -2).any(0))}"
            break
    else:
        where, first = "the output of the model, behind its heads,", ""
    raise UserError(
        f"record: {where} is NaN or infinite for image {name}{first}. Check the weights, the "
        f"precision{about_float16(logits)} and the normalisation of the images."
    )


_NO_NUMBER = "Check the weights, the precision{half}, and that no mask leaves a query without keys."


def check_rows(
    layout: HeadLayout, rows: Sequence[Weights] | None, images: int, valid: Tensor | None
) -> None:
    """Raise UserError for rows of attention that will be no numbers: of queries and keys, or for want of a key."""
    for site, weights in zip(layout.of("head").sites, rows or (), strict=False):
        counted = weights
        if valid is not None and not valid.all():
            parts = [part.unflatten(0, (images, -1))[valid] for part in weights.parts()]
            counted = weights.of([part.flatten(0, 1) for part in parts])
        why = counted.broken()
        if not why and isinstance(counted, Shown):
            whole = counted.weights.isfinite().all()
            why = "" if whole else _NO_NUMBER.format(half=about_float16(counted.weights))
        if why:
            raise UserError(
                f"record: the attention of {site.name}'s heads is NaN or infinite. {why}"
            )


def first_of(found_H: Tensor) -> int:
    """Return the number of the first True of (H,)."""
    return int(found_H.nonzero()[0])


def about_float16(values: Tensor) -> str:
    """Return what to know of float16, in brackets; "" for values of another type."""
    if values.dtype != torch.float16:
        return ""
    return (
        " (float16 ends at 65,504, which queries times keys can exceed: take bfloat16 or float32)"
    )


def numbers_of(layout: HeadLayout, needs: Collection[Need], area: float = 1) -> float:
    """Numbers in the record of one image, at least; 0 if its size is not fixed.

    area: as a share of the layout's.
    """
    sites = layout.of("head").sites
    if not all(site.attention_size for site in sites):
        return 0
    tokens = {site: site.prefix_tokens + area * math.prod(site.token_grid) for site in sites}
    rows = sum(site.channels * tokens[site] for site in sites)
    matrices = sum(
        site.attention_size * area if site.windows else site.num_heads * tokens[site] ** 2
        for site in sites
    )
    pairs = sum(min(site.attention_size * area**2, site.pairs_size * area) for site in sites)
    total = rows
    for kind in _held(needs):
        of_attention, of_rows = COPIES[kind]
        attention = pairs if kind in ("rows", "row_slopes") else matrices
        total += attention * of_attention + rows * of_rows
    return total


def _held(needs: Collection[Need]) -> list[str | type]:
    """Kinds of needs, of COPIES, that a record with these holds."""
    kinds = {need if isinstance(need, str) else type(need) for need in needs}
    if "attn_grad" in kinds:  # attention weights stand beside their slopes
        kinds.add("attn")
    if "row_slopes" in kinds:
        kinds.add("rows")
    if "attn" in kinds:  # rows are read from the matrices
        kinds -= {"rows", "row_slopes"}
    return [kind for kind in COPIES if kind in kinds]


def _check_memory(layout: HeadLayout, needs: Collection[Need], images: Tensor) -> None:
    """Raise UserError, with sizes that fit, if the record of ``images`` takes more than the free memory of the CPU."""
    count, height, size = len(images), images.shape[-2], images.element_size()
    one = size * numbers_of(layout, needs)
    if images.device.type != "cpu" or count * one <= (free := free_memory()):
        return
    grid = min(site.token_grid[0] for site in layout.of("head").sites)
    fits = (
        row
        for row in range(1, grid)
        if size * numbers_of(layout, needs, (row / grid) ** 2) <= free / 2
    )
    fewer = f"Record at most {free // one:.0f} at a time, or build" if free >= one else "Build"
    raise UserError(
        f"record: expected {count * one / 2**30:.2f} GiB of free memory or more, for "
        f"{counted(count, 'image')} of {height} x {images.shape[-1]} pixels, got "
        f"{free / 2**30:.2f}. {fewer} the network for smaller images: one of "
        f"img_size={height * max(fits, default=1) // grid} takes at most "
        "half of that."
    )
