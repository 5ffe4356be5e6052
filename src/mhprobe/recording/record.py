"""record(): one forward pass, perhaps one backward pass, and what every head did in it.

The taps stand on both sides of the gate, for this call only: z is read before it, the gradient after it, so that a
masked head still has a slope. The call runs eager (a hook added to a compiled model is silently ignored), in eval
mode, with the weights frozen: the backward pass then costs about one forward.

Shapes: B images, T tokens, H heads of one site, D head width, C classes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import Ablation, HeadBatch, HeadLayout, HeadSite, HeadWeights, Need, Relevance, Stream, wide
from mhprobe.recording.checks import check_batch, check_labels, check_model
from mhprobe.recording.lrp import relevances
from mhprobe.recording.replay import masked_logits
from mhprobe.recording.state import inspecting, prefix_of, unfused, usable

NEEDS = frozenset({"grad", "attn", "attn_grad", "stream", "weights"})


def record(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None = None,
    needs: Collection[Need] = frozenset({"grad"}),
    valid: Tensor | None = None,
    index: Tensor | None = None,
    objects: Tensor | None = None,
) -> HeadBatch:
    """Run ``model`` on ``images`` and return a HeadBatch.

    model: carries gates (see ``attach``); may be a wrapper around the timm model, e.g. a LightningModule.
    images: (B, 3, height, width), normalised. labels: (B,), needed for slopes.
    needs: "grad" for slopes of the per-image cross-entropy, "attn" for attention weights and "attn_grad" for slopes
        along them, "stream" for the residual stream, "weights" for each head's own; an Ablation for logits under masks
        (more forward passes); a Relevance for layer-wise relevance (one more pass of each kind). z is always there.
    valid: (B,) bool, default all True. index: (B,) positions in the split, for error messages; default 0, 1, ...
    objects: (B, height, width) int64, passed on to measures.

    UserError names the site and the image if a head's output is not finite.
    """
    named = {need for need in needs if isinstance(need, str)}
    if unknown := named - NEEDS:
        raise UserError(f"record: unknown needs {sorted(unknown)}; expected some of {sorted(NEEDS)}.")
    slopes = named & {"grad", "attn_grad"}
    if slopes and labels is None:
        raise UserError(f"record: needs={slopes} takes the slope of the loss, so it needs labels, got None.")
    check_model(model)
    check_batch(images, labels)
    if any(getattr(module, "grad_checkpointing", False) for module in model.modules()):
        raise UserError(
            "record: gradient checkpointing runs every block twice; call model.set_grad_checkpointing(False) first."
        )
    layout = gates_of(model).layout
    sites = layout.sites
    heads: list[Tensor] = [torch.empty(0)] * len(sites)
    gated: list[Tensor] = [torch.empty(0)] * len(sites)
    attn: list[Tensor] = [torch.empty(0)] * len(sites)
    stream: list[dict[str, Tensor]] = [{} for _ in layout.blocks]

    def before_gate(number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        heads[number] = args[0].detach()

    def after_gate(number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        gated[number] = _graph(args[0], bool(slopes))
        return (gated[number], *args[1:])

    def weights(number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        attn[number] = _graph(args[0], "attn_grad" in named)
        return (attn[number], *args[1:])

    def residual(number: int, place: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        stream[number][place] = args[0].detach().flatten(1, -2)

    def end(number: int, _module: nn.Module, _args: tuple[Tensor, ...], out: Tensor) -> None:
        stream[number]["after"] = out.detach().flatten(1, -2)

    with contextlib.ExitStack() as stack:
        stack.enter_context(inspecting(model, gradients=bool(slopes)))

        def tap(module: nn.Module, hook: Callable[..., Any], *where: Any, prepend: bool = False) -> None:
            handle = module.register_forward_pre_hook(functools.partial(hook, *where), prepend=prepend)
            stack.callback(handle.remove)

        modules = dict(model.named_modules())
        prefix = prefix_of(modules, sites[0])
        for number, site in enumerate(sites):
            attention: Any = modules[prefix + site.name]
            tap(attention.proj, before_gate, number, prepend=True)
            tap(attention.proj, after_gate, number)
            if named & {"attn", "attn_grad"}:
                stack.enter_context(unfused(attention, site.name))
                tap(attention.attn_drop, weights, number)
        if "stream" in named:
            for number, block in enumerate(layout.blocks):
                tap(modules[prefix + block.name], residual, number, "before")
                tap(modules[prefix + block.middle], residual, number, "middle")
                handle = modules[prefix + block.name].register_forward_hook(functools.partial(end, number))
                stack.callback(handle.remove)
        images = usable(images)
        logits = model(images)
        _check_finite(layout, heads, logits, valid, index)
        grad, attn_grad = None, None
        if labels is not None:
            labels = usable(labels)
            check_labels(labels, logits)
        if labels is not None and slopes:
            loss = nn.functional.cross_entropy(wide(logits), labels, reduction="none")
            along = [*gated, *attn] if "attn_grad" in named else gated
            found = torch.autograd.grad(loss.sum(), along)
            grad, attn_grad = found[: len(sites)], found[len(sites) :] or None

    explained, relevance, skipped = {}, {}, {}
    for need in needs:
        if isinstance(need, Relevance):
            found_by_lrp = relevances(model, images, labels, need)
            explained[need], skipped[need] = found_by_lrp.explained, found_by_lrp.skipped
            per_site = zip(sites, found_by_lrp.heads, strict=True)
            relevance[need] = tuple(_per_head(site, rows, len(images)) for site, rows in per_site)

    def per_window(rows: tuple[Tensor, ...] | list[Tensor]) -> tuple[Tensor, ...]:
        return tuple(a.detach().unflatten(0, (len(images), -1)) for a in rows)

    return HeadBatch(
        z=tuple(_per_head(site, z, len(images)) for site, z in zip(sites, heads, strict=True)),
        grad=None if grad is None else tuple(_per_head(s, g, len(images)) for s, g in zip(sites, grad, strict=True)),
        attn=per_window(attn) if named & {"attn", "attn_grad"} else None,
        attn_grad=per_window(attn_grad) if attn_grad else None,
        stream=tuple(Stream(**places) for places in stream) if "stream" in named else None,
        weights=tuple(_weights(modules, prefix, site) for site in sites) if "weights" in named else None,
        ablated=_ablated(model, layout, images, needs),
        relevance=relevance,
        explained=explained,
        skipped=skipped,
        logits=logits.detach(),
        labels=labels,
        valid=torch.ones(len(images), dtype=torch.bool, device=logits.device) if valid is None else valid,
        images=images,
        objects=objects,
    )


def _graph(tensor: Tensor, wanted: bool) -> Tensor:
    """``tensor`` in a graph: where nothing upstream is trainable, the graph begins here."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_(wanted)


def _ablated(model: nn.Module, layout: HeadLayout, images: Tensor, needs: Collection[Need]) -> dict[Ablation, Tensor]:
    """(M, B, C) logits for each Ablation; masks that several of them name are run once."""
    asked = [need for need in needs if isinstance(need, Ablation)]
    masks = list(dict.fromkeys(mask for need in asked for mask in need.masks))
    if not masks:
        return {}
    logits = masked_logits(model, images, torch.stack([layout.mask(mask) for mask in masks]))
    place = {mask: number for number, mask in enumerate(masks)}
    return {need: logits[[place[mask] for mask in need.masks]] for need in asked}


def _weights(modules: dict[str, Any], prefix: str, site: HeadSite) -> HeadWeights:
    attention = modules[prefix + site.name]
    query, key, value = attention.qkv.weight.detach().unflatten(0, (3, site.num_heads, site.head_dim))
    output = attention.proj.weight.detach().mT.unflatten(0, (site.num_heads, site.head_dim))
    around = modules[(prefix + site.name).rpartition(".")[0]]
    scale = getattr(getattr(around, "ls1", None) or getattr(around, "ls", None), "gamma", None)
    return HeadWeights(query, key, value, output if scale is None else output * scale.detach())


def _check_finite(
    layout: HeadLayout, heads: list[Tensor], logits: Tensor, valid: Tensor | None, index: Tensor | None
) -> None:
    """A NaN in any head reaches the logits through the residual stream: look for its source only then."""
    bad = ~logits.detach().isfinite().all(1)
    if valid is not None:
        bad &= valid
    if not bad.any():
        return
    image = int(bad.nonzero()[0])
    name = image if index is None else int(index[image])
    for site, z in zip(layout.sites, heads, strict=True):
        if not z.unflatten(0, (len(logits), -1))[image].isfinite().all():
            where = f"the output of {site.name}'s heads"
            break
    else:
        where = "the output of the model, behind its heads,"
    raise UserError(
        f"record: {where} is NaN or infinite for image {name}. Check the weights, the precision and the "
        f"normalisation of the images."
    )


def _per_head(site: HeadSite, rows: Tensor, batch: int) -> Tensor:
    """(B * windows, tokens, H * D) as the projection sees it -> (B, T, H, D) in raster order."""
    tokens = rows.reshape(batch, -1, site.channels)
    if site.windows is not None:
        order = site.windows.rows().to(rows.device)
        if order.numel() and int(order.max()) >= tokens.shape[1]:
            raise UserError(
                f"{site.name}: its grid was {site.windows.grid} when the gates were attached, but this input has "
                f"{tokens.shape[1]} rows. Feed images of the size the model was made for, or attach again."
            )
        tokens = tokens[:, order]
    return tokens.unflatten(-1, (site.num_heads, site.head_dim))
