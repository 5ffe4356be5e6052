"""Canonical correlations from second moments: whiten two sets of channels, take the SVD of what is left between them.

Shapes: H heads of a group (or layers), D their width.
"""

import torch
from torch import Tensor

from mhprobe.measures.parts.moments import Parts


def leading(heads: Parts, variance: float) -> Tensor:
    """(H, D) bool: leading directions that explain this share of a head's variance; 1 for all that vary."""
    before = heads.spectrum.cumsum(1) - heads.spectrum  # a direction counts while those before it explain too little
    return (before < variance * heads.spectrum.sum(1, keepdim=True)) & (heads.spectrum > 0)


def whitening(heads: Parts, used_HD: Tensor) -> Tensor:
    """(H, D, D) maps W with W^T covariance W = 1 on the used directions.

    Unused directions become zero columns, which add zero singular values, so that all pairs fit one batch.
    """
    return heads.direction * torch.where(used_HD, heads.spectrum, torch.inf).rsqrt()[:, None]


def behind(used_HD: Tensor) -> Tensor:
    """(H, H, D) bool: places behind the last correlation of a pair, which has min(dims) of them."""
    dims = used_HD.sum(1)
    return torch.arange(used_HD.shape[1], device=dims.device) >= torch.minimum(dims[:, None], dims)[..., None]


def compare(heads: Parts, variance: float) -> dict[str, Tensor]:
    """value (H, H) mean correlation, 0 without any; dims (H,) used directions; rho (H, H, D) correlations.

    Correlations fall along D, and are NaN behind the last.
    """
    used_HD = leading(heads, variance)
    whiten_HDD = whitening(heads, used_HD)
    rho_HHD = heads.between(lambda a, row: torch.linalg.svdvals(whiten_HDD[a].mT @ row @ whiten_HDD[a:]))
    rho_HHD.clamp_(0, 1).masked_fill_(behind(used_HD), torch.nan)
    return {"value": rho_HHD.nanmean(-1).nan_to_num(0), "dims": used_HD.sum(1), "rho": rho_HHD}
