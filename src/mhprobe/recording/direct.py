"""The direct path: what each part of a model writes into each logit, past all blocks that come later.

Gandelsman, Efros & Steinhardt, 2024, arXiv 2310.05916; Balasubramanian, Basu & Feizi, 2024, arXiv 2406.01583. The
residual stream is a sum of writes. Once the norms' standard deviations are held at what they were, all that stands
between stream and logits (Swin's patch merging, the last norm, pooling, the classifier) is linear, so that each write
can be sent through it alone, and the results add up to the logits. What a head does by way of later blocks counts for
those blocks.

Shapes: B images, T tokens, H heads of one site, D head width, C channels, A heads of all sites, K classes, n writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

_PIECE = 2**24  # numbers of writes that are sent at once
_AGREE = 1e-2  # of the largest part; what is left open is no rounding but a part that is not linear


def direct_logits(model: nn.Module, z: Sequence[Tensor], stream: Sequence[Stream], logits: Tensor) -> Direct:
    """What each part writes into the logits.

    z: per site (B, T, H, D) before the gate. stream: per block. logits: (B, K), what all parts add up to.

    UserError for a model whose path is not known, or is not linear.
    """
    backbone, gates = backbone_of(model), gates_of(model)
    family, layout = family_of(backbone), gates.layout
    with inspecting(model, gradients=False):
        path = _Path(family.direct_path(backbone), stream)
        heads, biases = [], [torch.zeros_like(wide(logits)) for _ in layout.blocks]
        for number, (site, gate_H) in enumerate(zip(layout.sites, layout.split(gates.effective()), strict=True)):
            output_HDC = family.head_weights(backbone, site).output * gate_H.to(z[number])[:, None, None]
            heads.append(_sent(path, site.block, z[number], output_HDC))
            biases[site.block] += path.send(_bias(family, backbone, site, stream[site.block].before), site.block)
        mlps = [path.send(wide(each.after) - wide(each.middle), block) for block, each in enumerate(stream)]
        found = Direct(
            torch.cat(heads, 1),
            torch.stack(biases, 1),
            torch.stack(mlps, 1),
            path.send(wide(stream[0].before), 0)[:, None],
            path.constant()[:, None],
        )
    _check(found, logits, layout)
    return found


def _bias(family: Any, backbone: nn.Module, site: Any, like: Tensor) -> Tensor:
    """(B, T, C) what the site's projection adds to every token, whatever its heads do."""
    bias, scale = family.seam(backbone, site).output.bias, family.layer_scale(backbone, site)
    bias = like.new_zeros(like.shape[-1]) if bias is None else bias.detach()
    return wide(bias if scale is None else bias * scale).expand(like.shape)


def _sent(path: _Path, block: int, z_BTHD: Tensor, output_HDC: Tensor) -> Tensor:
    """(B, H, K) each head's write, sent to the logits."""
    if not path.merges_behind(block):  # tokens can be summed before they are projected
        pooled_BHD = path.pooled(wide(z_BTHD).flatten(2)).unflatten(1, z_BTHD.shape[2:])
        write_HBC = torch.einsum("bhd,hdc->hbc", pooled_BHD, wide(output_HDC))
        return path.last(write_HBC.flatten(0, 1)).unflatten(0, write_HBC.shape[:2]).transpose(0, 1)
    size = z_BTHD.shape[0] * z_BTHD.shape[1] * output_HDC.shape[-1]
    found = []
    for heads in torch.arange(len(output_HDC)).split(max(1, _PIECE // max(1, size))):
        write_nBTC = torch.einsum("bthd,hdc->hbtc", wide(z_BTHD[:, :, heads]), wide(output_HDC[heads]))
        found.append(path.send(write_nBTC.flatten(0, 1), block).unflatten(0, (len(heads), -1)))
    return torch.cat(found).transpose(0, 1)


class _Path:
    """The linear way from behind each block to the logits, on these images."""

    def __init__(self, path: DirectPath, stream: Sequence[Stream]) -> None:
        self.between = [
            None if step is None else _Frozen(step, wide(before.after))
            for step, before in zip(path.between, [stream[0], *stream], strict=False)
        ]
        self.pool, self.norm = path.pool, _Frozen(path.norm, wide(stream[-1].after))
        self.head = _Frozen(path.head, path.pool(path.norm(wide(stream[-1].after))))
        self.start = torch.zeros_like(wide(stream[0].before))

    def merges_behind(self, block: int) -> bool:
        return any(step is not None for step in self.between[block + 1 :])

    def send(self, write: Tensor, block: int) -> Tensor:
        """(n * B, T, C) written in ``block`` -> (n * B, K). What stands in front of the block is behind it."""
        for step in self.between[block + 1 :]:
            write = write if step is None else step.linear(write)
        return self.last(self.pooled(write))

    def pooled(self, x: Tensor) -> Tensor:
        """(n * B, T, C) -> (n * B, C): what the last norm's deviations and the pooling leave of it, for any C."""
        scale = self.norm.scales[0] if self.norm.scales else x.new_ones(1, 1, 1)
        return self.pool(x * _for_all(scale, x))

    def last(self, x: Tensor) -> Tensor:
        """(n, C) pooled -> (n, K): the rest of the last norm, and the classifier."""
        return self.head.linear(self.norm.unscaled(x))

    def constant(self) -> Tensor:
        """(B, K) the biases on the way."""
        x = self.start
        for step in self.between[1:]:
            x = x if step is None else step.affine(x)
        return self.head.affine(self.pool(self.norm.affine(x)))


class _Frozen:
    """A step with its norms' deviations held at what they are for ``x``: affine, and its linear part."""

    def __init__(self, step: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.step = step
        self.scales: list[Tensor] = []
        with _Norms(self.scales, learn=True):
            step(x)

    def affine(self, x: Tensor) -> Tensor:
        with _Norms(self.scales):
            return self.step(x)

    def linear(self, x: Tensor) -> Tensor:
        with _Norms(self.scales, biases=False):
            return self.step(x)

    def unscaled(self, x: Tensor) -> Tensor:
        """The linear part without the deviations."""
        with _Norms([x.new_ones(1, 1)] * len(self.scales), biases=False):
            return self.step(x)


class _Norms(TorchFunctionMode):
    """While it is on, norms divide by the deviations in ``scales``, in the order of their calls.

    learn: they are noted instead. biases: whether norms and linear layers add theirs.
    """

    def __init__(self, scales: list[Tensor], learn: bool = False, biases: bool = True) -> None:
        super().__init__()
        self.scales, self.learn, self.biases, self.at = scales, learn, biases, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
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
            self.scales.append((x.square().mean(-1, keepdim=True) + eps).rsqrt())
        scale = self.scales[self.at]
        self.at += 1
        x = x * _for_all(scale, x)
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
