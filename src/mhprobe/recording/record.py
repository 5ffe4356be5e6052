"""record(): outputs, attention and gradients of every head, from one forward pass (and one backward pass).

Taps (recording/taps.py) are hooked in for this call only. The model runs eager (a hook added to a
compiled model is silently ignored), in eval mode, with frozen weights, so that the backward pass
costs about one forward.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from mhprobe.backbones import backbone_of, family_of
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError, quoted
from mhprobe.gates.base import GateHook, gates_of
from mhprobe.gates.fill import Fill
from mhprobe.heads import (
    Ablation,
    FillName,
    HeadBatch,
    HeadLayout,
    HeadSite,
    Need,
    Patching,
    Relevance,
    Relevances,
    Shown,
)
from mhprobe.recording.checks import (
    check_batch,
    check_finite,
    check_labels,
    check_lengths,
    check_model,
    check_rows,
    refuse_checkpointing,
    sized,
)
from mhprobe.recording.direct import direct_logits, gated_weights
from mhprobe.recording.lrp import relevances
from mhprobe.recording.outputs import (
    UNLABELLED,
    Of,
    Output,
    logits_of,
    objective,
    refuse_features,
    taking,
)
from mhprobe.recording.patching import PatchedPass, patched
from mhprobe.recording.replay import Replay
from mhprobe.recording.state import inspecting, usable
from mhprobe.recording.taps import SLOPES, Taps

NEEDS = frozenset(
    {"grad", "attn", "attn_grad", "rows", "row_slopes", "stream", "weights", "direct"}
)


class _Shown(NamedTuple):
    """Arguments of ``record``, each as it says."""

    images: Tensor
    labels: Tensor | None
    valid: Tensor | None
    index: Tensor | None  # type: ignore[assignment]  # hides tuple.index
    objects: Tensor | None


IMAGES = 4  # enough to count operations, which are proportional to images


def record(  # noqa: PLR0913 -- a notebook's door: each argument is a keyword of its own
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None = None,
    needs: Collection[Need] = frozenset({"grad"}),
    valid: Tensor | None = None,
    index: Tensor | None = None,
    objects: Tensor | None = None,
    of: Of = "loss",
    fills: Mapping[FillName, Fill | None] = MappingProxyType({}),
    layout: HeadLayout | None = None,
    output: Output = None,
) -> HeadBatch:
    """Run ``model`` on ``images`` and return a HeadBatch.

    model: carries gates (see ``attach``); may be a wrapper around the backbone, e.g. a
    LightningModule.
    images: (B, 3, height, width), normalised; of a text (B, tokens). labels: (B,), needed for
    slopes.
    needs: "grad" for slopes along the heads, "attn" for attention weights and "attn_grad" for
        slopes along them, "rows" and "row_slopes" for the same to be read row by row, "stream" for
        the residual stream, "weights" for each head's own, "direct" for writes into the logits; an
        Ablation for logits under masks and a Patching for its effects (more passes); a Relevance
        for layer-wise relevance. z is always there.
    valid: (B,) bool, default all True. index: (B,) positions in the split, for error messages;
    default 0, 1, ...
    objects: (B, height, width) int64, passed on. fills: replacements of masked heads, by name
    (``recording.fills``).
    of: scalar per image to differentiate: the "loss" (cross-entropy, which measures expect), the
        logit of the "label", or without labels the "top1" logit, or the "norm" of the features of a
        model without a classifier.
    layout: sites whose outputs, slopes and attention are recorded; None for all, which the other
    needs take.
    output: index or key of the logits, of a model that gives back several tensors, e.g. 1 or
    "logits". None: the one that has as many columns as the classifier, or the only (B, C); the log
    names it.

    Raises UserError for an unknown need, slopes without labels, labels outside the classes, a model
    without gates, and a head's output that is not finite, with the site and the image, and a record
    that is larger than the free memory, and outputs of which several could be the logits.
    """
    with taking(output):
        shown = _Shown(images, labels, valid, index, objects)
        return _recorded(model, shown, needs, of, fills, layout)


def _recorded(
    model: nn.Module,
    shown: _Shown,
    needs: Collection[Need],
    of: Of,
    fills: Mapping[FillName, Fill | None],
    layout: HeadLayout | None,
) -> HeadBatch:
    """The record of ``record``, whose arguments these are."""
    images, labels, valid, index, objects = shown
    named = _checked(model, needs, labels is not None or of in UNLABELLED, of, valid)
    slopes = named & SLOPES
    layout = layout or gates_of(model).layout
    check_batch(model, images, labels, layout, needs)
    count = len(images)
    check_lengths(count, valid=valid, index=index, objects=objects)
    grad = attn_grad = None
    with (
        inspecting(model, gradients=bool(slopes)),
        Taps(model, layout, named) as taps,
        sized(model, images),
    ):
        images = usable(images)
        labels = None if labels is None else usable(labels)
        logits = logits_of(model(images), model)
        check_finite(layout, taps.heads, logits, valid, index)
        check_labels(labels, logits)
        if slopes:
            refuse_features(model, of)
            grad, attn_grad = taps.slopes(objective(logits, labels, of).sum())
        rows = taps.read_rows()
        check_rows(layout, rows or [Shown(attn) for attn in taps.attn], count, valid)
    z = _per_head(layout, taps.heads, count)
    clean = PatchedPass(images, taps.heads, logits.detach())
    patchings = [need for need in needs if isinstance(need, Patching)]
    weights = norms = direct = None
    if "weights" in named:
        weights = gated_weights(taps.backbone, gates_of(model))
        norms = tuple(taps.family.norm_behind(taps.backbone, site) for site in layout.sites)
    if "direct" in named:
        direct = direct_logits(model, z, taps.stream or (), logits.detach())
    return HeadBatch(
        z=z,
        grad=_per_head(layout, grad, count) if grad else None,
        attn=_per_window(taps.attn, count),
        attn_grad=_per_window(attn_grad, count),
        rows=rows,
        stream=taps.stream,
        weights=weights,
        norms=norms or (),
        direct=direct,
        ablated=_ablated(model, layout, images, needs, {"zero": None, **fills}),
        patched={need: patched(model, clean, labels, objects, need) for need in patchings},
        relevance=_relevance(model, images, labels, needs, layout),
        logits=logits.detach(),
        labels=labels,
        valid=torch.ones(count, dtype=torch.bool, device=logits.device) if valid is None else valid,
        images=images,
        objects=objects,
    )


def _relevance(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    needs: Collection[Need],
    layout: HeadLayout,
) -> dict[Relevance, Relevances]:
    """Relevance by each rule that is asked, of heads as (B, T, H, D)."""
    found = {}
    for need in needs:
        if isinstance(need, Relevance):
            part = relevances(model, images, labels, need)
            found[need] = part._replace(heads=_per_head(layout, part.heads, len(images)))
    return found


def _checked(
    model: nn.Module, needs: Collection[Need], sloped: bool, of: str, valid: Tensor | None
) -> set[str]:
    """Return the needs that are words, checked.

    sloped: True if there is something to take gradients of.
    """
    if not isinstance(needs, Collection):
        raise UserError(f"record: needs: expected a set of what to record, got {quoted(needs)}.")
    named = {need for need in needs if isinstance(need, str)}
    if unknown := named - NEEDS:
        raise UserError(
            f"record: unknown needs {sorted(unknown)}; expected some of {sorted(NEEDS)}."
        )
    slopes = sorted(named & SLOPES)
    if slopes and not sloped:
        raise UserError(
            f"record: needs={slopes} takes the slope of the {of}, so it needs labels, got None."
        )
    if valid is not None and valid.dtype != torch.bool:
        raise UserError(
            f"record: valid: expected (B,) bool, which images count, got {quoted(valid.dtype)}."
        )
    check_model(model)
    refuse_checkpointing(model)
    return named


def _ablated(
    model: nn.Module,
    layout: HeadLayout,
    images: Tensor,
    needs: Collection[Need],
    fills: Mapping[FillName, Fill | None],
) -> dict[Ablation, Tensor]:
    """(M, B, C) logits for each Ablation; a mask that several of them name runs once for each fill."""
    logits_of_need: dict[Ablation, Tensor] = {}
    for name in dict.fromkeys(need.fill for need in needs if isinstance(need, Ablation)):
        ablations = [need for need in needs if isinstance(need, Ablation) and need.fill == name]
        if name not in fills:
            raise UserError(
                f"record: an ablation with fill={name} needs it in fills, found by recording.fills."
            )
        masks = [layout.mask(mask) for need in ablations for mask in need.masks]
        if masks:
            logits = Replay(model, torch.stack(masks), fill=fills[name])(
                images
            )  # runs equal masks once
            parts = logits.split([len(need.masks) for need in ablations])
            logits_of_need |= dict(zip(ablations, parts, strict=True))
    return logits_of_need


def _per_window(attn: Sequence[Tensor] | None, batch: int) -> tuple[Tensor, ...] | None:
    """Per site (B * windows, ...) -> (B, windows, ...); None where none was recorded."""
    return tuple(a.detach().unflatten(0, (batch, -1)) for a in attn) if attn else None


def _per_head(layout: HeadLayout, rows: Sequence[Tensor], batch: int) -> tuple[Tensor, ...]:
    """Per site (B * windows, tokens, H * D) -> (B, T, H, D)."""
    return tuple(
        in_raster_order(site, outputs, batch)
        for site, outputs in zip(layout.sites, rows, strict=True)
    )


def in_raster_order(site: HeadSite, rows: Tensor, batch: int) -> Tensor:
    """(B * windows, tokens, H * D) as the projection sees it -> (B, T, H, D) in raster order.

    Raises UserError for an input of another size than the gates were attached for.
    """
    tokens = rows.reshape(batch, -1, site.channels)
    if site.windows is not None:
        site.refuse_other_size(tokens.shape[1], "record")
        tokens = tokens[:, site.windows.rows().to(rows.device)]
    return tokens.unflatten(-1, (site.num_heads, site.head_dim))


def forward_equivalents(
    model: nn.Module, batch: Batch, needs: Collection[Need], of: Of = "loss"
) -> float:
    """Operations of ``record(needs)`` / operations of ``model(images)``, counted on a few images of the batch.

    Counts matrix products, convolutions and attention, by torch.utils.flop_counter's formulas; not
    the measures' own work. of: scalar to differentiate, as for ``record``.
    """
    images, labels = batch.images[:IMAGES], None if batch.labels is None else batch.labels[:IMAGES]
    with inspecting(model, gradients=False), Counter() as plain:
        model(images)
    masked = {
        dataclasses.replace(need, fill="zero") if isinstance(need, Ablation) else need
        for need in needs
    }
    with Counter() as recorded:
        record(model, images, labels, masked, of=of)  # what stands in costs no product
    return recorded.total / plain.total


class Counter(TorchDispatchMode):
    """Counter of operations, a multiply-add as two. torch's FlopCounterMode fails if a graph begins in a module."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry and args[0] is not None:  # None: no slope came
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def refuse_replaced(model: nn.Module, images: Tensor) -> None:
    """Raise UserError if a hook of the user's replaces what the heads of ``model`` give; one image is run to see it.

    A model without such hooks is not run.
    """
    backbone = backbone_of(model)
    family = family_of(backbone)
    points = [family.seam(backbone, site).point for site in gates_of(model).layout.sites]
    hooks = [hook for point in points for hook in point._forward_pre_hooks.values()]
    if any(not isinstance(hook, GateHook) for hook in hooks):
        record(model, images[:1], needs={"stream"})
