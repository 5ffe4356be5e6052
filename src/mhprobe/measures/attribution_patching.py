"""Attribution patching: what activation patching would find, from one slope per image instead of one run per head.

Nanda, 2023; Kramar, Lieberum, Shah & Nanda, 2024, arXiv 2403.00745 (AtP*, here its GradDrop). See
activation_patching.py and recording/patching.py.
"""

from collections.abc import Sequence
from typing import Any

from mhprobe.heads import HeadLayout
from mhprobe.measures.activation_patching import ActivationPatching


class AttributionPatching(ActivationPatching):
    """First-order estimate of activation patching. Options and UserError as there.

    Columns as in ActivationPatching, of the estimate; with estimates=[atp, graddrop] also graddrop,
    a size that does not fall where effects cancel, and its rank correlation with size.
    """

    fooled_by = "by definition: a head whose effect is not linear between both images: early heads come out too small"
    also = ()

    def __init__(
        self, layout: HeadLayout, estimates: Sequence[str] = ("atp",), **kwargs: Any
    ) -> None:
        super().__init__(layout, estimates=estimates, **kwargs)
