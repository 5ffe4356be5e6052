"""The direct path: what each part of a model writes into each logit, past all blocks that come later.

Gandelsman, Efros & Steinhardt, 2024, arXiv 2310.05916; Balasubramanian, Basu & Feizi, 2024, arXiv
2406.01583. The residual stream is a sum of writes. With the norms' standard deviations held fixed,
everything between stream and logits (Swin's patch merging, the last norm, pooling, the classifier)
is linear: each write goes through it alone, and the results add up to the logits. What a head does
by way of later blocks counts for those blocks.

Shapes: K classes, n writes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mhprobe.backbones import backbone_of, family_of
from mhprobe.backbones.base import DirectPath, Family
from mhprobe.errors import UserError
from mhprobe.gates import HeadGates, gates_of
from mhprobe.heads import Direct, HeadLayout, HeadSite, HeadWeights, Stream, wide
from mhprobe.recording.state import inspecting

_AGREE = 1e-2  # of the largest part; what is left open is no rounding but a part that is not linear
_HALF = 0.2  # the same where the model itself rounds to half precision


def direct_logits(
    model: nn.Module, z: Sequence[Tensor], stream: Sequence[Stream], logits: Tensor
) -> Direct:
    """Write of each part of the model into the logits.

    z: per site (B, T, H, D) before the gate. stream: per block. logits: (B, K), the sum of all
    parts. Raises UserError for a model whose path is not known, or is not linear.
    """
    backbone, gates = backbone_of(model), gates_of(model)
    family, layout = family_of(backbone), gates.layout.of("head")
    with inspecting(model, gradients=False):
        path = _Path(family.direct_path(backbone), stream)
        heads: list[list[Tensor]] = [[] for _ in stream]  # per block (H, B, Q, C) of its sites
        biases = [logits.new_zeros(()) for _ in stream]  # (C,)
        for number, (site, weights) in enumerate(
            zip(layout.sites, gated_weights(backbone, gates), strict=False)
        ):
            output_HDC = wide(weights.output)
            folded_BQHD = path.folded(z[number].flatten(2), site.block).unflatten(
                2, z[number].shape[2:]
            )
            heads[site.block].append(torch.einsum("bqhd,hdc->hbqc", folded_BQHD, output_HDC))
            biases[site.block] = biases[site.block] + _bias(family, backbone, site, output_HDC)
        writes = _along(path, stream, heads, biases)
    _check(writes, logits, layout)
    return writes


def gated_weights(backbone: nn.Module, gates: HeadGates) -> tuple[HeadWeights, ...]:
    """Weights of each site's units, ``output`` times the gates: what a unit writes, its gate included."""
    family, gate_S = family_of(backbone), gates.layout.split(gates.effective())
    weights = [family.head_weights(backbone, site) for site in gates.layout.sites]
    pairs = zip(weights, gate_S, strict=True)
    return tuple(
        one._replace(output=one.output * gate_H.to(one.output)[:, None, None])
        for one, gate_H in pairs
    )


def _along(
    path: "_Path", stream: Sequence[Stream], heads: list[list[Tensor]], biases: list[Tensor]
) -> Direct:
    """All writes on their way to the logits; each block adds its own.

    heads: per block (H, B, Q, C) of each of its sites. biases: per block (C,).
    """
    before_BQC = path.folded(stream[0].before, 0)
    writes = [
        torch.stack([torch.zeros_like(before_BQC), before_BQC])
    ]  # the first: what merging adds to all tokens
    counts = [1, 1]
    for block, places in enumerate(stream):
        middle = path.folded(places.middle, block)
        # attention without heads adds its bias alone
        bias = (
            path.everywhere(biases[block], block)
            if heads[block]
            else middle - path.folded(places.before, block)
        )
        others = torch.stack([bias, path.folded(places.after, block) - middle])
        writes = [*path.merged(writes, block), *heads[block], others]
        counts += [sum(map(len, heads[block])), 1, 1]
    added, embedding, *of_blocks = path.logits(torch.cat(writes)).transpose(0, 1).split(counts, 1)
    return Direct(
        heads=torch.cat(of_blocks[::3], 1),
        biases=torch.cat(of_blocks[1::3], 1),
        mlps=torch.cat(of_blocks[2::3], 1),
        embedding=embedding,
        constant=added + path.constant[:, None],
    )


def _bias(family: Family, backbone: nn.Module, site: HeadSite, output_HDC: Tensor) -> Tensor:
    """(C,) constant that the site's projection adds to every token."""
    bias, scale = family.seam(backbone, site).output.bias, family.layer_scale(backbone, site)
    bias_C: Tensor = output_HDC.new_zeros(output_HDC.shape[-1]) if bias is None else bias.detach()
    return wide(bias_C if scale is None else bias_C * scale)


class _Path:
    """The linear way from behind each block to the logits, on these images.

    Deviations are one number per token; all else is equal for all tokens but for their place in a
    merging. So the tokens of a write are added up first, each times the deviations and the pooling
    on its way: to one token, or with M mergings ahead to one for each place in a field of 2^M x
    2^M. These Q = 4^M tokens then pass norms whose deviations are 1.

    constant: (B, K) added to the logits behind the last block.
    """

    def __init__(self, path: DirectPath, stream: Sequence[Stream]) -> None:
        last = wide(stream[-1].after)
        self.norm = _Frozen(path.norm, last)
        self.head = _Frozen(path.head, path.pool(self.norm.seen))
        pooling_1T = path.pool(torch.eye(last.shape[1], dtype=last.dtype, device=last.device)[None])
        bias_C = self.norm.undivided(torch.zeros_like(last[:1, :1]), biases=True)[0, 0]
        with _Norms(self.head.scales):
            self.constant = self.head.step(bias_C.expand(len(last), -1) * pooling_1T.sum())
        self.between: list[_Frozen | None] = []
        for number, merge in enumerate(path.between):
            before = wide(stream[number - 1].after)
            self.between.append(
                merge and _Frozen(merge, before.unflatten(1, path.grids[number - 1]))
            )
        weight_BT = self.norm.deviation * pooling_1T.expand(last.shape[:2])
        self.fields = [1] * len(stream)  # 2^M
        self.shares = [_Share.of(weight_BT[:, None])] * len(stream)
        for block in reversed(range(len(stream) - 1)):
            self.fields[block], self.shares[block] = self.fields[block + 1], self.shares[block + 1]
            if (step := self.between[block + 1]) is not None:
                self.fields[block] *= 2
                over = weight_BT.unflatten(1, path.grids[block + 1]) * step.deviation
                weight_BT, weight_BQT = _in_fields(over, path.grids[block], self.fields[block])
                self.shares[block] = _Share.of(weight_BQT)

    def folded(self, x_BTC: Tensor, block: int) -> Tensor:
        """(B, Q, C) sums of tokens (B, T, C) written in ``block``; for any C."""
        weight_BQT, used = self.shares[block][:2]
        return weight_BQT @ wide(x_BTC if used is None else x_BTC[:, used])

    def everywhere(self, x_C: Tensor, block: int) -> Tensor:
        """(B, Q, C) the same of a write that is ``x_C`` at all tokens."""
        return self.shares[block].total * x_C

    def merged(self, writes: list[Tensor], block: int) -> list[Tensor]:
        """(n, B, Q, C) writes behind the merging before ``block``, if there is one; the first gets its biases."""
        if (step := self.between[block]) is None:
            return writes
        field, write_nBQC = self.fields[block - 1], torch.cat(writes)
        x = step.undivided(write_nBQC.flatten(0, 1).unflatten(1, (field, field)))
        x = x.flatten(1, 2).unflatten(0, write_nBQC.shape[:2])
        x[0] += self.everywhere(
            step.undivided(x.new_zeros(1, 2, 2, write_nBQC.shape[3]), biases=True).flatten(), block
        )
        return [x]

    def logits(self, write_nB1C: Tensor) -> Tensor:
        """(n, B, K) of writes behind the last block."""
        x = self.head.linear(self.norm.undivided(write_nB1C.flatten(0, 1)).flatten(1))
        return x.unflatten(0, write_nB1C.shape[:2])


class _Share(NamedTuple):
    """Weights by which tokens are added up.

    weight: (B, Q, T), or of the tokens ``used`` alone, such as the class token. total: (B, Q, 1)
    their sum.
    """

    weight: Tensor
    used: Tensor | None
    total: Tensor

    @classmethod
    def of(cls, weight_BQT: Tensor) -> "_Share":
        (used,) = (weight_BQT != 0).flatten(0, 1).any(0).nonzero(as_tuple=True)
        total = weight_BQT.sum(2, keepdim=True)
        if len(used) == weight_BQT.shape[2]:
            return cls(weight_BQT, None, total)
        return cls(weight_BQT[..., used], used, total)


def _in_fields(over: Tensor, grid: tuple[int, int], field: int) -> tuple[Tensor, Tensor]:
    """Weights of the tokens of ``grid`` (B, T), and by place (B, Q, T), from merged tokens (B, rows, columns)."""
    weight_BT = (
        over.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, : grid[0], : grid[1]].flatten(1)
    )
    row, column = torch.arange(grid[0])[:, None] % field, torch.arange(grid[1]) % field
    place_QT = F.one_hot((row * field + column).flatten(), field**2).mT.to(weight_BT)
    return weight_BT, weight_BT[:, None] * place_QT


class _Frozen:
    """A step with its norms' deviations held at what they are for ``x``: affine, and its linear part.

    seen: output of the step for ``x``, without linear layers, which no norm follows.
    """

    def __init__(self, step: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.step = step
        with _Norms() as norms:
            self.seen = step(x)
        self.scales: list[Tensor] = norms.scales

    @property
    def deviation(self) -> Tensor:
        """(B, ...) factor of the first norm, 1 over the deviation of its tokens; 1 without a norm."""
        return self.scales[0].squeeze(-1) if self.scales else self.seen.new_ones(())

    def linear(self, x: Tensor) -> Tensor:
        """Apply the linear part to n writes of each image, (n * B, ...)."""
        scales = [scale.repeat(len(x) // len(scale), *[1] * (x.dim() - 1)) for scale in self.scales]
        with _Norms(scales, biases=False):
            return self.step(x)

    def undivided(self, x: Tensor, biases: bool = False) -> Tensor:
        """The linear part, or the affine one, without the deviations."""
        with _Norms([None] * len(self.scales), biases):
            return self.step(x)


class _Norms(TorchFunctionMode):
    """While it is on, norms multiply by ``scales``, in the order of their calls, instead of their own.

    A scale of None multiplies by nothing. Without scales norms use their own, which become
    ``scales``. biases: whether norms and linear layers add theirs.
    """

    def __init__(self, scales: Sequence[Tensor | None] | None = None, biases: bool = True) -> None:
        super().__init__()
        self.learn, self.biases, self.at = scales is None, biases, 0
        self.scales: list[Any] = list(scales or ())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = {F.linear: self._linear, F.layer_norm: self._layer_norm, F.rms_norm: self._rms_norm}
        return ours.get(func, func)(*args, **(kwargs or {}))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.learn:  # norms stand in front of it
            return input.new_zeros(*input.shape[:-1], len(weight))
        # in the writes' precision, which is wider than that of half a model
        return F.linear(
            input, weight.to(input), None if bias is None or not self.biases else bias.to(input)
        )

    def _layer_norm(
        self,
        x: Tensor,
        shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        weight, bias = (None if part is None else part.to(x) for part in (weight, bias))
        if self.learn:
            normed, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
            self.scales.append(scale)
            return normed
        x = self._scaled(x - x.mean(-1, keepdim=True), weight)
        return x if bias is None or not self.biases else x + bias

    def _rms_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        if self.learn:
            eps = torch.finfo(x.dtype).eps if eps is None else eps
            self.scales.append((x.square().mean(-1, keepdim=True) + eps).rsqrt())
        return self._scaled(x, weight)

    def _scaled(self, x: Tensor, weight: Tensor | None) -> Tensor:
        scale = self.scales[self.at]
        self.at += 1
        x = x if scale is None else x * scale
        return x if weight is None else x * weight.to(x)


def _check(writes: Direct, logits: Tensor, layout: HeadLayout) -> None:
    total, largest = sum(part.sum(1) for part in writes), max(part.abs().amax() for part in writes)
    same = (
        writes.embedding.shape[2] == logits.shape[1]
    )  # else the model around the backbone has a classifier
    error = (total - logits).abs().amax() if same else torch.inf
    agree = _AGREE if wide(logits) is logits else _HALF
    if not error <= agree * largest and bool(logits.isfinite().all()):
        raise UserError(
            f"logit_attribution: what {layout.num_heads} heads and the other parts write misses "
            "the logits by "
            f"{error:.3g}, expected the same sum. Something between the last block and the logits "
            "is not linear, or is "
            f"not in the backbone."
        )
