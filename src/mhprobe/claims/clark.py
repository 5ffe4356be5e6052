"""Claims of Clark et al., 2019, arXiv 1906.04341: what heads attend to, how broadly, and which attend alike."""

import torch
from torch import Tensor

from mhprobe.claims.parts.claim import Margin, claim
from mhprobe.claims.parts.estimates import (
    Estimate,
    between_blocks,
    in_blocks,
    late_minus_early,
    mean_of,
    over_heads,
    over_images,
)
from mhprobe.claims.parts.evidence import Columns, Evidence


@claim(
    says="Heads cluster by layer.",
    source="Clark et al. 2019, Figure 6; BERT",
    margin=Margin(0.2, "of the heads, beyond chance", "one head in five beyond those that are there by chance"),
)
def clusters_follow_blocks(of: Evidence, js_distance: Columns) -> Estimate:
    """Share of heads whose nearest head, by divergence of attention, is in their block, minus that of a random head."""
    value, inside = js_distance["value"], in_blocks(of.layout)
    between = between_blocks(of.layout, value)
    compared = between | (inside & value.isfinite())

    def beyond(kept: Tensor) -> float:
        among, own = compared[kept][:, kept], inside[kept][:, kept]
        nearest = value[kept][:, kept].masked_fill(~among, torch.inf).argmin(1)
        hits = own.gather(1, nearest[:, None]).double().mean()
        return float(hits - ((own & among).sum(1) / among.sum(1)).mean())

    chance = float(((inside & compared).sum(1) / compared.sum(1).clamp(min=1)).mean())
    return over_heads(of.layout, beyond, between.any(1), chance=chance)


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
    says="Heads of a layer attend more alike than heads of different layers.",
    source="Clark et al. 2019, Figure 6; BERT",
    margin=Margin(0.1, "of the divergence between blocks", "a tenth less is hardly seen in their figure"),
)
def heads_of_a_block_attend_alike(of: Evidence, js_distance: Columns) -> Estimate:
    """1 - the mean divergence of attention of pairs inside a block over that of pairs of two blocks of a stage."""
    value, inside = js_distance["value"], in_blocks(of.layout)
    between = between_blocks(of.layout, value)

    def closer(kept: Tensor) -> float:
        means = [float(value[kept][:, kept][pairs[kept][:, kept]].mean()) for pairs in (inside, between)]
        return 1 - means[0] / means[1]

    return over_heads(of.layout, closer, between.any(1))


@claim(
    says="Single heads know relations better than the best fixed offset does.",
    source="Clark et al. 2019, Table 1 (syntax; here colours, mirror images and edges of patches); BERT",
    margin=Margin(0.05, "of the answers", "one answer in twenty"),
)
def single_heads_beat_fixed_offsets(of: Evidence) -> Estimate:
    """Share of queries whose most attended patch meets a relation: the best head minus the best fixed offset.

    Mean over the relations that an image asks about; head and offset are chosen on validation images.
    """
    return over_images(of.of_images("best_head") - of.of_images("best_offset"))


@claim(
    says="Attention to special tokens is a no-op.",
    source="Clark et al. 2019, Figure 3 (separators); here the class token, or patches of high norm; BERT",
    figure="clark/figure_3",
    margin=Margin(0.2, "of the slope of other attention", "a fifth less still is attention that counts"),
)
def special_attention_is_a_no_op(of: Evidence, no_op: Columns) -> Estimate:
    """One minus the mean slope of the loss along attention to special keys over that along all others."""
    return mean_of(of.layout, 1 - no_op["value"], absent="the network has no special tokens whose slope is known.")


@claim(
    says="A special token draws far more attention than its share.",
    source="Clark et al. 2019, Figure 2 (separators); here the class token; BERT",
    figure="clark/figure_2",
    margin=Margin(
        0.05, "of the patches' attention", "in BERT it is over half; a twentieth is what three patches of 64 get"
    ),
)
def the_class_token_draws_attention(of: Evidence, token_kinds: Columns) -> Estimate:
    """Mean attention from patches to the class token, minus its share of even attention."""
    return mean_of(
        of.layout,
        token_kinds["cls"],
        token_kinds["uniform_cls"],
        absent="the network has no class token that patches attend to.",
    )
