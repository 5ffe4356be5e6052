"""Records of the heads on a batch, and names of what can be recorded."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.heads.attention import Shown, Weights

FillName = Literal["zero", "mean", "mean_per_position", "resample", "optimal"]
"""Name of a replacement for the output of a head that is off; see ``recording.fills``."""


@dataclass(frozen=True)
class Ablation:
    """A need: the logits under these masks.

    masks: M tuples of flat indices of heads to switch off. fill: replacement of their output
    (``recording.fills``).
    """

    masks: tuple[tuple[int, ...], ...]
    fill: FillName = "zero"


@dataclass(frozen=True)
class Relevance:
    """A need: the part of a logit that came through each head's output, by layer-wise relevance propagation.

    target: the explained scalar: "top1", the largest logit; "label", the label's logit; "norm", the
    length of the features of a model without a classifier. gamma, epsilon: of the rules for linear
    layers.
    """

    target: str = "top1"
    gamma: float = 0.25
    epsilon: float = 1e-9


@dataclass(frozen=True, eq=False)
class Donors:
    """N images that can replace others.

    number: (N,) int64, different for different images (e.g. hash of pixels).
    """

    images: Tensor
    labels: Tensor
    number: Tensor


@dataclass(frozen=True, eq=False)
class Patching:
    """A need: the effect of each head alone when its output is copied from the run on one image to that on another.

    corrupt: an image's corrupted twin is an image of another "class" (a donor), the image with
        "noise", or the image without its "object".
    direction: "denoising" copies heads of the clean run into the corrupted run, "noising" the other
    way round.
    metric: "logit_difference" of the label and the wrong class (the donor's class, else the largest
        other class on the twin), or "log_likelihood" of the label in nats.
    estimates: "exact", one patched run per head; "atp", from one slope; "graddrop", from one slope
    per block.
    noise: standard deviation of the noise, in standard deviations of the image's pixels.
    seed: of the noise and of the choice of donors. donors: None for the images of the same batch.
    """

    corrupt: str = "class"
    direction: str = "denoising"
    metric: str = "logit_difference"
    estimates: tuple[str, ...] = ("exact",)
    noise: float = 1.0
    seed: int = 0
    donors: Donors | None = None


Need = str | Ablation | Relevance | Patching
"""Something that ``record`` can deliver: "grad", "attn", "attn_grad", "rows", "row_slopes", "stream", "weights",
"direct", an Ablation, a Relevance or a Patching."""


class Stream(NamedTuple):
    """The residual stream before a block, after its attention, after its MLP: each (B, T, C), in raster order."""

    before: Tensor
    middle: Tensor
    after: Tensor


class Direct(NamedTuple):
    """Writes of each part of the model into each logit on the direct path: past all later blocks, norms frozen.

    heads: (B, A, C). biases: (B, blocks, C), of the blocks' output projections. mlps: (B, blocks,
    C).
    embedding: (B, 1, C), the input of the first block. constant: (B, 1, C), biases of merging,
    norms and classifier. Their sum is the logits.
    """

    heads: Tensor
    biases: Tensor
    mlps: Tensor
    embedding: Tensor
    constant: Tensor


class Patched(NamedTuple):
    """Effects of a Patching, in units of its metric.

    clean, corrupt: (B,) of the two runs. paired: (B,) bool, False for an image without a corrupted
    twin. effect: by estimate (B, A), from the base run towards the other: from "corrupt" to "clean"
    in denoising. donor: (B,) index of each image's donor among those of the Patching, or in the
    batch; None without donors.
    """

    clean: Tensor
    corrupt: Tensor
    paired: Tensor
    effect: dict[str, Tensor]
    donor: Tensor | None = None


class Relevances(NamedTuple):
    """Relevances of one batch under a Relevance; all sites explain the same logit.

    explained: (B,) the logit. heads: per site (B, T, H, D), of z's neurons; from ``recording.lrp``
    as the projection sees them. skipped: (B, blocks) relevance that went past the block's
    attention, along the residual stream. At each block heads + skipped = explained, up to what
    biases, softmax remainders and epsilon kept further up.
    """

    explained: Tensor
    heads: tuple[Tensor, ...]
    skipped: Tensor


class HeadWeights(NamedTuple):
    """The weights that belong to each head of one site.

    query, key, value: (H, D, C in). output: (H, D, C out), with layer scale, and in a record with
    the gate: head h writes z_h @ output[h] (and a share of the bias) into the residual stream. A
    neuron, and a head of outlook attention, has neither query nor key (D = 0). A neuron's value is
    its row of the first linear layer (of a gated MLP
    its two rows: D = 2).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class HeadBatch:
    """Record of the heads in one forward pass, and one backward pass if slopes are needed.

    z: per site (B, T, H, D), the heads' outputs before the gate; windowed sites in raster order.
    grad: per site (B, T, H, D), d(loss of the image)/d(gated z): after the gate, so that masked
        heads have slopes too. The sum over T, D of z * grad is d(loss of the image)/d(gate).
    attn: per site the softmaxed weights (B, windows, H, queries, keys); one window for global
        attention. ``site.places()`` and ``site.support()`` say which token each row and column is.
        attn_grad: slopes along them, likewise.
    rows: per site the same weights, and perhaps slopes, to be read row by row (``attention.Weights``): of a large
        grid queries and keys are held instead.
    stream: per block of the layout the residual stream. weights: per site. direct: writes of each
    part into the logits.
    norms: with weights, per site the norm between W_O and the stream, and the bias (C,) of W_O;
    None without a norm.
    ablated: per Ablation (M, B, C) logits under its masks.
    patched: per Patching its effects. relevance: per Relevance the parts of the logit.
    logits: (B, C). labels: (B,).
    images: (B, 3, height, width), the model's input. objects: (B, height, width) int64, the object
        of each pixel, 0 for background; None if the data set has no masks.
    valid: (B,) bool, False for images that only pad the batch: they never enter a sum.
    ends: False if it is a piece of a batch, and not the last one.
    """

    z: tuple[Tensor, ...]
    logits: Tensor
    valid: Tensor
    labels: Tensor | None = None
    grad: tuple[Tensor, ...] | None = None
    attn: tuple[Tensor, ...] | None = None
    attn_grad: tuple[Tensor, ...] | None = None
    rows: tuple[Weights, ...] | None = None
    stream: tuple[Stream, ...] | None = None
    weights: tuple[HeadWeights, ...] | None = None
    norms: tuple[tuple[nn.LayerNorm, Tensor] | None, ...] = field(default=(), repr=False)
    direct: Direct | None = None
    ablated: Mapping[Ablation, Tensor] = field(default_factory=dict)
    patched: Mapping[Patching, Patched] = field(default_factory=dict)
    relevance: Mapping[Relevance, Relevances] = field(default_factory=dict)
    images: Tensor | None = None
    objects: Tensor | None = None
    ends: bool = field(default=True, repr=False)
    _derived: dict[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def need(self, what: str, name: str) -> Any:
        """Return the field ``what``; raise UserError if it was not recorded.

        name: of the measure.
        """
        record = getattr(self, what)
        if record is None:
            called, how = _RECORDED[what]
            raise UserError(f"{name}: the batch has no {called}; record it with {how}.")
        return record

    def weights_of(self, number: int, name: str) -> Weights:
        """Return the attention weights of a site, (B * W, H, Q, K), to be read row by row.

        They come from ``attn`` or from ``rows``; UserError without either. name: of the measure.
        """
        if self.attn is None and self.rows is not None:
            return self.rows[number]
        attn = self.need("attn", name)[number].flatten(0, 1)
        slopes = self.attn_grad
        return Shown(attn, None if slopes is None else slopes[number].flatten(0, 1))

    def writing(self, number: int, name: str) -> tuple[Tensor, Tensor]:
        """(B, T, H, D) and (H, D, C), whose product the heads of a site write into the stream: z and W_O.

        Where a norm stands behind W_O, its deviation is held at what it is. name: of the measure.
        """
        z, output = wide(self.z[number]), wide(self.need("weights", name)[number].output)
        if not self.norms or (behind := self.norms[number]) is None:
            return z, output
        (norm, bias), sum_BTC = behind, z.flatten(2) @ output.flatten(0, 1)
        deviation_BT1 = ((sum_BTC + bias).var(2, correction=0, keepdim=True) + norm.eps).sqrt()
        return z / deviation_BT1[..., None], (
            output - output.mean(-1, keepdim=True)
        ) * norm.weight.detach()

    def derive(self, make: Callable[..., T], *args: Hashable) -> T:
        """Return ``make(self, *args)``, computed once per batch and shared by all measures."""
        key = (make, args)
        if key not in self._derived:
            self._derived[key] = make(self, *args)
        made: T = self._derived[key]
        return made

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}
        recorded = [
            k for k, v in values.items() if v is not None and not (isinstance(v, Mapping) and not v)
        ]
        return f"HeadBatch({len(self.logits)} images, {len(self.z)} sites; {', '.join(recorded)})"


def first_sites(batch: HeadBatch, sites: int) -> HeadBatch:
    """Return the batch with only its first ``sites`` sites (heads come before neurons)."""
    grad, weights = batch.grad and batch.grad[:sites], batch.weights and batch.weights[:sites]
    relevance = {
        need: part._replace(heads=part.heads[:sites]) for need, part in batch.relevance.items()
    }
    return replace(
        batch,
        z=batch.z[:sites],
        grad=grad,
        weights=weights,
        norms=batch.norms[:sites],
        relevance=relevance,
    )


_RECORDED = {  # what a need is called, and how to get it
    "grad": ("gradients", 'labels and needs={"grad"}'),
    "attn": ("attention weights", 'needs={"attn"}'),
    "attn_grad": ("slopes along attention", 'labels and needs={"attn_grad"}'),
    "stream": ("residual stream", 'needs={"stream"}'),
    "weights": ("weights", 'needs={"weights"}'),
    "direct": ("direct path to the logits", 'needs={"direct"}'),
    "labels": ("labels", "labels"),
    "images": ("images", "record()"),
}


def wide(tensor: Tensor) -> Tensor:
    """Convert to float32 or wider: products of bfloat16 or half features have too few digits to be summed."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def norm_written(z: Tensor, output_HDC: Tensor) -> Tensor:
    """(..., H) ||z W_O|| of (..., H, D) outputs."""
    # ||z W||^2 = z (W W^T) z^T: D x D numbers per head, and no (..., H, C) write
    gram_HDD = output_HDC @ output_HDC.mT
    return (torch.einsum("...hd,hde->...he", z, gram_HDD) * z).sum(-1).clamp(min=0).sqrt()
