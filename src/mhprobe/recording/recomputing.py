"""Wide activations of a graph, made again in the backward pass from the narrow ones that they come from.

A layer that widens its input (the first of an MLP, to four times the width) gives what the
activation behind it saves for its slope: most of what a graph holds. Here its input is kept in
place of it. One more product per layer makes it again, the same numbers bit for bit.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

WIDER = 2  # times its input, a layer's output that is made again


class Recomputed:
    """Output of a layer, to be made from its input."""

    def __init__(self, layer: nn.Linear, x: Tensor, output: Tensor) -> None:
        self.layer, self.x, self.before = layer, x, x._version
        self.output: Tensor | None = output  # until another layer has run
        self.after = output._version

    def is_of(self, saved: Tensor) -> bool:
        """Return True if ``saved`` is the output: the same numbers in the same place, unchanged since."""
        output = self.output
        return (
            output is not None
            and saved.data_ptr() == output.data_ptr()
            and (saved.shape, saved.stride()) == (output.shape, output.stride())
            and (saved.dtype, saved._version) == (output.dtype, self.after)
            and self.x._version == self.before
        )

    def __call__(self) -> Tensor:
        assert self.x._version == self.before, "a layer's input was written over behind it"
        with torch.no_grad():
            return linear(self.x, self.layer.weight, self.layer.bias)


@contextlib.contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """Let graphs that begin in here keep the inputs of widening layers in place of their outputs.

    Only of plain layers, in their own precision, without hooks that could change an output.
    """
    last: list[Recomputed] = []  # of the layer that ran last

    def widens(layer: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        for before in last:
            before.output = None
        last.clear()
        if args and args[0].dtype == output.dtype == layer.weight.dtype:
            last.append(Recomputed(layer, args[0].detach(), output.detach()))

    def pack(saved: Tensor) -> Tensor | Recomputed:
        return next((again for again in last if again.is_of(saved)), saved)

    layers = [module for module in model.modules() if _widens(module)]
    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_hook(widens).remove)
        if layers:
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _unpacked))
        try:
            yield
        finally:
            for before in last:
                before.output = None


def _unpacked(saved: Tensor | Recomputed) -> Tensor:
    return saved() if isinstance(saved, Recomputed) else saved


def _widens(layer: nn.Module) -> bool:
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return (
        type(layer) is nn.Linear and not hooked and layer.out_features >= WIDER * layer.in_features
    )
