"""Canonical correlations from second moments: whiten two sets of channels, take the SVD of what is left between them.

Shapes: H heads of a group (or layers), D their width, P pairs.
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.measures.parts.chance import chance_correlations
from mhprobe.measures.parts.moments import Parts

Average = Callable[[Tensor], Tensor]


def axes(layout: HeadLayout) -> dict[str, list[str]]:
    """Return the columns' names of correlations: by their index, from the largest."""
    names = [f"rho_{number + 1}" for number in range(max(site.head_dim for site in layout.sites))]
    return {"rho": names, "null_rho": names}


def leading(heads: Parts, variance: float) -> Tensor:
    """(H, D) bool: the leading directions that explain this share of a head's variance; 1 for all that vary."""
    before = heads.spectrum.cumsum(1) - heads.spectrum  # a direction is used as long as those before it do not suffice
    return (before < variance * heads.spectrum.sum(1, keepdim=True)) & (heads.spectrum > 0)


def whitening(heads: Parts, used_HD: Tensor) -> Tensor:
    """(H, D, D) maps W with W^T covariance W = 1 on the used directions.

    Directions that are not used become zero columns, which add zero singular values: all pairs fit one batch.
    """
    return heads.direction * torch.where(used_HD, heads.spectrum, torch.inf).rsqrt()[:, None]


def correlations(heads: Parts, used_HD: Tensor) -> Tensor:
    """(H, H, D) canonical correlations of all pairs in falling order, NaN behind the last."""
    whiten_HDD = whitening(heads, used_HD)
    rho_HHD = heads.between(lambda a, row: torch.linalg.svdvals(whiten_HDD[a].mT @ row @ whiten_HDD[a:]))
    return rho_HHD.clamp_(0, 1).masked_fill_(behind(used_HD), torch.nan)


def behind(used_HD: Tensor) -> Tensor:
    """(H, H, D) bool: places behind the last correlation of a pair, which has min(used) of them."""
    dims = used_HD.sum(1)
    return torch.arange(used_HD.shape[1], device=dims.device) >= torch.minimum(dims[:, None], dims)[..., None]


def mean(rho: Tensor) -> Tensor:
    """(..., D) -> (...) mean of the correlations that are not NaN; 0 where there is none."""
    return rho.nanmean(-1).nan_to_num(0)


def compare(heads: Parts, variance: float, average: Average = mean) -> dict[str, Tensor]:
    """value (H, H) the average correlation, dims (H,) used directions, and rho (H, H, D) as of ``correlations``."""
    used_HD = leading(heads, variance)
    rho_HHD = correlations(heads, used_HD)
    return {"value": average(rho_HHD), "dims": used_HD.sum(1), "rho": rho_HHD}


def null(heads: Parts, variance: float, draws: int, seed: int, average: Average = mean) -> dict[str, Tensor]:
    """null (H, H) and null_rho (H, H, D) of independent heads that keep as many directions.

    Means over ``draws``; 0 and NaN where a head keeps none.
    """
    used_HD = leading(heads, variance)
    dims = used_HD.sum(1)
    level_HH = used_HD.new_zeros(len(dims), len(dims), dtype=torch.float64)
    rho_HHD = torch.full((*level_HH.shape, used_HD.shape[1]), torch.nan, dtype=torch.float64, device=dims.device)
    for few, many in itertools.combinations_with_replacement(dims[dims > 0].unique().tolist(), 2):
        drawn = torch.from_numpy(chance_correlations(int(heads.rows), few, many, draws, seed)).to(dims.device)
        pair = (dims[:, None] == few) & (dims == many)
        pair = pair | pair.mT
        level_HH[pair] = average(drawn).mean()
        rho_HHD[..., :few][pair] = drawn.mean(0)
    return {"null": level_HH, "null_rho": rho_HHD}
