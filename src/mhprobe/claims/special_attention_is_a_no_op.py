"""One minus the mean slope of the loss along attention to special keys over that along all others."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of


@claim(
    says="Attention to special tokens is a no-op.",
    source="Clark et al. 2019, Figure 3 (separators); here the class token, or patches of high norm; BERT",
    figure="clark/figure_3",
    margin=Margin(0.2, "of the slope of other attention", "a fifth less still is attention that counts"),
)
def effect(of: Evidence, no_op: Columns) -> Estimate:
    return mean_of(of.layout, 1 - no_op["value"], absent="the network has no special tokens whose slope is known.")
