"""Canonical correlation between heads with all their directions: SVCCA without its first cut.

Hotelling, 1936; as google/svcca's ``get_cca_similarity`` computes it when no SVD is taken before (Raghu et al., 2017,
arXiv 1706.05806). Directions that do not vary at all are left out, where that code adds an epsilon to the diagonal.
Its ``mean`` runs over the leading correlations only, up to 98 % of their sum; that is ``mean="leading"`` here.

Shapes: H heads of a group, D head width, A heads of all sites, R the largest head width.
"""

from typing import Any, Literal

from torch import Tensor

from mhprobe.errors import one_of
from mhprobe.heads import HeadLayout
from mhprobe.measures.parts.pairs import Pairs
from mhprobe.measures.svcca import SVCCA

Mean = Literal["all", "leading"]

_LEADING = 0.98  # of the correlations' sum, google/svcca's threshold


class CCA(SVCCA):
    """Mean canonical correlation of all directions of two heads.

    Invariant to any invertible linear map of a head; directions with hardly any variance count as much as the others.

    mean: over "all" correlations, or over the "leading" ones, whose sum first reaches 98 % of the total (google/svcca).
        The latter hides how many correlations are small: value and null both come out larger. UserError for others.

    Columns as SVCCA's: value and null (A, A) in [0, 1], dims (A,), rho and null_rho (A, A, R), and the rest.
    """

    fooled_by = "by definition: a direction with next to no variance, perhaps noise, counts as much as the first"
    label = "CCA: mean canonical correlation"
    equal_up_to = "an invertible linear map"

    def __init__(self, layout: HeadLayout, pairs: Pairs = "layer", mean: Mean = "all", **kwargs: Any) -> None:
        super().__init__(layout, pairs, variance=1.0, **kwargs)
        one_of(self.name, "mean", mean, Mean)
        if mean == "leading":
            self.average = _leading_mean


def _leading_mean(rho: Tensor) -> Tensor:
    """(..., D) -> (...) mean of the leading correlations: one counts as long as those before it do not suffice."""
    known = rho.nan_to_num(0)
    before = known.cumsum(-1) - known
    counts = before < _LEADING * known.sum(-1, keepdim=True)
    return (known * counts).sum(-1) / counts.sum(-1).clamp(min=1)
