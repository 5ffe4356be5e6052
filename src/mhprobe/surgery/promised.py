"""Heads to remove by any masking order, with a promise: new images lose at most so many points of accuracy.

The path is chosen on some images. How far it may be followed is decided on others, which chose neither the path nor the
weights (``stats.promise``). Where no step can be promised, no head goes.

Shapes: A heads of all sites.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from mhprobe.backbones import layout_of
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Order, Path
from mhprobe.masking.parts.limits import Limits
from mhprobe.masking.parts.trace import Curve, trace
from mhprobe.masking.parts.units import constrain, make_units, refuse_neurons
from mhprobe.stats.promise import Guarantee
from mhprobe.surgery.given import Choice

WHERE = "prune"  # the options, for messages


class Promise(NamedTuple):
    """A promise: the steps of the path, the heads that go with them, and the number of images that it stands on.

    curve: of the whole path on these images.
    """

    guarantee: Guarantee
    steps: int
    heads: int
    images: int
    curve: Curve


@dataclass(frozen=True)
class Promised:
    """Heads of a path as far as can be promised.

    order: of the path. units: head, index, layer or stage, the heads of one step.
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
        check_images(self.guarantee, calibrate.images)
        layout = layout_of(model)
        refuse_neurons(layout, "guarantee")
        units = make_units(self.units, layout, self.exclude_layers)
        units = constrain(units, Limits(layout, self.min_heads_per_layer), WHERE)
        steps = self.remove if self.units == "head" else None
        path = self._short(self.order.paths(units, layout, evaluate, steps)[0])
        name = f"{self.units}_{type(self.order).__module__.rpartition('.')[2]}"
        about = {"name": name, "search": self.order.search_name(units), "chosen_on": self.chosen_on}
        promise = _promise(path, calibrate, self.guarantee, self.seed, layout, rescale=self.rescale, **about)
        return Choice(promise.curve.traces[0].mask[promise.steps], self.rescale), promise

    def _short(self, path: Path) -> Path:
        """The path up to where ``remove`` heads are gone, and before the last head goes."""
        gone = path.masks().sum(1)
        most = path.added.shape[1] - 1
        steps = int((gone[1:] <= min(most, self.remove or most)).sum())
        if not steps:
            raise UserError(
                f"remove: the first step of the path takes {int(gone[1])} heads, got {self.remove}; ask for as "
                f"many, or take units=head."
            )
        columns = ("added", "names", "spent", "exhaustive")
        return dataclasses.replace(path, **{column: getattr(path, column)[:steps] for column in columns})


def promise_of(choice: Choice, calibrate: Evaluate, guarantee: Guarantee, layout: HeadLayout, seed: int = 0) -> Promise:
    """Test the promise without all heads of ``choice``, which go in one step or not at all. UserError: few images."""
    check_images(guarantee, calibrate.images)
    path, about = Path(None, choice.mask[None], ("given",)), {"name": "given", "search": "", "chosen_on": None}
    return _promise(path, calibrate, guarantee, seed, layout, rescale=choice.rescale, **about)


def check_unseen(chosen_by: Iterable[str], data: ImageData) -> None:
    """UserError where images that are set aside may be among those that chose heads ("split:digest" each)."""
    apart = {data.images_of(split) for split in ("train", "val")}
    for images in chosen_by:
        split, _, digest = images.partition(":")
        if split == "test" or digest in apart:
            continue
        if split == "calibration":
            raise UserError(
                "guarantee: images that were set aside have decided before how many heads of this network go: "
                "each set promises once. Prune the whole network anew, or promise on images of another data set."
            )
        raise UserError(
            f"guarantee: the heads were chosen on {split} images that may be among those that are set aside now. "
            f"Choose them with this run's options of data (calibration_fraction, val_fraction, seed, limits)."
        )


def check_images(guarantee: Guarantee, images: int) -> None:
    """UserError where so few images could never show it."""
    if images < (needed := guarantee.images_needed):
        raise UserError(
            f"guarantee: {images} calibration images can never show that at most {guarantee.points:g} points are "
            f"lost with {100 * guarantee.confidence:g} % confidence; {needed} are the least. Raise "
            f"the data's calibration_fraction or the guarantee's points."
        )


def _promise(
    path: Path, calibrate: Evaluate, guarantee: Guarantee, seed: int, layout: HeadLayout, **about: Any
) -> Promise:
    """about: further fields of the curve."""
    traces = trace([path], calibrate, guarantee=guarantee, seed=seed)
    about |= {"split": "calibration", "scored": calibrate.scored, "layout": layout.digest}
    steps = traces[0].promised or 0
    heads, curve = int(traces[0].mask[steps].sum()), Curve(traces=traces, guarantee=guarantee, **about)
    return Promise(guarantee, steps, heads, calibrate.images, curve)
