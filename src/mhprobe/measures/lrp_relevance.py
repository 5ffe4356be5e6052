"""Relevance of a head: its share of a prediction in its layer, by layer-wise relevance propagation.

Voita et al. 2019, arXiv 1905.09418, Appendix A, after Ding et al. 2017; the rules are those of
Achtibat et al. 2024 (recording/lrp.py). R_h is the sum of the relevance of head h's output over
tokens and width. In vision transformers heads of both signs cancel, so here R_h and |R_h| are
divided by the sum of |R|. Voita divides by the sum of R.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import KINDS, HeadBatch, HeadLayout, Relevance
from mhprobe.measures.base import sums
from mhprobe.measures.parts.image_sums import MeanOverImages
from mhprobe.stats.intervals import SHARE

Target = Literal["top1", "label", "norm"]
_TINY = 1e-300  # a layer without relevance: shares of 0


class LRPRelevance(MeanOverImages):
    """Mean over images of |R_h| / sum over the layer's heads of |R|.

    target: "top1" explains the largest logit, "label" the label's, "norm" the length of features.
    gamma: how far linear layers favour contributions of their output's own sign; 0 is the epsilon
        rule, whose relevance explodes in deep networks. epsilon: keeps denominators away from 0.
    Raises UserError for other options, and for a batch without this relevance.

    Columns, (A,), the last four equal for all heads of a layer, and NaN for neurons: value: share
    of the layer's relevance, in [0, 1]; larger is more relevant; low, high: its 95 % interval over
    images, NaN with a single one.
    null: 1 / H, the share of a head like all others. signed: mean R_h / sum |R|, in [-1, 1];
    negative heads spoke against the explained class. voita: mean R_h / sum R; unbounded. attention,
    residual: mean share of the logit that crossed the layer in its heads, and beside them.
    conservation_error: mean |heads + residual - logit| / |logit|: what biases and epsilon kept
    behind the layer. mass: mean sum over neurons of |R| / |logit|: 1e3 means explosion.
    """

    fooled_by = "by definition: a head that passes on what others would bring: relevance is not what is lost"
    of_units = frozenset(KINDS)
    within = SHARE
    label = "|relevance|, share of the layer"
    larger = "more of the prediction came through the head"

    signed: Tensor = sums("A")
    voita: Tensor = sums("A")
    crossing: Tensor = sums(4, "A")  # attention, residual, conservation error, mass

    def __init__(
        self,
        layout: HeadLayout,
        target: Target = "top1",
        gamma: float = Relevance.gamma,
        epsilon: float = Relevance.epsilon,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        if gamma < 0 or epsilon <= 0:
            raise UserError(
                f"lrp_relevance: expected gamma >= 0 and epsilon > 0, got {gamma} and {epsilon}."
            )
        self.rule = Relevance(target, float(gamma), float(epsilon))
        self.needs = frozenset({self.rule})

    def add(self, batch: HeadBatch) -> None:
        if self.rule not in batch.relevance:
            raise UserError(
                f"lrp_relevance: the batch has no relevance under {self.rule}; record it with its "
                "needs."
            )
        relevance = batch.relevance[self.rule]
        logit_B, skipped = (
            part[batch.valid].double() for part in (relevance.explained, relevance.skipped)
        )
        heads = [r[batch.valid].sum((1, 3), dtype=torch.float64) for r in relevance.heads]
        masses = [r[batch.valid].abs().sum((1, 2, 3), dtype=torch.float64) for r in relevance.heads]
        for number, (site, heads_BH) in enumerate(zip(self.layout.sites, heads, strict=True)):
            span = self.layout.span(number)
            total_B1 = heads_BH.abs().sum(1, keepdim=True).clamp(min=_TINY)
            self.add_images(span, heads_BH.abs() / total_B1, 1)
            self.signed[span] += (heads_BH / total_B1).sum(0)
            sum_B1 = heads_BH.sum(1, keepdim=True)
            self.voita[span] += torch.where(total_B1 > _TINY, heads_BH / sum_B1, heads_BH).sum(0)
            # a block of parallel attentions has several sites, and its relevance crosses in all of
            # them
            pairs = zip(self.layout.sites, heads, strict=True)
            block = [h.sum(1) for s, h in pairs if (s.block, s.kind) == (site.block, site.kind)]
            attention_B, residual_B = torch.stack(block).sum(0), skipped[:, site.block]
            error_B = (attention_B + residual_B - logit_B).abs()
            crossing = torch.stack(
                [attention_B, residual_B, error_B * logit_B.sign(), masses[number] * logit_B.sign()]
            )
            self.crossing[:, span] += (crossing / logit_B).sum(1, keepdim=True)

    def finish(self) -> dict[str, Tensor]:
        columns = self.over_images()
        value = columns.pop("value")
        of_heads = torch.tensor(
            [site.kind == "head" for _, _, site in self.layout], device=value.device
        )
        crossing = torch.where(of_heads, self.crossing / self.images, torch.nan)
        return {
            "value": value,
            "signed": self.signed / self.images,
            "voita": self.voita / self.images,
            "null": torch.cat(
                [value.new_full((s.num_heads,), 1 / s.num_heads) for s in self.layout.sites]
            ),
            **columns,
            **dict(
                zip(("attention", "residual", "conservation_error", "mass"), crossing, strict=True)
            ),
        }
