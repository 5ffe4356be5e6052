"""Heads by any masking order, as far as a promise holds: new images lose at most so many points of accuracy.

The path is chosen on some images, and how far it may be gone on others, which chose neither it nor the weights
(``stats.promise``). Where no step can be promised, no head goes.

Shapes: A heads of all sites.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from mhprobe.backbones import layout_of
from mhprobe.errors import UserError
from mhprobe.masking.base import Evaluate, Order, Path
from mhprobe.masking.constraints import constrain
from mhprobe.masking.limits import Limits
from mhprobe.masking.trace import Curve, trace
from mhprobe.masking.units import make_units
from mhprobe.stats.promise import Guarantee
from mhprobe.surgery.given import Choice

WHERE = "prune"  # the options, for messages


class Promise(NamedTuple):
    """What can be promised. steps: of the path. heads: that go with them. images: that the promise stands on.

    curve: of the whole path on these images.
    """

    guarantee: Guarantee
    steps: int
    heads: int
    images: int
    curve: Curve


@dataclass(frozen=True)
class Promised:
    """order: of the path. units: head, index, layer or stage, what goes in one step.

    guarantee: what is to be kept. remove: at most so many heads go; None for all but what has to stay.
    exclude_layers, min_heads_per_layer, rescale: as for ``OnPath``. chosen_on: the split that chooses the path.
    seed: of the order in which images are looked at.
    """

    order: Order
    guarantee: Guarantee
    units: str = "head"
    remove: int | None = None
    exclude_layers: Sequence[int] = ()
    min_heads_per_layer: int = 0
    rescale: bool = False
    chosen_on: str = "train"
    seed: int = 0

    def choose(self, model: nn.Module, evaluate: Evaluate, calibrate: Evaluate) -> tuple[Choice, Promise]:
        """The heads that go, none where nothing can be promised, and how far the promise holds.

        evaluate: scores masks on the images that choose the path. calibrate: on those that are set aside.
        """
        self.check_images(calibrate.images)
        layout = layout_of(model)
        units = make_units(self.units, layout, self.exclude_layers)
        units = constrain(units, Limits(layout, self.min_heads_per_layer), WHERE)
        steps = self.remove if self.units == "head" else None
        path = self._short(self.order.paths(units, layout, evaluate, steps)[0])
        traces = trace([path], calibrate, guarantee=self.guarantee, seed=self.seed)
        name = f"{self.units}_{type(self.order).__module__.rpartition('.')[2]}"
        search = self.order.search_name(units)
        curve = Curve(name, "calibration", search, self.chosen_on, self.rescale, traces, self.guarantee)
        promised = traces[0].promised or 0
        mask = traces[0].mask[promised]
        return Choice(mask, self.rescale), Promise(self.guarantee, promised, int(mask.sum()), calibrate.images, curve)

    def check_images(self, images: int) -> None:
        """UserError where so few images could never show it."""
        if images < (needed := self.guarantee.images_needed):
            raise UserError(
                f"prune.guarantee: {images} calibration images can never show that at most "
                f"{self.guarantee.points:g} points are lost with {100 * self.guarantee.confidence:g} % confidence; "
                f"{needed} are the least. Raise data.calibration_fraction or prune.guarantee.points."
            )

    def _short(self, path: Path) -> Path:
        """The path up to where ``remove`` heads are gone, and before the last head goes."""
        gone = path.masks().sum(1)
        most = path.added.shape[1] - 1
        steps = int((gone[1:] <= min(most, self.remove or most)).sum())
        if not steps:
            raise UserError(
                f"prune.remove: the first step of the path takes {int(gone[1])} heads, got {self.remove}; ask for as "
                f"many, or take prune.units=head."
            )
        return dataclasses.replace(
            path,
            added=path.added[:steps],
            names=path.names[:steps],
            spent=path.spent[:steps],
            exhaustive=path.exhaustive[:steps],
        )
