"""Claims about attention: how far it reaches, and what draws it."""

from mhprobe.lab.claims.parts.claim import Asks, Margin, claim
from mhprobe.lab.claims.parts.estimates import (
    Estimate,
    late_minus_early,
    mean_over_heads,
    over_images,
    share_of_heads,
    third_of,
)
from mhprobe.lab.claims.parts.evidence import Columns, Evidence
from mhprobe.measures.parts.functions import FUNCTIONS


@claim(
    says="Attention reaches further the deeper the block.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(
        0.1, "of the distance of even attention", "a tenth of an even look at the whole image"
    ),
)
def distance_grows_with_depth(of: Evidence, attention_distance: Columns) -> Estimate:
    """Attention distance over that of even attention to the whole image: late half of the blocks minus early half."""
    return late_minus_early(of.layout, attention_distance["value"] / attention_distance["whole"])


@claim(
    says="Some heads of early blocks look near by.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(0.1, "of the early heads", "one early head in ten"),
)
def early_blocks_have_local_heads(of: Evidence, attention_distance: Columns) -> Estimate:
    """Share of heads of the early third of the blocks with at most half of the distance of even attention."""
    early = third_of(of.layout) == 0
    low, high = (
        attention_distance[end][early] / attention_distance["uniform"][early]
        for end in ("low", "high")
    )
    limit = FUNCTIONS["local"].limit
    return share_of_heads(high <= limit, low > limit, images=attention_distance["images"])


@claim(
    says="Most late heads look at the whole image.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(0.1, "of the late heads, beyond a half", "three heads of five are most"),
)
def late_heads_look_everywhere(of: Evidence, attention_distance: Columns) -> Estimate:
    """Share of heads of the late third of the blocks with 90 % of the distance of an even look, minus a half."""
    late = third_of(of.layout) == 2
    low, high = (
        attention_distance[end][late] / attention_distance["whole"][late] for end in ("low", "high")
    )
    limit = FUNCTIONS["global"].limit
    return share_of_heads(low >= limit, high < limit, images=attention_distance["images"]).beyond(
        0.5
    )


@claim(
    says="The covering range of heads grows with depth.",
    source="Byun & Kim, covering range; Swin-B and ViT",
    figure="byun_kim/covering_range",
    margin=Margin(
        0.1, "of the range of even attention", "less is under a patch in a grid of eight by eight"
    ),
)
def covering_range_grows_with_depth(of: Evidence, attention_range: Columns) -> Estimate:
    """Radius of half of the mass around the favourite key, over that of even attention: late minus early blocks."""
    return late_minus_early(of.layout, attention_range["value"] / attention_range["uniform"])


@claim(
    says="Attention is broader in early blocks than in late ones.",
    source="Clark et al. 2019, Figure 4; BERT",
    figure="clark/figure_4",
    margin=Margin(0.05, "of maximal entropy", "of 64 patches it is an even look at 52"),
)
def entropy_falls_with_depth(of: Evidence, entropy: Columns) -> Estimate:
    """Entropy of attention, as a share of its maximum: early half of the blocks minus late half."""
    return late_minus_early(of.layout, -entropy["share"])


@claim(
    says="Some heads are positional: one offset has their largest weight for 90 % of the queries.",
    source="Voita et al. 2019, section 4; a translation model",
    figure="voita/positional",
    margin=Margin(0.05, "of the heads", "one head in twenty; the paper has several in each layer"),
)
def some_heads_are_positional(of: Evidence, position: Columns) -> Estimate:
    """Share of heads whose largest weight is at one offset for 90 % of the queries."""
    limit = FUNCTIONS["positional"].limit
    return share_of_heads(
        position["low"] >= limit, position["high"] < limit, images=position["images"]
    )


@claim(
    says="Single heads know relations better than the best fixed offset does.",
    source="Clark et al. 2019, Table 1 (syntax; here colours, mirror images and edges of patches); BERT",
    margin=Margin(0.05, "of the answers", "one answer in twenty"),
    asks=Asks(images=True),
)
def single_heads_beat_fixed_offsets(of: Evidence) -> Estimate:
    """Share of queries whose most attended patch meets a relation: the best head minus the best fixed offset.

    Mean over the relations that an image asks about; head and offset are chosen on validation
    images.
    """
    return over_images(of.of_images("best_head") - of.of_images("best_offset"))


@claim(
    says="Some heads are attention sinks.",
    source="Xiao et al. 2024, arXiv 2309.17453; language models",
    margin=Margin(0.05, "of the heads", "one head in twenty"),
)
def some_heads_are_sinks(of: Evidence, sinks: Columns) -> Estimate:
    """Share of heads with one token, in half of the images, that gets half of the attention of nearly all queries."""
    limit = FUNCTIONS["sink"].limit
    return share_of_heads(sinks["sink"] >= limit, sinks["sink"] < limit)


@claim(
    says="A special token draws far more attention than its share.",
    source="Clark et al. 2019, Figure 2 (separators); here the class token; BERT",
    figure="clark/figure_2",
    margin=Margin(
        0.05,
        "of the patches' attention",
        "over half in BERT; a twentieth is what three patches of 64 get",
    ),
)
def the_class_token_draws_attention(of: Evidence, token_kinds: Columns) -> Estimate:
    """Mean attention from patches to the class token, minus its share of even attention."""
    absent = "the network has no class token that patches attend to."
    return mean_over_heads(of.layout, token_kinds["cls"], token_kinds["uniform_cls"], absent=absent)


@claim(
    says="Attention to special tokens is a no-op.",
    source="Clark et al. 2019, Figure 3 (separators); here the class token, or patches of high norm; BERT",
    figure="clark/figure_3",
    margin=Margin(
        0.2, "of the slope of other attention", "a fifth less still is attention that counts"
    ),
)
def special_attention_is_a_no_op(of: Evidence, no_op: Columns) -> Estimate:
    """One minus the mean slope of the loss along attention to special keys over that along all others."""
    return mean_over_heads(
        of.layout,
        1 - no_op["value"],
        absent="the network has no special tokens whose slope is known.",
    )


@claim(
    says="Tokens of high norm draw attention.",
    source="Darcet et al. 2024, arXiv 2309.16588; large vision transformers",
    margin=Margin(1.0, "doublings of even attention", "twice its share"),
)
def high_norm_tokens_draw_attention(of: Evidence, token_kinds: Columns) -> Estimate:
    """Mean log2 of the attention to patches of high norm over their share of even attention."""
    ratio = token_kinds["high_norm"] / token_kinds["uniform_high_norm"]
    return mean_over_heads(of.layout, ratio.log2(), absent="no block has patches of high norm.")
