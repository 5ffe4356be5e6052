"""A fifth of the heads, the least important ones, costs less than a point of accuracy."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.masked import at_share, loss


def effect(evidence: Evidence) -> Estimate:
    """Accuracy lost without the fifth of the heads that validation images call least important."""
    return loss(evidence, at_share(evidence.path("importance"), 0.2)[0])


CLAIM = Claim(
    says="A fifth of the heads goes for less than a point.",
    source="Michel et al. 2019, Figure 3",
    network="a translation model, BERT",
    effect=effect,
    unit="of accuracy",
    matters=0.01,
    because="the paper calls it no noticeable loss; a point is what a run is known to on 10,000 images",
    shape="at most",
)
