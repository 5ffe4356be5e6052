"""Rollout of attention weighted by how the explained logit depends on it: fuse_h (A * d logit / d A)+.

As in the vit-explain package's gradient rollout (its fusion, the mean, may be changed), chained as in ``rollout``.

Shapes: B images, W windows, H heads, K places of a window.
"""

from torch import Tensor, nn

from mhprobe.maps.base import MapKind, as_grid, layout_of, readout, usual_target
from mhprobe.maps.rollout import Fusion, chain, check, fuse, transition
from mhprobe.recording.outputs import Of
from mhprobe.recording.record import record


class GradientRollout(MapKind):
    """The map "gradient rollout" (B, h, w) over the first block's grid.

    fusion, discard: as in Rollout. target: "top1" explains the largest logit, "label" the label's, "norm" the
    length of features; None the first, or the last of a model that gives features.
    """

    def __init__(self, fusion: Fusion = "mean", discard: float = 0.0, target: Of | None = None) -> None:
        check(fusion, discard, "gradient_rollout")
        self.fusion, self.discard, self.target = fusion, discard, target

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        layout = layout_of(model)
        batch = record(model, images, labels, {"attn_grad"}, of=self.target or usual_target(model))
        attn, slopes = batch.need("attn", "gradient rollout"), batch.need("attn_grad", "gradient rollout")
        rows = [
            transition(fuse((a * slope).clamp(min=0), self.fusion), site, self.discard)
            for site, a, slope in zip(layout.sites, attn, slopes, strict=True)
        ]
        chained = chain(layout, rows)
        return {"gradient rollout": as_grid(readout(chained, layout.sites[-1]), layout.sites[0])}
