"""State of a model while it is recorded: eager, eval mode, weights frozen; all restored afterwards."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mhprobe.gates import find_gates


@contextlib.contextmanager
def inspecting(model: nn.Module, gradients: bool) -> Iterator[None]:
    """Put the model into eval mode, frozen, eager, outside inference mode; undo on exit.

    gradients: record a graph (of activations; weights are frozen).
    """
    with contextlib.ExitStack() as stack:
        if (gates := find_gates(model)) is not None:
            stack.enter_context(gates.lock)  # taps, modes and gates are the model's: one thread at a time
        # Lightning evaluates in inference mode, whose tensors cannot enter a graph: leave it, and copy the input
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(gradients))
        # a hook added to a compiled model is silently ignored
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_frozen_eval(model))
        yield


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Move ``model`` to ``device``. It can be differentiated, also if moved in inference mode (as in a test)."""
    with torch.inference_mode(False):
        return model.to(device)


def usable(tensor: Tensor) -> Tensor:
    """Return ``tensor``, or a copy that may enter a graph."""
    return tensor.clone() if tensor.is_inference() else tensor


@contextlib.contextmanager
def _frozen_eval(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    gates = find_gates(model)  # their values are no part of a bare backbone
    parameters = [*model.parameters(), *(() if gates is None else gates.parameters())]
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if training:
        model.eval()
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for module in training:
            module.training = True
