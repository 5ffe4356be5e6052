"""Mean log2 of the attention to patches of high norm over their share of even attention."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of


@claim(
    says="Tokens of high norm draw attention.",
    source="Darcet et al. 2024, arXiv 2309.16588; large vision transformers",
    margin=Margin(1.0, "doublings of even attention", "twice its share"),
)
def effect(of: Evidence, token_kinds: Columns) -> Estimate:
    return mean_of(
        of.layout,
        (token_kinds["high_norm"] / token_kinds["uniform_high_norm"]).log2(),
        absent="no block has patches of high norm.",
    )
