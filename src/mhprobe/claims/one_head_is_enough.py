"""In most blocks one head does what all of them do."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, block_of
from mhprobe.claims.parts.masked import loss
from mhprobe.errors import UserError


def effect(evidence: Evidence) -> Estimate:
    """Accuracy lost when the block in the middle, by accuracy with its best head alone, keeps that head only.

    Validation images choose each block's head, and the block; of an even number the one that loses more.
    """
    layout = evidence.layout
    block = block_of(layout)
    alone = (block[:, None] == block) & ~torch.eye(len(block), dtype=torch.bool)
    accuracy = evidence.right(alone, "validation").double().mean(1)
    spans = [layout.span(site) for site, each in enumerate(layout.sites) if each.num_heads > 1]
    if not spans:
        raise UserError("every block has one head.")
    best = sorted((span.start + int(accuracy[span].argmax()) for span in spans), key=lambda head: float(accuracy[head]))
    return loss(evidence, alone[best[(len(best) - 1) // 2]])


CLAIM = Claim(
    says="In the middle one of all blocks, by its need of heads, one head is enough.",
    source="Michel et al. 2019, Tables 2 and 3",
    network="a translation model, BERT",
    effect=effect,
    unit="of accuracy",
    matters=0.01,
    because="a point is what a run is known to on 10,000 images",
    shape="at most",
)
