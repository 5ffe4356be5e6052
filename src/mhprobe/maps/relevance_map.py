"""Relevance of patches for the explained logit, by layer-wise relevance propagation (see recording/lrp.py)."""

from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, Relevance
from mhprobe.maps.base import MapKind, gated_layout, usual_target
from mhprobe.recording.checks import numbers_of
from mhprobe.recording.lrp import patch_relevances


class RelevanceMap(MapKind):
    """The map "relevance" (B, h, w) of the patch embeddings, in units of the logit; negative patches spoke against it.

    target, gamma, epsilon: as in the measure LRPRelevance; target None: the largest logit, of
    features their length. Raises UserError for a negative gamma, and an epsilon that is not above
    0.
    """

    def __init__(
        self,
        target: str | None = None,
        gamma: float = Relevance.gamma,
        epsilon: float = Relevance.epsilon,
    ) -> None:
        if gamma < 0 or epsilon <= 0:
            raise UserError(
                f"relevance_map: expected gamma >= 0 and epsilon > 0, got {gamma} and {epsilon}."
            )
        self.target, self.gamma, self.epsilon = target, float(gamma), float(epsilon)

    def held(self, layout: HeadLayout) -> float:
        return 4 * numbers_of(layout, {Relevance()})

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        layout = gated_layout(model)
        rule = Relevance(self.target or usual_target(model), self.gamma, self.epsilon)
        _, patches = patch_relevances(model, images, labels, rule)
        return {"relevance": patches.unflatten(1, layout.sites[0].token_grid)}
