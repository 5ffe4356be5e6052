"""Heads removed in the order of their importance cost less than heads removed at random."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, over_images
from mhprobe.claims.parts.masked import at_share

SHARES = (0.2, 0.4, 0.6)


def effect(evidence: Evidence) -> Estimate:
    """Accuracy in the order of importance minus that of random orders, mean over three shares of the heads."""
    by_score, drawn = evidence.path("importance"), evidence.path("random")
    masks = [torch.cat([at_share(by_score, share), at_share(drawn, share)]) for share in SHARES]
    right = evidence.right(torch.cat(masks)).double().unflatten(0, (len(SHARES), 1 + len(drawn)))
    by_draw = right[:, 1:].mean((0, 2))
    drawn_error = float(by_draw.std()) / len(by_draw) ** 0.5  # over draws of orders, beside images
    return over_images((right[:, 0] - right[:, 1:].mean(1)).mean(0), drawn=drawn_error)


CLAIM = Claim(
    says="The order of gradient importance beats random orders.",
    source="Michel et al. 2019, Figure 3",
    network="a translation model, BERT",
    effect=effect,
    unit="of accuracy",
    matters=0.01,
    because="a point is what a run is known to on 10,000 images",
)
