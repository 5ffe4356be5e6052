"""One minus the mean divergence of attention of pairs inside a block over that of pairs between blocks of a stage."""

from torch import Tensor

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, between_blocks, claim, in_blocks, over_heads


@claim(
    says="Heads of a layer attend more alike than heads of different layers.",
    source="Clark et al. 2019, Figure 6; BERT",
    margin=Margin(0.1, "of the divergence between blocks", "a tenth less is hardly seen in their figure"),
)
def effect(of: Evidence, js_distance: Columns) -> Estimate:
    value, inside = js_distance["value"], in_blocks(of.layout)
    between = between_blocks(of.layout, value)

    def closer(kept: Tensor) -> float:
        means = [float(value[kept][:, kept][pairs[kept][:, kept]].mean()) for pairs in (inside, between)]
        return 1 - means[0] / means[1]

    return over_heads(of.layout, closer, between.any(1))
