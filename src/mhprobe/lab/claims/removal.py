"""Claims about heads that go: what masking or pruning them costs."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.lab.claims.parts.claim import BY_CHOICE, POINT, Asks, Effect, Margin, claim
from mhprobe.lab.claims.parts.estimates import Estimate, in_blocks, of_accuracy, share_of_heads
from mhprobe.lab.claims.parts.evidence import (
    Columns,
    Evidence,
    at_share,
    gained,
    loss,
    without_thirds,
)

costs_at_most_a_point = functools.partial(claim, margin=POINT, shape="at most", asks=BY_CHOICE)


def loss_without(share: float, order: str) -> Effect:
    """Accuracy lost without this share of the heads, in an order that validation images choose."""
    return lambda of: loss(of, at_share(of.path(order), share))


a_fifth_of_the_heads_goes = costs_at_most_a_point(
    says="A fifth of the heads goes for less than a point.",
    source="Michel et al. 2019, Figure 3, no noticeable loss; a translation model, BERT",
    figure="michel/figure_3",
)(loss_without(0.2, "importance"))
two_fifths_of_the_heads_go = costs_at_most_a_point(
    says="Two fifths of the heads go for less than a point.",
    source="Michel et al. 2019, Figure 3, its upper end; a translation model, BERT",
    figure="michel/figure_3",
)(loss_without(0.4, "importance"))
a_third_goes_by_index = costs_at_most_a_point(
    says="By the best indices a third of the heads goes for less than a point.",
    source="Byun & Kim, Figure 8 (flat to step 4 of 12); Swin-B and ViT",
    figure="byun_kim/figure_8",
)(loss_without(1 / 3, "head_max"))


@claim(
    says="The order of gradient importance beats random orders.",
    source="Michel et al. 2019, Figure 3; a translation model, BERT",
    figure="michel/figure_3",
    margin=POINT,
    asks=BY_CHOICE,
)
def importance_beats_random(of: Evidence) -> Estimate:
    """Accuracy in the order of importance minus that of random orders, mean over three shares of the heads."""
    shares = (0.2, 0.4, 0.6)
    by_score, at_random = (
        torch.stack([at_share(of.path(name), part) for part in shares], 1)
        for name in ("importance", "random")
    )
    return gained(of, by_score, at_random)


@claim(
    says="Most heads can be switched off alone for less than a point of accuracy.",
    source="Michel et al. 2019, Table 1; a translation model, BERT",
    figure="michel/table_1",
    margin=Margin(0.1, "of the heads, beyond a half", "three heads of five are most"),
)
def most_heads_can_go(of: Evidence, ablation_delta: Columns) -> Estimate:
    """Share of heads whose removal alone costs less than a point, minus a half."""
    low, high = ablation_delta["drop_low"], ablation_delta["drop_high"]
    return share_of_heads(high < 0.01, low >= 0.01, images=ablation_delta["images"]).beyond(0.5)


@costs_at_most_a_point(
    says="In the middle one of all blocks, by its need of heads, one head is enough.",
    source="Michel et al. 2019, Tables 2 and 3; a translation model, BERT",
)
def one_head_is_enough(of: Evidence) -> Estimate:
    """Accuracy lost when the block in the middle, by accuracy with its best head alone, keeps that head only.

    Each draw of validation images chooses each block's head, and the block; of an even number the
    one that loses more.
    """
    alone = in_blocks(of.layout)  # (A, A): the others of each head's block
    spans = [
        of.layout.span(number) for number, site in enumerate(of.layout.sites) if site.num_heads > 1
    ]
    if not spans:
        raise UserError("every block has one head.")
    return loss(of, torch.stack([_middle(alone, row, spans) for row in of.chosen(alone)]))


def _middle(alone: Tensor, accuracy: Tensor, spans: Sequence[slice]) -> Tensor:
    """(A,) mask that leaves the middle block its best head, by the (A,) accuracy with each head alone."""
    best = sorted(
        (span.start + int(accuracy[span].argmax()) for span in spans),
        key=lambda head: float(accuracy[head]),
    )
    return alone[best[(len(best) - 1) // 2]]


@claim(
    says="Heads of early blocks are needed more than heads of late ones.",
    source="ours, docs/papers/michel.md, Figure 4; ViT and Swin on CIFAR-10",
    margin=Margin(
        0.02, "of accuracy", "two points are beyond what two data sets of 10,000 images differ in"
    ),
    asks=Asks(masks=True),
)
def early_blocks_are_needed_most(of: Evidence) -> Estimate:
    """Accuracy without all heads of the late third of the blocks minus that without the early third."""
    thirds = without_thirds(of)[None]
    return gained(of, thirds[:, 2:], thirds[:, :1])


@claim(
    says="One third of the depth needs its heads more than the others do.",
    source="Michel et al. 2019, Figure 4 (attention between encoder and decoder); a translation model",
    margin=Margin(0.03, "of accuracy", "three points are beyond what several single heads cost"),
    asks=BY_CHOICE,
)
def one_kind_of_block_is_needed_most(of: Evidence) -> Estimate:
    """Accuracy without the other thirds' heads minus that without the third that validation images call worst."""
    masks = without_thirds(of)
    worst = of.chosen(masks).argmin(1)
    others = torch.stack([masks[torch.arange(3) != third] for third in worst])
    return gained(of, others, masks[worst][:, None])


@costs_at_most_a_point(
    says="One head of every block, the best index, goes for less than a point.",
    source="Byun & Kim, Figure 8; Swin-B and ViT",
    figure="byun_kim/figure_8",
)
def some_heads_go_within_noise(of: Evidence) -> Estimate:
    """Accuracy lost without the head of one index in every block, which validation images choose."""
    return loss(of, of.path("head_max")[:, 1])


@claim(
    says="By the best indices heads cost less than by the best whole layers.",
    source="Byun & Kim, Figure 8; Swin-B and ViT",
    figure="byun_kim/figure_8",
    margin=POINT,
    asks=BY_CHOICE,
)
def index_beats_whole_layers(of: Evidence) -> Estimate:
    """Accuracy by indices minus that by layers, mean over the steps by layer, at the nearest numbers of heads."""
    by_index, by_layer = of.path("head_max"), of.path("layer_max")[:, 1:-1]
    nearest = (by_index.sum(2)[:, None] - by_layer.sum(2)[:, :, None]).abs().argmin(2)
    of_draw = torch.arange(len(by_index))[:, None]
    return gained(of, by_index[of_draw, nearest], by_layer)


@claim(
    says="A sixth of the heads by the worst indices costs more than by the best.",
    source="Byun & Kim, Figure 9; Swin-B and ViT",
    figure="byun_kim/figure_9",
    margin=POINT,
    asks=BY_CHOICE,
)
def the_worst_index_falls_first(of: Evidence) -> Estimate:
    """Accuracy without a sixth of the heads: best indices minus worst indices, both chosen on validation images."""
    best, worst = (at_share(of.path(name), 1 / 6)[:, None] for name in ("head_max", "head_min"))
    return gained(of, best, worst)


@claim(
    says="A pruned network is better than the same heads trained from scratch.",
    source="Voita et al. 2019, Table 2; a translation model",
    margin=POINT,
    asks=Asks(runs=("pruned", "scratch")),
)
def pruned_beats_from_scratch(of: Evidence) -> Estimate:
    """Accuracy of a pruned network minus that of the same heads trained from scratch."""
    pruned, scratch = (of.run(name).outcomes() for name in ("pruned", "scratch"))
    if pruned is None or scratch is None or pruned.images != scratch.images:
        raise UserError("the two runs have no outcomes on the same test images.")
    return of_accuracy(pruned.right, scratch.right)
