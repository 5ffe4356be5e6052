"""Do two heads see the same images and tokens as alike? Linear centred kernel alignment.

Kornblith, Norouzi, Lee & Hinton, 2019, arXiv 1905.00414: ||C_ab||_F^2 / (||C_aa||_F ||C_bb||_F)
with the covariances C. Rotations and one scale per head do not change it. Debiased: HSIC is
replaced by its unbiased estimate (Song et al., 2012, JMLR 13:1393, equation 4). For linear kernels
sums over centred rows suffice: with S = X^T Y, k = sum |x_i|^2, l = sum |y_i|^2 and D = sum |x_i|^2
|y_i|^2,

    n (n - 3) HSIC = ||S||_F^2 - n / (n - 2) D + k l / ((n - 1) (n - 2)).

D is summed without centring, with sum x |y|^2, and centred at the end. That loses digits of
float64's 16: 4 where a head's mean is 10 times its spread, 12 where it is 1,000 times as large.
Shapes: N rows, C channels of a group.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.measures.parts.jackknife import fold_of
from mhprobe.measures.parts.moments import Parts, Seen
from mhprobe.measures.parts.pairs import PairMeasure, Pairs, outputs_side_by_side
from mhprobe.stats.intervals import REAL, SHARE

_CHUNK = 4096  # rows cast to float64 at a time


class CKA(PairMeasure):
    """Linear centred kernel alignment between heads.

    debiased: use the unbiased estimate: independent heads then score 0 on average, at any number of
    rows; it needs 4.

    Columns: value (A, A) in [0, 1], debiased also a little below 0 or above 1; null (A, A),
    debiased by what independent rows would give. Other options and columns, UserError and warnings
    as in PairMeasure.
    """

    fooled_by = "by definition: one large direction that all heads share, e.g. brightness, makes any two of them alike"
    label = "linear CKA"
    equal_up_to = "a rotation and a scale"

    def __init__(
        self, layout: HeadLayout, pairs: Pairs = "layer", debiased: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(layout, pairs, **kwargs)
        self.debiased = debiased
        self.within = REAL if debiased else SHARE

    def declare(self, shapes: list[tuple[int, int]]) -> None:
        before = bool(self.shapes)
        super().declare(shapes)
        for number, (_, width) in enumerate(self.shapes if self.debiased and not before else ()):
            heads = len(self.members(number))
            zeros = functools.partial(
                torch.zeros, self.jackknife, dtype=torch.float64, device=self.device
            )
            self.add_state(f"cubic_{number}", zeros(heads * width, heads))  # sum x |y|^2
            self.add_state(f"quartic_{number}", zeros(heads, heads))  # sum |x|^2 |y|^2

    def add(self, batch: HeadBatch) -> None:
        super().add(batch)
        fold_V = fold_of(batch, self.null_folds) % self.jackknife
        for number, sites in enumerate(self.groups if self.debiased else ()):
            width = self.layout.sites[sites[0]].head_dim
            x_VTC = outputs_side_by_side(batch, sites, self.skipped[number])[batch.valid]
            for fold in range(self.jackknife):
                for x_NC in x_VTC[fold_V == fold].flatten(0, 1).split(_CHUNK):
                    x_NC = x_NC.double()
                    size_NH = x_NC.square().unflatten(1, (-1, width)).sum(2)
                    getattr(self, f"cubic_{number}")[fold].addmm_(x_NC.mT, size_NH)
                    getattr(self, f"quartic_{number}")[fold].addmm_(size_NH.mT, size_NH)

    def parts(self, group: int) -> Seen:
        seen = super().parts(group)
        if not self.debiased:
            return seen
        cubic, quartic = (getattr(self, f"{name}_{group}") for name in ("cubic", "quartic"))

        def with_fourth(without: int | None) -> Parts:
            others = [fold for fold in range(self.jackknife) if fold != without]
            return _Debiased(
                **vars(seen(without)), cubic=cubic[others].sum(0), quartic=quartic[others].sum(0)
            )

        return with_fourth

    def finish(self) -> dict[str, Tensor]:
        rows = min(int(getattr(self, f"rows_{number}").sum()) for number in range(len(self.groups)))
        if self.debiased and rows < 4:
            raise UserError(
                f"cka: the debiased estimate needs at least 4 rows, got {rows}. Use more images."
            )
        return super().finish()

    def compare(self, heads: Parts) -> dict[str, Tensor]:
        if not self.debiased:
            return {"value": linear_cka(heads)}
        shared_HH = _debiased(heads)
        return {"value": _normalised(shared_HH, shared_HH.diagonal())}

    def permuted(self, heads: Parts, deranged: Parts) -> dict[str, Tensor]:
        if not self.debiased:
            return super().permuted(heads, deranged)
        trace_H, n = heads.spectrum.sum(1), heads.rows
        shared_HH = (n - 1) ** 2 * _shared(deranged) - (n - 1) * torch.outer(trace_H, trace_H)
        return {"value": _normalised(shared_HH, _debiased(heads).diagonal())}


@dataclass(frozen=True)
class _Debiased(Parts):
    """Higher moments, uncentred.

    cubic: (C, H) sum of x |y|^2. quartic: (H, H) sum of |x|^2 |y|^2.
    """

    cubic: Tensor
    quartic: Tensor


def _debiased(heads: Parts) -> Tensor:
    """(H, H) n (n - 3) HSIC of the heads."""
    n = heads.rows.double()
    trace_H = heads.spectrum.sum(1)
    traces_HH = (n - 1) / (n - 2) * torch.outer(trace_H, trace_H)
    return (n - 1) ** 2 * _shared(heads) - n / (n - 2) * _sizes(heads) + traces_HH


def _sizes(heads: Parts) -> Tensor:
    """(H, H) sum over rows of |x|^2 |y|^2 of the centred heads, from the sums of the uncentred."""
    assert isinstance(heads, _Debiased)  # those of a debiased measure are
    n, mean_size_H = heads.rows, heads.mean.square().sum(1)
    size_H = (n - 1) * heads.spectrum.sum(1) + n * mean_size_H  # sum |x|^2
    along_HH = torch.einsum("hd,hdg->hg", heads.mean, heads.cubic.unflatten(0, heads.mean.shape))
    cross_HH = heads.between(
        lambda a, row: torch.einsum("d,pde,pe->p", heads.mean[a], row, heads.mean[a:])
    )
    one_sided_HH = torch.outer(size_H + n / 2 * mean_size_H, mean_size_H) - 2 * along_HH
    return heads.quartic + 4 * (n - 1) * cross_HH + one_sided_HH + one_sided_HH.mT


def linear_cka(heads: Parts) -> Tensor:
    """(H, H) alignment of all pairs."""
    return _normalised(_shared(heads), heads.spectrum.square().sum(1))


def _shared(heads: Parts) -> Tensor:
    """(H, H) squared Frobenius norms of the covariances."""
    return heads.between(lambda a, row: row.square().sum((1, 2)))


def _normalised(shared_HH: Tensor, own_H: Tensor) -> Tensor:
    """Divide by the root of what each head shares with itself; 0 where an estimate of that is not positive."""
    scale_H = torch.where(own_H > 0, own_H, torch.inf).rsqrt()
    return shared_HH * torch.outer(scale_H, scale_H)
