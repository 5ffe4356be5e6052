"""Canonical correlation between heads with all their directions: SVCCA without its first cut.

Hotelling, 1936. google/svcca's ``get_cca_similarity`` adds an epsilon to the diagonal where we
leave out directions that do not vary, and averages only the leading correlations, up to 98 % of
their sum.
"""

from typing import Any

from mhprobe.heads import HeadLayout
from mhprobe.measures.parts.pairs import Pairs
from mhprobe.measures.svcca import SVCCA


class CCA(SVCCA):
    """Mean canonical correlation of all directions of two heads.

    No invertible linear map of a head changes it. Options but ``variance``, columns, UserError and
    warnings as in SVCCA.
    """

    fooled_by = "by definition: a direction with next to no variance, perhaps noise, counts as much as the first"
    label = "CCA: mean canonical correlation"
    equal_up_to = "an invertible linear map"

    def __init__(self, layout: HeadLayout, pairs: Pairs = "layer", **kwargs: Any) -> None:
        super().__init__(layout, pairs, variance=1.0, **kwargs)
