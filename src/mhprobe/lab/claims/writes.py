"""Claims about what heads write into the residual stream, and what its tokens hold."""

import torch
from scipy import stats
from torch import Tensor

from mhprobe.lab.claims.parts.claim import Asks, Margin, claim
from mhprobe.lab.claims.parts.estimates import (
    Estimate,
    mean_over_heads,
    over_heads,
    over_images,
    share_of_heads,
    third_of,
)
from mhprobe.lab.claims.parts.evidence import Columns, Evidence


@claim(
    says="Attention is a low-pass filter.",
    source="Park & Kim 2022, Figure 2; ViT and Swin on CIFAR-100 and ImageNet",
    figure="byun_kim/figure_6_spectrum",
    margin=Margin(0.1, "nats of amplitude", "a tenth of the amplitude"),
)
def attention_is_a_low_pass_filter(of: Evidence, output_frequency: Columns) -> Estimate:
    """Log amplitude of the highest frequency against the lowest: stream before a block minus what its heads write."""
    return mean_over_heads(of.layout, output_frequency["block_input"] - output_frequency["value"])


@claim(
    says="Heads of the last blocks carry most of the direct effect.",
    source="Gandelsman et al. 2024, arXiv 2310.05916; CLIP",
    margin=Margin(0.1, "of the direct effect, beyond a half", "three fifths are most"),
)
def late_blocks_carry_the_direct_effect(of: Evidence, logit_attribution: Columns) -> Estimate:
    """Share that the late third of the blocks has in the size of all heads' direct contributions, minus a half."""
    size, late = logit_attribution["size"], third_of(of.layout) == 2

    def part(kept: Tensor) -> float:
        return float(size[kept][late[kept]].sum() / size[kept].sum())

    return over_heads(of.layout, part, size.isfinite(), chance=float(late.double().mean())).beyond(
        0.5
    )


@claim(
    says="Some heads have a class as their role.",
    source="Gandelsman et al. 2024, arXiv 2310.05916; CLIP",
    margin=Margin(0.2, "of the heads", "one head in five"),
)
def heads_have_class_roles(of: Evidence, logit_attribution: Columns) -> Estimate:
    """Share of heads whose direct effect on one class's images is thrice that on the average class.

    The class is the one with the largest effect, so the interval that this has to lie in holds for
    all classes at once.
    """
    by_class, images = logit_attribution["own"].double(), int(logit_attribution["images"])
    classes = by_class.shape[1]
    largest, top = by_class.nan_to_num(-torch.inf).max(1, keepdim=True)
    error = logit_attribution["own_error"].double().gather(1, top)
    half = error * stats.t.isf(0.025 / classes, max(1, images // classes - 1))
    needed = 3 * by_class.abs().nanmean(1, keepdim=True)
    sure, excluded = largest - half >= needed, largest + half < needed
    return share_of_heads(sure.squeeze(1), excluded.squeeze(1), images=images)


@claim(
    says="Tokens of high norm hold little of their place.",
    source="Darcet et al. 2024, Figure 5, arXiv 2309.16588; large vision transformers",
    margin=Margin(
        0.1, "of the error of guessing the middle", "a tenth of what knowing nothing costs"
    ),
    asks=Asks(images=True),
)
def high_norm_tokens_lose_their_place(of: Evidence) -> Estimate:
    """Error of the place that is read linearly from a token of the last block: tokens of high norm minus the others.

    In each image; the reading is fitted on validation images.
    """
    return over_images(of.of_images("high_norm_error") - of.of_images("other_error"))
