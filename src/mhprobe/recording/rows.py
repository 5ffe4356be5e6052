"""Chosen rows of attention weights, from queries and keys as they pass: no N x N matrix comes to be.

The model runs as its user set it: fused attention stays fused, and its outputs are bit for bit those
of the plain model. While a block runs, its queries and keys are met at torch's
scaled_dot_product_attention (``Seam.met_at``), and what is asked of softmax(q k^T * scale + mask) is
computed beside it. What is held is one block's queries and keys, and a chunk of its rows. Where
weights pass a module anyway (attention that is not fused, cosine attention), their rows are taken
there. Attention of another kernel (Hugging Face's flash attention) shows its weights as for
``record``: torch's operations take its place for this pass.

Shapes: R rows of a batch (images, or images x windows, image-major), H heads, T queries, K keys, D
head width, W windows.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mhprobe.heads import HeadLayout, Weights
from mhprobe.recording.checks import (
    check_batch,
    check_finite,
    check_model,
    refuse_checkpointing,
    sized,
)
from mhprobe.recording.meetings import Meetings, refuse_unmet
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.state import inspecting, usable
from mhprobe.recording.taps import Taps

Take = Callable[[int, Weights], None]


def stream(model: nn.Module, images: Tensor, layout: HeadLayout, take: Take) -> Tensor:
    """Run the model once, and give each site's weights to ``take`` while its block runs; return the (B, K) logits.

    images: as of ``record``, whose UserErrors these are. layout: sites that are asked. take: called
    with the number of a site and its weights, in the order of the model; nothing is kept of them.
    Raises UserError for a site whose attention weights are not to be seen.
    """
    check_model(model)
    refuse_checkpointing(model)
    check_batch(model, images, None, layout)
    streamed = Streamed(model, layout, take)
    with (
        inspecting(model, gradients=False, freeze=False),
        streamed,
        sized(model, images),
    ):
        logits = logits_of(model(usable(images)), model).detach()
        check_finite(HeadLayout(()), [], logits, None, None)
    streamed.complete()
    return logits


def mean_rows(weights: Weights, share_WT: Tensor) -> Tensor:
    """(B, W, H, K) sum over queries of their share times their row of weights.

    share_WT: of each query of each window, 0 where it is not asked. W divides R.
    """
    total, heads, _, keys = weights.shape
    images = total // len(share_WT)
    counted, device = share_WT != 0, weights.device
    queries, windows = (counted.any(dim).nonzero().flatten().to(device) for dim in (0, 1))
    rows = (torch.arange(images, device=device)[:, None] * len(share_WT) + windows).flatten()
    share_wT = share_WT.to(device)[windows]
    found_rHK = torch.zeros((), device=device)
    for some, part_rHqK in weights.chunks(rows, queries):
        share_rq = share_wT[:, some].repeat(images, 1).to(part_rHqK)
        found_rHK = found_rHK + torch.einsum("rhqk,rq->rhk", part_rHqK, share_rq)
    whole = found_rHK.new_zeros(images, len(share_WT), heads, keys)
    whole[:, windows] = found_rHK.unflatten(0, (images, -1))
    return whole


class Streamed(Taps):
    """Taps that keep nothing."""

    def __init__(self, model: nn.Module, layout: HeadLayout, take: Take) -> None:
        super().__init__(model, layout, ())
        self.take, self.met = take, [False] * len(layout.sites)

    def complete(self) -> None:
        """Raise UserError for a site whose weights were not met."""
        refuse_unmet(self.layout, self.met)

    def _tap_sites(self) -> None:
        seams = [self.family.seam(self.backbone, site) for site in self.layout.sites]
        self.enter_context(Meetings(self.layout, dict(enumerate(seams)), self.meets))

    def meets(self, number: int, weights: Weights) -> None:
        """Give a site's weights to ``take``. UserError for a wrapper that runs the backbone twice."""
        if self.met[number]:
            raise self.several("twice or more for one batch")
        self.met[number] = True
        self.take(number, weights)
