"""Claims of these pages themselves, made on a ViT and a Swin on CIFAR-10."""

from mhprobe.claims.parts.claim import MOSTLY, RANKS, Margin, claim
from mhprobe.claims.parts.estimates import Estimate, go_together, goes_with_cost, mean_of, most_alike
from mhprobe.claims.parts.evidence import Columns, Evidence, gained, without_thirds


@claim(
    says="Heads of early blocks are needed more than heads of late ones.",
    source="ours, docs/papers/michel.md, Figure 4; ViT and Swin on CIFAR-10",
    margin=Margin(0.02, "of accuracy", "two points are beyond what two data sets of 10,000 images differ in"),
)
def early_blocks_are_needed_most(of: Evidence) -> Estimate:
    """Accuracy without all heads of the late third of the blocks minus that without the early third."""
    return gained(of, without_thirds(of)[2:], without_thirds(of)[:1])


@claim(
    says="Gradient importance is mostly the norm of what a head writes.",
    source="ours, docs/headbench.md; ViT and Swin on CIFAR-10",
    margin=MOSTLY,
)
def importance_is_mostly_output_norm(of: Evidence, gate_importance: Columns, write_norm: Columns) -> Estimate:
    """Rank correlation of gradient importance and norm of the writes over the heads of a block, minus a half."""
    return go_together(of.layout, gate_importance["value"], write_norm["value"]).beyond(0.5)


@claim(
    says="Heads that attend alike write alike.",
    source="ours, docs/papers/byun_kim.md; ViT and Swin on CIFAR-10",
    margin=RANKS,
)
def like_attention_gives_like_outputs(of: Evidence, js_distance: Columns, cka: Columns) -> Estimate:
    """Minus the rank correlation of divergence of attention and CKA of outputs, over the pairs of each block."""
    return go_together(of.layout, -js_distance["value"], cka["value"])


@claim(
    says="Likeness does not tell which heads can go.",
    source="ours, docs/papers/byun_kim.md, the open question; ViT and Swin on CIFAR-10",
    margin=RANKS,
    shape="none",
)
def similarity_does_not_tell_redundancy(of: Evidence, svcca: Columns, ablation_delta: Columns) -> Estimate:
    """Rank correlation, over the heads of a block, of likeness to the nearest head and rise of the loss without it."""
    return goes_with_cost(of.layout, most_alike(of.layout, svcca["value"]), ablation_delta)


@claim(
    says="Training makes the outputs of heads unlike.",
    source="ours, docs/papers/unique.md; ViT and Swin on CIFAR-10",
    figure="unique/outputs",
    margin=Margin(0.1, "of linear CKA", "a tenth of what two equal heads share"),
)
def training_makes_outputs_unlike(of: Evidence, cka: Columns) -> Estimate:
    """Mean linear CKA of the outputs of two heads of a block: untrained minus trained."""
    return mean_of(of.layout, of.control("cka")["value"] - cka["value"])
