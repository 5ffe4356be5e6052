"""Cost of a recorded pass: floating-point operations, in units of one plain forward pass of the same images."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from mhprobe.data.batch import Batch
from mhprobe.heads import Ablation, Need
from mhprobe.recording.outputs import Of
from mhprobe.recording.record import record
from mhprobe.recording.state import inspecting

IMAGES = 4  # enough to count: operations are proportional to images


def forward_equivalents(model: nn.Module, batch: Batch, needs: Collection[Need], of: Of = "loss") -> float:
    """Operations of ``record(needs)`` / operations of ``model(images)``, counted on a few images of the batch.

    Counts matrix products, convolutions and attention, by torch.utils.flop_counter's formulas; not the measures' own
    work.
    of: scalar to differentiate, as for ``record``.
    """
    images, labels = batch.images[:IMAGES], None if batch.labels is None else batch.labels[:IMAGES]
    with inspecting(model, gradients=False):
        plain = operations(lambda: model(images))
    masked = {dataclasses.replace(need, fill="zero") if isinstance(need, Ablation) else need for need in needs}
    return operations(lambda: record(model, images, labels, masked, of=of)) / plain  # what stands in costs no product


class Counter(TorchDispatchMode):
    """Counter of operations. torch's own FlopCounterMode has hooks that fail if a graph begins inside a module."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry and args[0] is not None:  # None: no slope came
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def operations(work: Callable[[], object]) -> int:
    """Floating-point operations of ``work()``; a multiplication with its addition counts as two."""
    with Counter() as counter:
        work()
    return counter.total
