"""Share of queries whose most attended patch meets a relation: the best head minus the best fixed offset.

Mean over the relations that an image asks about; head and offset are chosen on validation images.
"""

from mhprobe.claims.parts import Estimate, Evidence, Margin, claim, over_images


@claim(
    says="Single heads know relations better than the best fixed offset does.",
    source="Clark et al. 2019, Table 1 (syntax; here colours, mirror images and edges of patches); BERT",
    margin=Margin(0.05, "of the answers", "one answer in twenty"),
)
def effect(of: Evidence) -> Estimate:
    return over_images(of.of_images("best_head") - of.of_images("best_offset"))
