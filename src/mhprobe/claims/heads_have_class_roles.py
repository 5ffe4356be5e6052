"""Share of heads whose direct effect on one class's images is significant, and thrice that on the average class."""

import torch

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, share


@claim(
    says="Some heads have a class as their role.",
    source="Gandelsman et al. 2024, arXiv 2310.05916; CLIP",
    margin=Margin(0.2, "of the heads", "one head in five"),
)
def effect(of: Evidence, logit_attribution: Columns) -> Estimate:
    own, p = logit_attribution["own"], logit_attribution["own_p"]
    top = own.nan_to_num(-torch.inf).argmax(1, keepdim=True)
    far = own.gather(1, top).squeeze(1) >= 3 * own.abs().nanmean(1)
    return share(far & (p.gather(1, top).squeeze(1) < 0.05), far, images=logit_attribution["images"])
