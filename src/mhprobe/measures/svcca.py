"""Do two heads compute the same thing up to a linear map? Canonical correlation of their principal directions.

Raghu, Gilmer, Yosinski & Sohl-Dickstein, 2017, arXiv 1706.05806. Rows are the tokens of all images, channels a head's
output before its gate. Centre; keep per head the principal directions that explain 99 % of the variance; whiten; the
singular values of the whitened cross-covariance are the canonical correlations rho. The authors' code (google/svcca)
needs the rows and works pair by pair; here second moments serve all pairs of a group.

Shapes: A heads of all sites, R the largest head width.
"""

from typing import Any

from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.measures.parts import canonical
from mhprobe.measures.parts.moments import Parts
from mhprobe.measures.parts.pairs import PairMeasure, Pairs


class SVCCA(PairMeasure):
    """Mean canonical correlation between heads, with the level that chance alone would reach.

    variance: share of each head's variance that the used directions explain.

    Columns: value (A, A) in [0, 1]: sum(rho) / min(dims); dims (A,) number of used directions; rho (A, A, R)
    correlations in falling order, NaN behind the last; null_rho (A, A, R) the same by chance. Other options and
    columns, UserError and warnings as in PairMeasure.
    """

    fooled_by = "by definition: whitened directions count alike: to share a faint one is as good as a strong one"
    label = "SVCCA: mean canonical correlation"
    also = ("coefficients",)
    equal_up_to = "a linear map of their main directions"

    def __init__(self, layout: HeadLayout, pairs: Pairs = "layer", variance: float = 0.99, **kwargs: Any) -> None:
        super().__init__(layout, pairs, **kwargs)
        if not 0 < variance <= 1:
            raise UserError(f"{self.name}: variance is a share above 0 and at most 1, got {variance}.")
        names = [f"rho_{number + 1}" for number in range(max(site.head_dim for site in layout.sites))]
        self.axes = {"rho": names, "null_rho": names}
        self.variance = variance

    def compare(self, heads: Parts) -> dict[str, Tensor]:
        return canonical.compare(heads, self.variance)
