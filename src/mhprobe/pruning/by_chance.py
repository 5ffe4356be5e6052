"""Cost of as many random heads: the control of a pruning.

Random heads, and neurons where these go too, are switched off in the whole network, as many of each
kind as were removed. Nothing is repaired or tuned, so this stands beside the masked network.

Shapes: A units of all sites, N test images, R draws.
"""

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones import layout_of
from mhprobe.gates.fill import Fill
from mhprobe.heads import HeadLayout
from mhprobe.recording.state import moved
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs

if TYPE_CHECKING:
    from mhprobe.pruning.rounds import Judge

AT_MOST = 1000  # test images, evenly from all classes


class ByChance(NamedTuple):
    """Accuracy without random heads minus the whole network's, on the same test images.

    difference: mean over draws. chosen: the same number of the heads that were chosen, masked, on
    these images.
    """

    difference: float
    chosen: float
    draws: int
    images: int


def random_masks(gone_A: Tensor, layout: HeadLayout, draws: int, seed: int = 0) -> Tensor:
    """(R, A) bool: so many random masks, each with as many units of every kind as ``gone_A`` has."""
    masks = torch.zeros(draws, len(gone_A), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    by_site = layout.split(torch.arange(layout.num_heads))
    for kind in sorted(layout.kinds):
        sites = zip(layout.sites, by_site, strict=True)
        of_kind = torch.cat([units for site, units in sites if site.kind == kind])
        count = int(gone_A[of_kind].sum())
        for mask in masks:
            mask[of_kind[torch.randperm(len(of_kind), generator=generator)[:count]]] = True
    return masks


def by_chance(
    model: nn.Module,
    judge: "Judge",
    gone_A: Tensor,
    right_N: Tensor,
    draws: int,
    rescale: bool = False,
    fill: Fill | None = None,
) -> ByChance | None:
    """Switch off the units that went, and as many random ones, in the whole network; None for no draws.

    model: carries its gates. gone_A: bool, the units that went. right_N: bool, the test images that
    the whole network has right. rescale, fill: as for the chosen ones.
    """
    if not draws:
        return None
    images = judge.selection
    where = images.some("test", AT_MOST)
    masks = torch.cat([gone_A[None], random_masks(gone_A, layout_of(model), draws, images.seed)])
    evaluate = Evaluator(
        moved(model, images.device).eval(),
        images.test,
        images.data.sizes["test"],
        "random heads on test",
        pick=functools.partial(images.data.batches, "test", images.device),
        masked=MaskedAs(fill, rescale),
        score=judge.scores["test"],
    )
    right_Mn = evaluate(masks, where).right
    whole = right_N[where].double().mean()
    chosen, *by_draw = (right_Mn.double().mean(1) - whole).tolist()
    return ByChance(sum(by_draw) / draws, chosen, draws, len(where))
