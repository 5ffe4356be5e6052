"""The direct path: what each part of a model writes into each logit, past all blocks that come later.

Gandelsman, Efros & Steinhardt, 2024, arXiv 2310.05916; Balasubramanian, Basu & Feizi, 2024, arXiv 2406.01583. The
residual stream is a sum of writes. Once the norms' standard deviations are held at what they were, all that stands
between stream and logits (Swin's patch merging, the last norm, pooling, the classifier) is linear, so that each write
can be sent through it alone, and the results add up to the logits. What a head does by way of later blocks counts for
those blocks.

Shapes: B images, T tokens, H heads of one site, D head width, C channels, A heads of all sites, K classes, n writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mhprobe.backbones import backbone_of, family_of
from mhprobe.backbones.base import DirectPath
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import Direct, HeadLayout, Stream, wide
from mhprobe.recording.state import inspecting

_AGREE = 1e-2  # of the largest part; what is left open is no rounding but a part that is not linear


def direct_logits(model: nn.Module, z: Sequence[Tensor], stream: Sequence[Stream], logits: Tensor) -> Direct:
    """What each part of the model writes into the logits.

    z: per site (B, T, H, D) before the gate. stream: per block. logits: (B, K), what all parts add up to.

    UserError for a model whose path is not known, or is not linear.
    """
    backbone, gates = backbone_of(model), gates_of(model)
    family, layout = family_of(backbone), gates.layout
    with inspecting(model, gradients=False):
        path = _Path(family.direct_path(backbone), stream, {site.block: site.token_grid for site in layout.sites})
        heads, biases = [], [torch.zeros_like(wide(logits)) for _ in layout.blocks]
        for number, (site, gate_H) in enumerate(zip(layout.sites, layout.split(gates.effective()), strict=True)):
            output_HDC = family.head_weights(backbone, site).output * gate_H.to(z[number])[:, None, None]
            folded_BQHD = path.folded(wide(z[number]).flatten(2), site.block).unflatten(2, z[number].shape[2:])
            write_HBQC = torch.einsum("bqhd,hdc->hbqc", folded_BQHD, wide(output_HDC))
            bias_BQC = path.everywhere(_bias(family, backbone, site, output_HDC), site.block)
            sent = path.send(torch.cat([write_HBQC, bias_BQC[None]]), site.block)
            heads.append(sent[:-1].transpose(0, 1))
            biases[site.block] += sent[-1]
        mlps = [
            path.send((path.folded(wide(each.after), block) - path.folded(wide(each.middle), block))[None], block)[0]
            for block, each in enumerate(stream)
        ]
        found = Direct(
            torch.cat(heads, 1),
            torch.stack(biases, 1),
            torch.stack(mlps, 1),
            path.send(path.folded(wide(stream[0].before), 0)[None], 0)[0][:, None],
            path.constant()[:, None],
        )
    _check(found, logits, layout)
    return found


def _bias(family: Any, backbone: nn.Module, site: Any, output_HDC: Tensor) -> Tensor:
    """(C,) what the site's projection adds to every token, whatever its heads do."""
    bias, scale = family.seam(backbone, site).output.bias, family.layer_scale(backbone, site)
    bias = output_HDC.new_zeros(output_HDC.shape[-1]) if bias is None else bias.detach()
    return wide(bias if scale is None else bias * scale)


class _Path:
    """The linear way from behind each block to the logits, on these images.

    Deviations are one number per token, and everything else is the same for all tokens but for where merging puts them.
    So the tokens of a write are added up first, each times the deviations and the pooling on its way: all of them to
    one, or where M mergings follow to one for each place in a field of 2^M x 2^M, which is all that merging sees. These
    Q = 4^M tokens then go on, past norms whose deviations are 1.

    grids: of each block's tokens.
    """

    def __init__(self, path: DirectPath, stream: Sequence[Stream], grids: Mapping[int, tuple[int, int]]) -> None:
        self.norm = _Frozen(path.norm, wide(stream[-1].after))
        self.pool, self.head = path.pool, _Frozen(path.head, path.pool(self.norm.seen))
        self.between: list[_Frozen | None] = []
        for number, merge in enumerate(path.between):
            before = wide(stream[number - 1].after)
            self.between.append(merge and _Frozen(merge, before.unflatten(1, grids[number - 1])))
        last = self.norm.seen
        pooling_1T = self.pool(torch.eye(last.shape[1], dtype=last.dtype, device=last.device)[None])
        weight_BT = self.norm.deviation * pooling_1T.expand(last.shape[:2])
        self.pooling = pooling_1T.sum()
        self.fields = [1] * len(stream)  # 2^M
        self.shares = [weight_BT[:, None]] * len(stream)  # (B, Q, T) by which tokens are added up
        for block in reversed(range(len(stream) - 1)):
            self.fields[block], self.shares[block] = self.fields[block + 1], self.shares[block + 1]
            if (step := self.between[block + 1]) is not None:
                self.fields[block] *= 2
                over = weight_BT.unflatten(1, grids[block + 1]) * step.deviation
                weight_BT, self.shares[block] = _in_fields(over, grids[block], self.fields[block])

    def folded(self, x_BTC: Tensor, block: int) -> Tensor:
        """(B, Q, C) tokens written in ``block``, added up; for any C."""
        share_BQT = self.shares[block]
        (used,) = (share_BQT != 0).flatten(0, 1).any(0).nonzero(as_tuple=True)  # the class token alone, perhaps
        return share_BQT @ x_BTC if len(used) == x_BTC.shape[1] else share_BQT[..., used] @ x_BTC[:, used]

    def everywhere(self, x_C: Tensor, block: int) -> Tensor:
        """(B, Q, C) the same of a write that is ``x_C`` at all tokens."""
        return self.shares[block].sum(2, keepdim=True) * x_C

    def send(self, write_nBQC: Tensor, block: int) -> Tensor:
        """(n, B, K). What stands in front of the block is behind it."""
        field = self.fields[block]
        x = write_nBQC.flatten(0, 1).unflatten(1, (field, field))
        for step in self.between[block + 1 :]:
            x = x if step is None else step.undivided(x)
        return self.head.linear(self.norm.undivided(x).flatten(1)).unflatten(0, write_nBQC.shape[:2])

    def constant(self) -> Tensor:
        """(B, K) the biases on the way, each the same at all tokens."""
        bias_BC = self.norm.undivided(torch.zeros_like(self.norm.seen[:, 0]), biases=True)
        found = self.head.affine(bias_BC * self.pooling)
        for block, step in enumerate(self.between):
            if step is not None:
                bias_C = step.undivided(step.nothing, biases=True)[0, 0, 0]
                found = found + self.send(self.everywhere(bias_C, block)[None], block)[0]
        return found


def _in_fields(over: Tensor, grid: tuple[int, int], field: int) -> tuple[Tensor, Tensor]:
    """Of merged tokens' weights (B, rows, columns): those of the tokens of ``grid`` (B, T), and by place (B, Q, T)."""
    each = over.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, : grid[0], : grid[1]].flatten(1)
    row, column = torch.arange(grid[0])[:, None] % field, torch.arange(grid[1]) % field
    place_QT = torch.nn.functional.one_hot((row * field + column).flatten(), field**2).mT.to(each)
    return each, each[:, None] * place_QT


class _Frozen:
    """A step with its norms' deviations held at what they are for ``x``: affine, and its linear part."""

    def __init__(self, step: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.step, self.nothing = step, x.new_zeros(1, *[2] * (x.dim() - 2), x.shape[-1])
        with _Norms(learn=True) as norms:
            self.seen = step(x)
        self.scales = norms.scales

    @property
    def deviation(self) -> Tensor:
        """(B, ...) by which it divides its tokens, as a factor."""
        scale = self.scales[0] if self.scales else None
        return self.seen.new_ones(()) if scale is None else scale.squeeze(-1)

    def affine(self, x: Tensor) -> Tensor:
        with _Norms(self.scales):
            return self.step(x)

    def linear(self, x: Tensor) -> Tensor:
        with _Norms(self.scales, biases=False):
            return self.step(x)

    def undivided(self, x: Tensor, biases: bool = False) -> Tensor:
        """The linear part, or the affine one, without the deviations."""
        with _Norms([None] * len(self.scales), biases=biases):
            return self.step(x)


class _Norms(TorchFunctionMode):
    """While it is on, norms divide by the deviations in ``scales``, in the order of their calls.

    learn: they are noted instead. biases: whether norms and linear layers add theirs.
    """

    def __init__(self, scales: Sequence[Tensor | None] = (), learn: bool = False, biases: bool = True) -> None:
        super().__init__()
        self.scales, self.learn, self.biases, self.at = scales, learn, biases, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and self.learn:  # norms stand in front of it
            return args[0].new_zeros(*args[0].shape[:-1], len(args[1]))
        if func is F.linear and not self.biases:
            return F.linear(args[0], args[1])
        if func is F.layer_norm:
            return self._layer_norm(*args, **kwargs)
        if func is F.rms_norm:
            return self._rms_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        x = self._scaled(x - x.mean(-1, keepdim=True), weight, eps)
        return x if bias is None or not self.biases else x + bias

    def _rms_norm(self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        return self._scaled(x, weight, torch.finfo(x.dtype).eps if eps is None else eps)

    def _scaled(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if self.learn:
            self.scales = [*self.scales, (x.square().mean(-1, keepdim=True) + eps).rsqrt()]
        scale = self.scales[self.at]
        self.at += 1
        x = x if scale is None else x * _for_all(scale, x)
        return x if weight is None else x * weight


def _for_all(scale: Tensor, x: Tensor) -> Tensor:
    """(B, ...) deviations of the images for (n * B, ...) writes."""
    return scale if len(scale) == len(x) else scale.repeat(len(x) // len(scale), *[1] * (x.dim() - 1))


def _check(found: Direct, logits: Tensor, layout: HeadLayout) -> None:
    """UserError unless the parts add up: then something on the way is not linear."""
    total, largest = sum(part.sum(1) for part in found), max(part.abs().amax() for part in found)
    error = (total - logits).abs().amax()
    if not error <= _AGREE * largest and bool(logits.isfinite().all()):
        raise UserError(
            f"logit_attribution: what {layout.num_heads} heads and the other parts write misses the logits by "
            f"{error:.3g}, expected the same sum. Something between the last block and the logits is not linear."
        )
