"""Rollout of attention weighted by how the explained logit depends on it: fuse_h (A * d logit / d A)+.

As in the vit-explain package's gradient rollout (its fusion, the mean, may be changed), chained as
in ``rollout``.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from mhprobe.heads import Weights
from mhprobe.maps.base import usual_target
from mhprobe.maps.rollout import Fusion, Rollout
from mhprobe.recording.outputs import Of
from mhprobe.recording.record import record


class GradientRollout(Rollout):
    """The map "gradient rollout" (B, h, w) over the first block's grid.

    fusion, discard: as in Rollout. target: explains the largest logit ("top1"), the label's
    ("label") or the length of features ("norm"); None: "top1", or "norm" without a classifier.
    """

    kind = "gradient_rollout"
    needs = ("row_slopes", "attn_grad")

    def __init__(
        self, fusion: Fusion = "mean", discard: float = 0.0, target: Of | None = None
    ) -> None:
        super().__init__(fusion, discard)
        self.target = target

    def rows(self, model: nn.Module, images: Tensor, labels: Tensor | None) -> tuple[Weights, ...]:
        target = self.target or usual_target(model)
        rows = record(model, images, labels, {"row_slopes"}, of=target).rows
        assert rows is not None
        return rows

    def part(self, weights: Weights, rows: Tensor, queries: Tensor) -> Tensor:
        return (weights.at(rows, queries) * weights.slopes_at(rows, queries)).clamp(min=0)

    def weights(self, model: nn.Module, images: Tensor, labels: Tensor | None) -> Iterable[Tensor]:
        """(B, W, H, K, K) of each site: attention times its slope, where that is positive."""
        batch = record(model, images, labels, {"attn_grad"}, of=self.target or usual_target(model))
        attn, slopes = (batch.need(name, "gradient rollout") for name in ("attn", "attn_grad"))
        return ((a * slope).clamp(min=0) for a, slope in zip(attn, slopes, strict=True))
