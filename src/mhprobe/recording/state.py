"""State of a model while it is recorded: eager, eval mode, weights frozen; all restored afterwards."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from mhprobe.gates import find_gates
from mhprobe.gates.base import modules_of
from mhprobe.gates.meanwhile import meanwhile


@contextlib.contextmanager
def inspecting(model: nn.Module, gradients: bool, freeze: bool = True) -> Iterator[None]:
    """Put the model into eval mode, frozen, eager, outside inference mode; undo on exit.

    gradients: record a graph (of activations; weights are frozen). freeze: False leaves weights as
    they are, for torch sums some products in another order if a weight is trainable.
    """
    gates = find_gates(model)
    # gates' values are no part of a bare backbone
    weights = [*model.parameters(), *(() if gates is None else gates.parameters())]
    with (
        contextlib.nullcontext()
        if gates is None
        else gates.lock,  # modes, taps and gates: one thread at a time
        # Lightning evaluates in inference mode, whose tensors cannot enter a graph: leave it, and
        # copy the input
        torch.inference_mode(False),
        torch.set_grad_enabled(gradients),
        torch.compiler.set_stance(
            "force_eager"
        ),  # a hook added to a compiled model is silently ignored
        _frozen_eval(model, weights if freeze else ()),
    ):
        yield


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Move ``model`` to ``device``.

    It can be differentiated, also if moved in inference mode (as in a test).
    """
    with torch.inference_mode(False):
        return model.to(device)


def usable(tensor: Tensor) -> Tensor:
    """Return ``tensor``, or a copy that may enter a graph."""
    return tensor.clone() if tensor.is_inference() else tensor


@contextlib.contextmanager
def _frozen_eval(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    training = [module for module in modules_of(model) if module.training]
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for module in training:
        if module.training:  # still: eval() of an outer one reaches the inner ones
            module.eval()
    try:
        with meanwhile(trainable, requires_grad=False):
            yield
    finally:
        for module in training:
            module.training = True
