"""Accuracy of a pruned network minus that of the same heads trained from scratch."""

from mhprobe.claims.parts import POINT, Estimate, Evidence, claim, of_accuracy
from mhprobe.errors import UserError


@claim(
    says="A pruned network is better than the same heads trained from scratch.",
    source="Voita et al. 2019, Table 2; a translation model",
    margin=POINT,
)
def effect(of: Evidence) -> Estimate:
    pruned, scratch = (of.run(name).outcomes() for name in ("pruned", "scratch"))
    if pruned is None or scratch is None or pruned.images != scratch.images:
        raise UserError("the two runs have no outcomes on the same test images.")
    return of_accuracy(pruned.right, scratch.right)
