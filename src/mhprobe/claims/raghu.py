"""Claims of Raghu et al., 2021, arXiv 2108.08810: how far heads look, by depth."""

from mhprobe.claims.parts.claim import Margin, claim
from mhprobe.claims.parts.estimates import Estimate, late_minus_early, share, third_of
from mhprobe.claims.parts.evidence import Columns, Evidence


@claim(
    says="Attention reaches further the deeper the block.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(0.1, "of the distance of even attention", "a tenth of an even look at the whole image"),
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
    low, high = (attention_distance[end][early] / attention_distance["uniform"][early] for end in ("low", "high"))
    return share(high <= 0.5, low <= 0.5, images=attention_distance["images"])


@claim(
    says="Most late heads look at the whole image.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(0.1, "of the late heads, beyond a half", "three heads of five are most"),
)
def late_heads_look_everywhere(of: Evidence, attention_distance: Columns) -> Estimate:
    """Share of heads of the late third of the blocks with 90 % of the distance of an even look, minus a half."""
    late = third_of(of.layout) == 2
    low, high = (attention_distance[end][late] / attention_distance["whole"][late] for end in ("low", "high"))
    return share(low >= 0.9, high >= 0.9, images=attention_distance["images"]).beyond(0.5)
