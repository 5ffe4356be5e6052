"""record(): one forward pass, perhaps one backward pass, and what every head did in it.

The taps stand on both sides of the gate, for this call only: z is read before it, the gradient after it, so that a
masked head still has a slope. The call runs eager (a hook added to a compiled model is silently ignored), in eval
mode, with the weights frozen: the backward pass then costs about one forward.

Shapes: B images, T tokens, H heads of one site, D head width, C classes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import HeadBatch, HeadSite, wide

NEEDS = frozenset({"grad", "attn"})


def record(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None = None,
    needs: Collection[str] = frozenset({"grad"}),
    valid: Tensor | None = None,
) -> HeadBatch:
    """Run ``model`` on ``images`` and return a HeadBatch.

    model: carries gates (see ``attach``); may be a wrapper around the timm model, e.g. a LightningModule.
    images: (B, 3, height, width), normalised. labels: (B,), needed for "grad".
    needs: "grad" for slopes of the per-image cross-entropy, "attn" for attention weights; z is always there.
    valid: (B,) bool, default all True.
    """
    if unknown := set(needs) - NEEDS:
        raise UserError(f"record: unknown needs {sorted(unknown)}; expected some of {sorted(NEEDS)}.")
    if "grad" in needs and labels is None:
        raise UserError('record: needs={"grad"} takes the slope of the loss, so it needs labels, got None.')
    if any(getattr(module, "grad_checkpointing", False) for module in model.modules()):
        raise UserError(
            "record: gradient checkpointing runs every block twice; call model.set_grad_checkpointing(False) first."
        )
    gates = gates_of(model)
    sites = gates.layout.sites
    heads: list[Tensor] = [torch.empty(0)] * len(sites)
    gated: list[Tensor] = [torch.empty(0)] * len(sites)
    attn: list[Tensor] = [torch.empty(0)] * len(sites)

    def before_gate(number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        heads[number] = args[0].detach()

    def after_gate(number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # the first site has nothing trainable upstream: there the graph begins
        y = args[0] if args[0].requires_grad else args[0].detach().requires_grad_("grad" in needs)
        gated[number] = y
        return (y, *args[1:])

    def weights(number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        attn[number] = args[0].detach()

    with contextlib.ExitStack() as stack:
        # Lightning evaluates in inference mode, whose tensors cannot enter a graph: leave it, and copy the input
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled("grad" in needs))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_frozen_eval(model))

        def tap(module: nn.Module, hook: Callable[..., Any], number: int, prepend: bool = False) -> None:
            handle = module.register_forward_pre_hook(functools.partial(hook, number), prepend=prepend)
            stack.callback(handle.remove)

        modules = dict(model.named_modules())
        prefix = _prefix(modules, sites[0])
        for number, site in enumerate(sites):
            attention = modules[prefix + site.name]
            tap(attention.proj, before_gate, number, prepend=True)
            tap(attention.proj, after_gate, number)
            if "attn" in needs:
                stack.enter_context(_unfused(attention, site))
                tap(attention.attn_drop, weights, number)
        logits = model(_usable(images))
        loss, grad = None, None
        if labels is not None:
            labels = _usable(labels)
            loss = nn.functional.cross_entropy(wide(logits), labels, reduction="none")
            if "grad" in needs:
                grad = torch.autograd.grad(loss.sum(), gated)

    return HeadBatch(
        z=tuple(_per_head(site, z, len(images)) for site, z in zip(sites, heads, strict=True)),
        grad=None if grad is None else tuple(_per_head(s, g, len(images)) for s, g in zip(sites, grad, strict=True)),
        attn=tuple(a.unflatten(0, (len(images), -1)) for a in attn) if "attn" in needs else None,
        logits=logits.detach(),
        loss=None if loss is None else loss.detach(),
        labels=labels,
        valid=torch.ones(len(images), dtype=torch.bool, device=logits.device) if valid is None else valid,
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


def _prefix(modules: dict[str, nn.Module], site: HeadSite) -> str:
    """Under which name a wrapper keeps the timm model: '' or e.g. 'backbone.'."""
    for name in modules:
        if name == site.name or name.endswith("." + site.name):
            return name[: -len(site.name)]
    raise UserError(f"record: the model has no module {site.name}; was a block removed after attach()?")


def _usable(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_inference() else tensor


@contextlib.contextmanager
def _frozen_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for weights, both put back afterwards."""
    training = [(module, module.training) for module in model.modules()]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for module, mode in training:
            module.training = mode


@contextlib.contextmanager
def _unfused(attention: Any, site: HeadSite) -> Iterator[None]:
    """Attention weights are only visible when they are materialised."""
    if not hasattr(attention, "fused_attn"):
        raise UserError(f"{site.name} ({type(attention).__name__}) has no attention weights to look at.")
    before = attention.fused_attn
    attention.fused_attn = False
    try:
        yield
    finally:
        attention.fused_attn = before
