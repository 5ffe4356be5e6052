"""Accuracy in the order of importance minus that of random orders, mean over three shares of the heads."""

import torch

from mhprobe.claims.parts import POINT, Estimate, Evidence, at_share, claim, over_images


@claim(
    says="The order of gradient importance beats random orders.",
    source="Michel et al. 2019, Figure 3; a translation model, BERT",
    figure="michel/figure_3",
    margin=POINT,
)
def effect(of: Evidence) -> Estimate:
    by_score, drawn = of.path("importance"), of.path("random")
    masks = [torch.cat([at_share(by_score, part), at_share(drawn, part)]) for part in (0.2, 0.4, 0.6)]
    right = of.right(torch.cat(masks)).double().unflatten(0, (len(masks), 1 + len(drawn)))
    return over_images((right[:, :1] - right[:, 1:]).mean(0))
