"""Accuracy lost when the block in the middle, by accuracy with its best head alone, keeps that head only.

Validation images choose each block's head, and the block; of an even number the one that loses more.
"""

from mhprobe.claims.parts import POINT, Estimate, Evidence, claim, in_blocks, loss
from mhprobe.errors import UserError


@claim(
    says="In the middle one of all blocks, by its need of heads, one head is enough.",
    source="Michel et al. 2019, Tables 2 and 3; a translation model, BERT",
    margin=POINT,
    shape="at most",
)
def effect(of: Evidence) -> Estimate:
    alone = in_blocks(of.layout)  # (A, A): the others of each head's block
    accuracy = of.right(alone, "validation").double().mean(1)
    spans = [of.layout.span(number) for number, site in enumerate(of.layout.sites) if site.num_heads > 1]
    if not spans:
        raise UserError("every block has one head.")
    best = sorted((span.start + int(accuracy[span].argmax()) for span in spans), key=lambda head: float(accuracy[head]))
    return loss(of, alone[best[(len(best) - 1) // 2]])
