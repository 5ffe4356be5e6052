"""Do two heads compute the same thing up to a linear map? Canonical correlation of their principal directions.

Raghu, Gilmer, Yosinski & Sohl-Dickstein, 2017, arXiv 1706.05806. Rows are the tokens of all images,
channels a head's output before its gate. Centre; keep per head the principal directions that
explain 99 % of the variance; whiten; the singular values of the whitened cross-covariance are the
canonical correlations rho. Second moments suffice.
Shapes: R the largest head width.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Meaning
from mhprobe.measures.parts.moments import Parts
from mhprobe.measures.parts.pairs import PairMeasure, Pairs


class SVCCA(PairMeasure):
    """Mean canonical correlation between heads, with the level that chance alone would reach.

    variance: share of each head's variance that the used directions explain.

    Columns: value (A, A) in [0, 1]: sum(rho) / min(dims); dims (A,) number of used directions; rho
    (A, A, R) correlations in falling order, NaN behind the last; null_rho (A, A, R) the same by
    chance. Other options and columns, UserError and warnings as in PairMeasure.
    """

    fooled_by = "by definition: whitened directions count alike: to share a faint one is as good as a strong one"
    label = "SVCCA: mean canonical correlation"
    also = ("coefficients",)
    along: ClassVar[Mapping[str, Meaning]] = {
        "rho": Meaning("canonical correlation, the largest first", "the two heads share more"),
        "null_rho": Meaning(
            "canonical correlation of unrelated heads", "more is shared by chance alone"
        ),
    }
    equal_up_to = "a linear map of their main directions"

    def __init__(
        self, layout: HeadLayout, pairs: Pairs = "layer", variance: float = 0.99, **kwargs: Any
    ) -> None:
        super().__init__(layout, pairs, **kwargs)
        if not 0 < variance <= 1:
            raise UserError(
                f"{self.name}: variance is a share above 0 and at most 1, got {variance}."
            )
        names = [
            f"rho_{number + 1}" for number in range(max(site.head_dim for site in layout.sites))
        ]
        self.axes = {"rho": names, "null_rho": names}
        self.variance = variance

    def compare(self, heads: Parts) -> dict[str, Tensor]:
        return correlated(heads, self.variance)


def leading(heads: Parts, variance: float) -> Tensor:
    """(H, D) bool: leading directions that explain this share of a head's variance; 1 for all that vary."""
    before = (
        heads.spectrum.cumsum(1) - heads.spectrum
    )  # a direction counts while those before it explain too little
    return (before < variance * heads.spectrum.sum(1, keepdim=True)) & (heads.spectrum > 0)


def whitening(heads: Parts, used_HD: Tensor) -> Tensor:
    """(H, D, D) maps W with W^T covariance W = 1 on the used directions; zero columns for the others."""
    return heads.direction * torch.where(used_HD, heads.spectrum, torch.inf).rsqrt()[:, None]


def behind(used_HD: Tensor) -> Tensor:
    """(H, H, D) bool: places behind the last correlation of a pair, which has min(dims) of them."""
    dims = used_HD.sum(1)
    return (
        torch.arange(used_HD.shape[1], device=dims.device)
        >= torch.minimum(dims[:, None], dims)[..., None]
    )


def correlated(heads: Parts, variance: float) -> dict[str, Tensor]:
    """value (H, H) mean correlation, 0 without any; dims (H,) used directions; rho (H, H, D), falling, then NaN."""
    used_HD = leading(heads, variance)
    whiten_HDD = whitening(heads, used_HD)
    rho_HHD = heads.between(
        lambda a, row: torch.linalg.svdvals(whiten_HDD[a].mT @ row @ whiten_HDD[a:])
    )
    rho_HHD.clamp_(0, 1).masked_fill_(behind(used_HD), torch.nan)
    return {"value": rho_HHD.nanmean(-1).nan_to_num(0), "dims": used_HD.sum(1), "rho": rho_HHD}
