"""Uncollapsed rollout: one block keeps its heads apart, the others are fused: every head has its own rollout."""

from torch import Tensor, nn

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout, norm_written
from mhprobe.maps.base import MapKind, as_grid, choose_block, gated_layout, readout
from mhprobe.maps.rollout import (
    Fusion,
    chain,
    fuse,
    product,
    refuse_discard,
    refuse_product,
    transition,
)
from mhprobe.recording.checks import numbers_of
from mhprobe.recording.record import record


class HeadRollout(MapKind):
    """Maps "block <b> head <h>" (B, h, w) over the first block's grid: as if head h were its block's only one.

    block: keeps its heads apart; -1 is the last. fusion, discard: as in Rollout, of the other
    blocks.
    weight: "none", or "written": multiply each query's row by the length of the head's write into
    the stream there,
        |z_h W_O,h|, over the mean of all heads and queries. In the last block of a model that reads its class token,
        that only scales a head's map; elsewhere it also changes where it points.
    Raises UserError for other options, and for a block of several attentions.
    """

    per_head = True

    def __init__(
        self, block: int = -1, fusion: Fusion = "mean", discard: float = 0.0, weight: str = "none"
    ) -> None:
        refuse_discard(discard, "head_rollout")
        if weight not in ("none", "written"):
            raise UserError(f"head_rollout: weight is none or written, got {quoted(weight)}.")
        self.block, self.fusion, self.discard, self.weight = block, fusion, discard, weight

    def held(self, layout: HeadLayout) -> float:
        return 4 * numbers_of(layout, {"attn"}) + product(layout)

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        layout = gated_layout(model)
        chosen, *others = choose_block(self.block, layout, "head_rollout")
        if others:
            raise UserError(
                f"head_rollout: block {self.block} has several attentions side by side, expected "
                "one."
            )
        refuse_product("head_rollout", layout)
        batch = record(model, images, needs={"attn", "weights"})
        attn = batch.need("attn", "head_rollout")
        site = layout.sites[chosen]
        fused = zip(fuse(model, attn, self.fusion), layout.sites, strict=True)
        rows = [transition(weights, one, self.discard) for weights, one in fused]
        before = chain(layout, rows[:chosen]) if chosen else None
        places = site.places().to(images.device).clamp(min=0)
        z, output = batch.writing(chosen, "head_rollout")
        norm_BTH = norm_written(z, output) if self.weight == "written" else z.new_ones(z.shape[:3])
        length_BTH = norm_BTH / norm_BTH.mean((1, 2), keepdim=True).clamp(min=1e-30)
        maps = {}
        for head, name in enumerate(
            map(layout.name_of, range(layout.num_heads)[layout.span(chosen)])
        ):
            row = transition(attn[chosen][:, :, head], site, self.discard)
            row = row * length_BTH[:, places, head, None].to(row)
            rolled = chain(layout, [row, *rows[chosen + 1 :]], chosen, before)
            maps[name] = as_grid(readout(rolled, layout.sites[-1]), layout.sites[0])
        return maps
