"""Guarantees: how far along a path of removals one holds, on images that chose neither path nor weights.

Shapes: A heads (units) of all sites of the present network.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from mhprobe.data.base import SPLITS, ImageData, drawn_of_each_class
from mhprobe.errors import UserError
from mhprobe.heads import KINDS, HeadLayout
from mhprobe.io.written import counted
from mhprobe.masking.base import Evaluate, Path
from mhprobe.masking.parts.trace import Curve, trace
from mhprobe.pruning.given import Choice
from mhprobe.stats.promise import Guarantee


class Promise(NamedTuple):
    """A promise: the steps of the path, the units that go with them, and the number of images that it stands on."""

    guarantee: Guarantee
    steps: int
    heads: int | None  # None where none can go: without gates on them
    neurons: int | None
    images: int
    curve: Curve  # of the whole path on these images


def promise_of(
    choice: Choice, calibrate: Evaluate, guarantee: Guarantee, layout: HeadLayout, seed: int = 0
) -> Promise:
    """Test the promise without all heads of ``choice``, which go in one step or not at all.

    UserError: few images.
    """
    check_images(guarantee, calibrate.images)
    path = Path(None, choice.mask[None], ("given",))
    about = {"name": "given", "search": "", "chosen_on": None}
    return promise_on(path, calibrate, guarantee, seed, layout, rescale=choice.rescale, **about)


def check_unseen(chosen_by: Iterable[str], data: ImageData) -> None:
    """UserError where images that are set aside may be among those that chose heads (``Selection.name``)."""
    for images in chosen_by:
        split = images.partition(":")[0]
        if split == "test" or _are_apart(images, data):
            continue
        if split == "calibration":
            raise UserError(
                "guarantee: this calibration set was already used for a guarantee on this network; "
                "it can be used "
                "once. Prune the whole network anew, or use images of another data set."
            )
        raise UserError(
            f"guarantee: the {split} images that chose these heads may be among the calibration "
            "images. "
            "Choose them with this run's options of data (calibration_fraction, val_fraction, "
            "seed, limits)."
        )


def _are_apart(name: str, data: ImageData) -> bool:
    """Return True for images, by their name, that are in our training or validation split."""
    split, digest, *some = name.split(":")
    split = SPLITS.get(split, split)
    if split not in ("train", "val") or not digest:
        return False
    if not some:
        return data.images_of(split) == digest
    if len(some) != 2 or not all(number.isdecimal() and len(number) < 20 for number in some):
        return False
    count, seed = map(int, some)
    return (
        data.only(split, drawn_of_each_class(data, split, count, seed)).images_of(split) == digest
    )


def check_images(guarantee: Guarantee, images: int) -> None:
    """UserError where so few images could never show it."""
    if images < (needed := guarantee.images_needed):
        raise UserError(
            f"guarantee: {images} calibration images are too few to promise a loss of at most "
            f"{counted(guarantee.points, 'point')} with {100 * guarantee.confidence:g} % "
            "confidence; expected at "
            f"least {needed}. Raise the data's calibration_fraction or the guarantee's points."
        )


def promise_on(
    path: Path,
    calibrate: Evaluate,
    guarantee: Guarantee,
    seed: int,
    layout: HeadLayout,
    **about: Any,
) -> Promise:
    """Test the promise along a path. about: options of the curve."""
    traces = trace([path], calibrate, guarantee=guarantee, seed=seed)
    about |= {"split": "calibration", "scored": calibrate.scored, "layout": layout.digest}
    steps = traces[0].promised or 0
    gone = traces[0].mask[steps].tensor_split([layout.of("head").num_heads])
    heads, neurons = (
        int(part.sum()) if kind in layout.kinds else None
        for kind, part in zip(KINDS, gone, strict=True)
    )
    curve = Curve(traces=traces, guarantee=guarantee, **about)
    return Promise(guarantee, steps, heads, neurons, calibrate.images, curve)
