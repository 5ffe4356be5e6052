"""Mean attention from patches to the class token, minus its share of even attention."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of


@claim(
    says="A special token draws far more attention than its share.",
    source="Clark et al. 2019, Figure 2 (separators); here the class token; BERT",
    figure="clark/figure_2",
    margin=Margin(0.05, "of the patches' attention", "over half in BERT; a twentieth is what three patches of 64 get"),
)
def effect(of: Evidence, token_kinds: Columns) -> Estimate:
    return mean_of(
        of.layout,
        token_kinds["cls"],
        token_kinds["uniform_cls"],
        absent="the network has no class token that patches attend to.",
    )
