"""Share of heads whose direct effect on one class's images is thrice that on the average class.

The class is the one with the largest effect, so the interval that this has to lie in holds for all classes at once.
"""

import torch
from scipy.stats import norm

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, share


@claim(
    says="Some heads have a class as their role.",
    source="Gandelsman et al. 2024, arXiv 2310.05916; CLIP",
    margin=Margin(0.2, "of the heads", "one head in five"),
)
def effect(of: Evidence, logit_attribution: Columns) -> Estimate:
    by_class, p = logit_attribution["own"].double(), logit_attribution["own_p"]
    largest, top = by_class.nan_to_num(-torch.inf).max(1, keepdim=True)
    errors = torch.from_numpy(norm.isf(p.gather(1, top).numpy() / 2))  # at the least, from 0: p is Holm's
    half = largest.abs() * norm.isf(0.025 / by_class.shape[1]) / errors
    needed = 3 * by_class.abs().nanmean(1, keepdim=True)
    sure, possible = largest - half >= needed, largest + half >= needed
    return share(sure.squeeze(1), possible.squeeze(1), images=logit_attribution["images"])
