"""The state a model is in while someone looks inside: eager, eval mode, weights frozen; all put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.gates import find_gates
from mhprobe.heads import HeadSite


@contextlib.contextmanager
def inspecting(model: nn.Module, gradients: bool) -> Iterator[None]:
    """For the duration of one call. gradients: whether a graph is recorded (of activations; weights are frozen)."""
    with contextlib.ExitStack() as stack:
        # Lightning evaluates in inference mode, whose tensors cannot enter a graph: leave it, and copy the input
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(gradients))
        # a hook added to a compiled model is silently ignored
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_frozen_eval(model))
        yield


def usable(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy that may enter a graph."""
    return tensor.clone() if tensor.is_inference() else tensor


def prefix_of(modules: dict[str, nn.Module], site: HeadSite) -> str:
    """Under which name a wrapper keeps the timm model: '' or e.g. 'backbone.'."""
    for name in modules:
        if name == site.name or name.endswith("." + site.name):
            return name[: -len(site.name)]
    raise UserError(f"record: the model has no module {site.name}; was a block removed after attach()?")


@contextlib.contextmanager
def unfused(attention: Any, name: str) -> Iterator[None]:
    """Attention weights are only visible when they are materialised. UserError for a module that has none."""
    if not hasattr(attention, "fused_attn"):
        raise UserError(f"{name} ({type(attention).__name__}) has no attention weights to look at.")
    before = attention.fused_attn
    attention.fused_attn = False
    try:
        yield
    finally:
        attention.fused_attn = before


@contextlib.contextmanager
def _frozen_eval(model: nn.Module) -> Iterator[None]:
    training = [(module, module.training) for module in model.modules()]
    gates = find_gates(model)  # their values are no part of a bare timm model
    parameters = [*model.parameters(), *(() if gates is None else gates.parameters())]
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
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
