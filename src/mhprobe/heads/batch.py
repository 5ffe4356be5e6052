"""Records of the heads on a batch, and names of what can be recorded."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from mhprobe.errors import UserError

FillName = Literal["zero", "mean", "mean_per_position", "resample", "optimal"]
"""What stands in a head's place while it is off; see ``recording.fills``."""


@dataclass(frozen=True)
class Ablation:
    """A need: what the logits are under these masks.

    masks: M tuples of flat indices of the heads that are off. fill: what stands in their place (``recording.fills``).
    """

    masks: tuple[tuple[int, ...], ...]
    fill: FillName = "zero"


@dataclass(frozen=True)
class Relevance:
    """A need: how much of a logit came through each head's output, by layer-wise relevance propagation.

    target: "top1" for the largest logit, "label" for the label's, "norm" for the length of features that are no logits.
    gamma, epsilon: of the rules for linear layers.
    """

    target: str = "top1"
    gamma: float = 0.25
    epsilon: float = 1e-9


@dataclass(frozen=True, eq=False)
class Donors:
    """N images that can take the place of others. number: (N,) int64 that tells them apart, e.g. of their pixels."""

    images: Tensor
    labels: Tensor
    number: Tensor


@dataclass(frozen=True, eq=False)
class Patching:
    """A need: what each head alone brings from one run into another, of an image (clean) and a corrupted twin of it.

    corrupt: the twin is a donor of another "class", the image with "noise" on it, or without its "object".
    direction: "denoising", heads of the clean run in the corrupted one; "noising", the other way round.
    metric: "logit_difference" of the label and the wrong class (the donor's; otherwise the largest other one on the
        twin), or "log_likelihood" of the label in nats.
    estimates: "exact", one patched run per head; "atp", from one slope; "graddrop", from one per block.
    noise: standard deviation, in that of the image's own pixels. seed: of the noise and of who gets which donor.
    donors: None for the images of the same batch.
    """

    corrupt: str = "class"
    direction: str = "denoising"
    metric: str = "logit_difference"
    estimates: tuple[str, ...] = ("exact",)
    noise: float = 1.0
    seed: int = 0
    donors: Donors | None = None


Need = str | Ablation | Relevance | Patching
"""What a measure asks of ``record``: "grad", "attn", "attn_grad", "stream", "weights", "direct", an Ablation, a
Relevance or a Patching."""


class Stream(NamedTuple):
    """The residual stream before a block, after its attention, after its MLP: each (B, T, C), in raster order."""

    before: Tensor
    middle: Tensor
    after: Tensor


class Direct(NamedTuple):
    """Writes of each part of the model into each logit on the direct path: past all later blocks, norms frozen.

    heads: (B, A, C). biases: (B, blocks, C) of the blocks' output projections. mlps: (B, blocks, C).
    embedding: (B, 1, C) what enters the first block. constant: (B, 1, C) biases of merging, norms and classifier.
    All of them add up to the logits.
    """

    heads: Tensor
    biases: Tensor
    mlps: Tensor
    embedding: Tensor
    constant: Tensor


class Patched(NamedTuple):
    """Effects of a Patching, in units of its metric.

    clean, corrupt: (B,) of the two runs. paired: (B,) bool, False for an image without a corrupted twin. effect: by
    estimate (B, A), how far head and image go from one run towards the other: from "corrupt" to "clean" in denoising.
    donor: (B,) place of each image's donor among those of the Patching, or in the batch; None without donors.
    """

    clean: Tensor
    corrupt: Tensor
    paired: Tensor
    effect: dict[str, Tensor]
    donor: Tensor | None = None


class Relevances(NamedTuple):
    """Relevances of one batch under a Relevance; all sites explain the same logit.

    explained: (B,) the logit that was shared out.
    heads: per site (B, T, H, D), of z's neurons; from ``recording.lrp`` as the projection sees them.
    skipped: (B, blocks) relevance that went past the block's attention, along the residual stream. At each block
        heads + skipped = explained, up to what biases, softmax remainders and epsilon kept further up.
    """

    explained: Tensor
    heads: tuple[Tensor, ...]
    skipped: Tensor


class HeadWeights(NamedTuple):
    """The weights that belong to each head of one site.

    query, key, value: (H, D, C in). output: (H, D, C out), with the block's layer scale in it where it has one:
    head h writes z_h @ output[h] (and a share of the bias) into the residual stream. A neuron has neither query nor
    key (D = 0); its value is its row of the first linear layer (of a gated MLP its two rows: D = 2).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class HeadBatch:
    """Record of the heads in one forward pass, and one backward pass where it was asked for.

    z: per site (B, T, H, D), the heads' outputs before the gate. Windowed sites are put back in raster order.
    grad: per site (B, T, H, D), d(loss of the image)/d(gated z); taken after the gate, so that a masked head
        keeps its slope. sum over T, D of z * grad is d(loss of the image)/d(gate).
    attn: per site the softmaxed weights (B, windows, H, queries, keys); one window for global attention. Which token
        stands where: ``site.places()`` and ``site.support()``.
    attn_grad: per site d(loss of the image)/d(attn), like attn.
    stream: per block of the layout the residual stream. weights: per site. direct: what each part writes into the
        logits, past all later blocks.
    ablated: per Ablation (M, B, C) logits under its masks.
    patched: per Patching what it found. relevance: per Relevance how the logit was shared out.
    logits: (B, C). labels: (B,).
    images: (B, 3, height, width) as the model saw them. objects: (B, height, width) int64 what each pixel shows, 0 for
        background, where the data set tells.
    valid: (B,) bool, False for images that only pad the batch: they never enter a sum.
    """

    z: tuple[Tensor, ...]
    logits: Tensor
    valid: Tensor
    labels: Tensor | None = None
    grad: tuple[Tensor, ...] | None = None
    attn: tuple[Tensor, ...] | None = None
    attn_grad: tuple[Tensor, ...] | None = None
    stream: tuple[Stream, ...] | None = None
    weights: tuple[HeadWeights, ...] | None = None
    direct: Direct | None = None
    ablated: Mapping[Ablation, Tensor] = field(default_factory=dict)
    patched: Mapping[Patching, Patched] = field(default_factory=dict)
    relevance: Mapping[Relevance, Relevances] = field(default_factory=dict)
    images: Tensor | None = None
    objects: Tensor | None = None
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def need(self, what: str, name: str) -> Any:
        """The field ``what``; UserError where it was not recorded. name: of the one who asks, for the error."""
        found = getattr(self, what)
        if found is None:
            called, how = _RECORDED[what]
            raise UserError(f"{name}: the batch has no {called}; record it with {how}.")
        return found

    def derive(self, make: Callable[..., T], *args: Hashable) -> T:
        """``make(self, *args)``, once per batch: what several measures need is computed by the first that asks."""
        key = (make, args)
        if key not in self._derived:
            self._derived[key] = make(self, *args)
        return self._derived[key]

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        there = [k for k, v in values.items() if v is not None and not (isinstance(v, Mapping) and not v)]
        return f"HeadBatch({len(self.logits)} images, {len(self.z)} sites; {', '.join(there)})"


def first_sites(batch: HeadBatch, sites: int) -> HeadBatch:
    """The batch with its first so many sites alone: where neurons were recorded too, what its heads did."""
    grad, weights = batch.grad and batch.grad[:sites], batch.weights and batch.weights[:sites]
    relevance = {need: found._replace(heads=found.heads[:sites]) for need, found in batch.relevance.items()}
    return replace(batch, z=batch.z[:sites], grad=grad, weights=weights, relevance=relevance)


_RECORDED = {  # what a need is called, and how to get it
    "grad": ("gradients", 'labels and needs={"grad"}'),
    "attn": ("attention weights", 'needs={"attn"}'),
    "attn_grad": ("slopes along attention", 'labels and needs={"attn_grad"}'),
    "stream": ("residual stream", 'needs={"stream"}'),
    "weights": ("weights", 'needs={"weights"}'),
    "direct": ("direct path to the logits", 'needs={"direct"}'),
    "labels": ("labels", "labels"),
}


def wide(tensor: Tensor) -> Tensor:
    """At least float32: products of bfloat16 or half features keep too few digits to be summed."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
