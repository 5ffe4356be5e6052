"""Claims about tokens that draw attention: Xiao et al. 2024, arXiv 2309.17453; Darcet et al. 2024, arXiv 2309.16588."""

from mhprobe.claims.parts.claim import Margin, claim
from mhprobe.claims.parts.estimates import Estimate, mean_of, over_images, share
from mhprobe.claims.parts.evidence import Columns, Evidence


@claim(
    says="Tokens of high norm draw attention.",
    source="Darcet et al. 2024, arXiv 2309.16588; large vision transformers",
    margin=Margin(1.0, "doublings of even attention", "twice its share"),
)
def high_norm_tokens_draw_attention(of: Evidence, token_kinds: Columns) -> Estimate:
    """Mean log2 of the attention to patches of high norm over their share of even attention."""
    return mean_of(
        of.layout,
        (token_kinds["high_norm"] / token_kinds["uniform_high_norm"]).log2(),
        absent="no block has patches of high norm.",
    )


@claim(
    says="Tokens of high norm hold little of their place.",
    source="Darcet et al. 2024, Figure 5, arXiv 2309.16588; large vision transformers",
    margin=Margin(0.1, "of the error of guessing the middle", "a tenth of what knowing nothing costs"),
)
def high_norm_tokens_lose_their_place(of: Evidence) -> Estimate:
    """Error of the place that is read linearly from a token of the last block: tokens of high norm minus the others.

    In each image; the reading is fitted on validation images.
    """
    return over_images(of.of_images("high_norm_error") - of.of_images("other_error"))


@claim(
    says="Some heads are attention sinks.",
    source="Xiao et al. 2024, arXiv 2309.17453; language models",
    margin=Margin(0.05, "of the heads", "one head in twenty"),
)
def some_heads_are_sinks(of: Evidence, sinks: Columns) -> Estimate:
    """Share of heads with one token, in half of the images, that gets half of the attention of nearly all queries."""
    return share(sinks["sink"] >= 0.5, sinks["sink"] >= 0.5)
