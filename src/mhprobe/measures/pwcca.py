"""Canonical correlation between heads, weighted by how much of a head's output each correlated direction makes up.

Morcos, Raghu & Bengio, 2018, arXiv 1806.05759. Head a's canonical variate h_i gets the weight
alpha_i = sum over a's channels j of |<h_i, x_j>|, normalised to sum 1; the value is sum of alpha_i
rho_i. With a's covariance S = Q L Q^T and whitening W = Q L^(-1/2), the variates are X W U (U: left
singular vectors of the whitened cross-covariance), so that <h_i, x_j> = (Q L^(1/2) U)_ji up to one
factor. The released code (google/svcca, pwcca.py) leaves out the whitening and does not centre what
it projects, so its weights are not those of the paper.
"""

import torch
from torch import Tensor

from mhprobe.measures.parts.moments import Parts
from mhprobe.measures.parts.pairs import PairMeasure
from mhprobe.measures.svcca import behind, leading, whitening


class PWCCA(PairMeasure):
    """Projection-weighted canonical correlation: how much of head a's output is, linearly, in head b's.

    Columns: value (A, A) in [0, 1]: [a, b] weighs by the channels of a, so it is not symmetric;
    reverse (A, A): [a, b] weighs by those of b (a table lists each pair once); dims (A,) number of
    directions that vary. Options, other columns, UserError and warnings as in PairMeasure.
    """

    fooled_by = "by definition: a rotation of a head's channels, which changes nothing else, changes its weights"
    label = "PWCCA: weighted canonical correlation"
    equal_up_to = "an invertible linear map"

    def finish(self) -> dict[str, Tensor]:
        columns = super().finish()
        return {**columns, "reverse": columns["value"].mT.clone()}

    def compare(self, heads: Parts) -> dict[str, Tensor]:
        used_HD = leading(heads, variance=1.0)
        whiten_HDD = whitening(heads, used_HD)
        root_HDD = heads.direction * heads.spectrum.sqrt()[:, None]
        counted_HHD = ~behind(used_HD)
        value_HH = heads.spectrum.new_empty(len(used_HD), len(used_HD))
        for a in range(len(used_HD)):
            u, rho, vh = torch.linalg.svd(whiten_HDD[a].mT @ heads.crosses(a) @ whiten_HDD[a:])
            value_HH[a, a:] = _weighted(rho, root_HDD[a] @ u, counted_HHD[a, a:])
            value_HH[a:, a] = _weighted(rho, root_HDD[a:] @ vh.mT, counted_HHD[a, a:])
        return {"value": value_HH, "dims": used_HD.sum(1)}


def _weighted(rho_PD: Tensor, loading_PDD: Tensor, counted_PD: Tensor) -> Tensor:
    """(P,) mean of the correlations that count, each weighted by the channels' (rows') loadings on its variate."""
    alpha_PD = loading_PDD.abs().sum(1) * counted_PD
    weight_P = alpha_PD.sum(1)  # 0 for a dead head, whose value PairMeasure replaces
    return (alpha_PD * rho_PD.clamp(0, 1)).sum(1) / weight_P.where(weight_P > 0, 1.0)
