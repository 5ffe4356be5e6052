"""Claims of Gandelsman, Efros & Steinhardt, 2024, arXiv 2310.05916: direct effects of heads on the logits."""

import torch
from scipy.stats import norm
from torch import Tensor

from mhprobe.claims.parts.claim import Margin, claim
from mhprobe.claims.parts.estimates import Estimate, over_heads, share, third_of
from mhprobe.claims.parts.evidence import Columns, Evidence


@claim(
    says="Some heads have a class as their role.",
    source="Gandelsman et al. 2024, arXiv 2310.05916; CLIP",
    margin=Margin(0.2, "of the heads", "one head in five"),
)
def heads_have_class_roles(of: Evidence, logit_attribution: Columns) -> Estimate:
    """Share of heads whose direct effect on one class's images is thrice that on the average class.

    The class is the one with the largest effect, so the interval that this has to lie in holds for all classes at once.
    """
    own, p = logit_attribution["own"].double(), logit_attribution["own_p"]
    largest, top = own.nan_to_num(-torch.inf).max(1, keepdim=True)
    errors = torch.from_numpy(norm.isf(p.gather(1, top).numpy() / 2))  # at the least, from 0: p is Holm's
    half = largest.abs() * norm.isf(0.025 / own.shape[1]) / errors
    needed = 3 * own.abs().nanmean(1, keepdim=True)
    sure, possible = largest - half >= needed, largest + half >= needed
    return share(sure.squeeze(1), possible.squeeze(1), images=logit_attribution["images"])


@claim(
    says="Heads of the last blocks carry most of the direct effect.",
    source="Gandelsman et al. 2024, arXiv 2310.05916; CLIP",
    margin=Margin(0.1, "of the direct effect, beyond a half", "three fifths are most"),
)
def late_blocks_carry_the_direct_effect(of: Evidence, logit_attribution: Columns) -> Estimate:
    """Share that the late third of the blocks has in the size of all heads' direct contributions, minus a half."""
    size, late = logit_attribution["size"], third_of(of.layout) == 2

    def part(kept: Tensor) -> float:
        return float(size[kept][late[kept]].sum() / size[kept].sum())

    return over_heads(of.layout, part, size.isfinite(), chance=float(late.double().mean())).beyond(0.5)
