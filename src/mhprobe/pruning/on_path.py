"""Heads to remove by any masking order, as far along its path as a budget or a guarantee says.

Of several rounds each removes an equal part, and searches its path anew on the network that the
round before left. With a guarantee, images that chose neither path nor weights decide how far to
follow it (``stats.promise``). Where no step can be promised, no head goes.

Shapes: A heads (units) of all sites of the present network.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones import channels_of, input_spec, layout_of
from mhprobe.data.base import SPLITS, ImageData, drawn
from mhprobe.errors import UserError
from mhprobe.heads import KINDS, HeadLayout
from mhprobe.io.written import counted
from mhprobe.masking.base import SHARES, Cost, Evaluate, Limits, Order, Path, Units
from mhprobe.masking.by_score import refuse_unscored
from mhprobe.masking.knapsack import packed, refuse_multiple
from mhprobe.masking.parts.trace import Curve, trace
from mhprobe.masking.parts.units import (
    check_reached,
    constrain,
    make_units,
    refuse_neurons,
    targets_of,
)
from mhprobe.pruning.given import Choice
from mhprobe.stats.promise import Guarantee
from mhprobe.surgery.costs import costs

WHERE = "prune"  # the options, for messages


@dataclass(frozen=True)
class OnPath:
    """Heads at a point of a masking path.

    order: of the path. units: head, index, layer or stage, the heads of one step. remove: the
    number of heads to go.
    target: or what stays of the loaded network, {heads: how many} or {flops | params | latency |
    memory: share}; of heads and neurons a share, with an order of neurons. exclude_layers: never
    touched. min_heads_per_layer: of every layer so many stay. rescale: the heads that a layer keeps
    are multiplied by H / kept, in the search and in what is left. latency_table: the file of a
    table of times by width (surgery/costs.py), made if it is missing; None to measure now and keep
    no file. guarantee: to follow the path only as far as can be promised; remove or target is then
    the farthest. chosen_on: the split that chooses the path. seed: of the order of calibration
    images.

    Raises UserError unless one of remove and target is given; with a guarantee, if both are.
    """

    order: Order
    units: str = "head"
    remove: int | None = None
    target: Mapping[str, float] | None = None
    exclude_layers: Sequence[int] = ()
    min_heads_per_layer: int = 0
    rescale: bool = False
    latency_table: str | None = None
    guarantee: Guarantee | None = None
    chosen_on: str = "train"
    seed: int = 0

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.remove, self.target) if limit is not None]
        if len(limits) == 2 or not (limits or self.guarantee):
            raise UserError(
                "remove: say how far to go with remove=<how many heads>, or with target={heads: "
                "<left>}, "
                "{flops: <share left>}, or params, latency or memory instead of flops."
            )

    def check(self, model: nn.Module, rounds: int) -> None:
        """UserError for what can be seen to be impossible before the model has run on images."""
        layout = layout_of(model)
        _steps(self.units, layout, self.exclude_layers)  # refuses unknown layers
        if self.guarantee is not None and rounds > 1:
            raise UserError(f"rounds: a guarantee is of one round, got {rounds}.")
        if self.latency_table is not None and (rounds > 1 or "latency" not in (self.target or {})):
            raise UserError(
                "latency_table: prices target={latency: <share left>} in one round. Give it, or no "
                "table."
            )
        if rounds > 1 and {*(self.target or {})} & layout.kinds:
            raise UserError(f"rounds: shares of each kind go in one round, got {rounds}.")
        if not self.order.of_neurons or self.units != "head":
            refuse_neurons(layout, "order" if self.units == "head" else "units")
        if "neuron" in layout.kinds and (self.remove is not None or "heads" in (self.target or {})):
            raise UserError(
                "remove: it counts heads; for heads and neurons give target={flops: <share left>}."
            )
        multiple = getattr(self.order, "multiple", 1)
        refuse_multiple(multiple, layout)
        if self.target is not None and "heads" not in self.target:
            targets_of(
                self.target, layout, dict.fromkeys(SHARES, lambda masks: masks)
            )  # before anything is measured
            if min(self.target.values()) >= 1:
                raise UserError(
                    "target: the whole network meets it: nothing would be removed. Ask for less "
                    "than 1."
                )
            if {*self.target} <= {"flops", "params", *KINDS}:
                within(
                    model,
                    self.target,
                    self.units,
                    self.exclude_layers,
                    self.min_heads_per_layer,
                    multiple,
                )
        count = layout.num_heads
        remove = self._in_all(count)
        if remove is None or self.guarantee is not None:
            return
        if not 0 < remove < count:
            key, verb, got = (
                ("target.heads", "stay", count - remove)
                if self.target
                else ("remove", "go", remove)
            )
            raise UserError(
                f"{key}: of {count} heads 1 to {count - 1} can {verb}, got {got}; the nearest is "
                f"{min(max(got, 1), count - 1)}."
            )
        if remove < rounds:
            raise UserError(f"rounds: {rounds} rounds for {remove} heads; the nearest is {remove}.")

    def choose(
        self,
        model: nn.Module,
        evaluate: Evaluate,
        images: Callable[[], Tensor],
        loaded: HeadLayout,
        left: float,
        part: float,
    ) -> tuple[Choice, float]:
        """The heads that go in this round, and the share of the loaded network's cost that will be left.

        evaluate: scores masks of ``model``, the present one, on the images that choose. images: a
        batch, to time it.
        left: the share of the ``loaded`` network's cost that ``model`` has. part: of the way after
        this round, 0 to 1.
        """
        layout = layout_of(model)
        remove, costs_left = self._in_all(loaded.num_heads), {}
        if remove is not None:
            goal = {"heads": min(float(loaded.num_heads - round(part * remove)), layout.num_heads)}
        else:
            assert self.target is not None
            costs_left = self._costs(model, layout, images(), self.target)
            # the round before may have gone farther than it had to: a unit goes whole or not at all
            goal = {
                unit: min(max(1.0, share), (1 - part * (1 - share)) / left)
                for unit, share in self.target.items()
            }
            if (
                part < 1 and left == 1
            ):  # a target that the last round would miss is refused in the first
                self._units(layout, loaded, self.target, costs_left)
        units = self._units(layout, loaded, goal, costs_left)
        steps = (
            layout.num_heads - int(goal["heads"])
            if remove is not None and self.units == "head"
            else None
        )
        path = self.order.paths(units, layout, evaluate, steps)[0]
        mask = path.masks()[-1]
        assert units.limits is not None
        check_reached(units, mask, WHERE)
        if remove is not None and self.target is None:
            gone, wanted = path.masks().sum(1).tolist(), layout.num_heads - int(goal["heads"])
            if gone[-1] != wanted:
                # of several rounds only the last sees where it ends
                raise _passed(
                    gone[-2:], wanted, layout.num_heads if (part, layout) == (1, loaded) else 0
                )
        left *= units.limits.targets[0].left(mask) if costs_left else 1.0
        return Choice(mask, self.rescale, scores=path.scores), left

    def promise(
        self,
        model: nn.Module,
        evaluate: Evaluate,
        calibrate: Evaluate,
        images: Callable[[], Tensor],
    ) -> tuple[Choice, "Promise"]:
        """The units that go, none where nothing can be promised, and how far the guarantee holds.

        evaluate, images: as for ``choose``. calibrate: scores masks on the images that are set
        aside. Heads and neurons without a target go by their cost in FLOPs.
        """
        assert self.guarantee is not None
        check_images(self.guarantee, calibrate.images)
        layout = layout_of(model)
        goal = self.target or ({"flops": 0.0} if "neuron" in layout.kinds else {})
        costs_left = self._costs(model, layout, images(), goal) if {*goal} & {*SHARES} else {}
        units = self._units(layout, layout, goal, costs_left)
        steps = self.remove if self.units == "head" else None
        path = self._short(self.order.paths(units, layout, evaluate, steps)[0])
        name = f"{self.units}_{type(self.order).__module__.rpartition('.')[2]}"
        about = {"name": name, "search": self.order.search_name(units), "chosen_on": self.chosen_on}
        promise = _promise(
            path, calibrate, self.guarantee, self.seed, layout, rescale=self.rescale, **about
        )
        return Choice(promise.curve.traces[0].mask[promise.steps], self.rescale), promise

    def _costs(
        self, model: nn.Module, layout: HeadLayout, images: Tensor, units: Collection[str]
    ) -> dict[str, Cost]:
        return costs(
            model, layout, images, units, self.latency_table, getattr(self.order, "multiple", 1)
        )

    def _in_all(self, num_heads: int) -> int | None:
        if self.target is None or "heads" not in self.target:
            return self.remove
        heads = self.target["heads"]
        if heads != int(heads):
            raise UserError(f"target.heads: expected a whole number of heads, got {heads}.")
        return num_heads - int(heads)

    def _units(
        self,
        layout: HeadLayout,
        loaded: HeadLayout,
        goal: Mapping[str, float],
        costs_left: Mapping[str, Cost],
    ) -> Units:
        excluded = {loaded.sites[number].name for number in self.exclude_layers}
        numbers = [
            number for number, site in enumerate(layout.sites) if site.name in excluded
        ]  # without emptied ones
        limits = Limits(
            layout, self.min_heads_per_layer, targets_of(goal, layout, costs_left) if goal else ()
        )
        units = _steps(self.units, layout, numbers)
        free = "neuron" in layout.kinds and self.target is None  # as far as can be promised
        multiple = getattr(self.order, "multiple", 1) if self.target else None
        return (
            dataclasses.replace(units, limits=limits)
            if free
            else constrain(units, limits, WHERE, multiple)
        )

    def _short(self, path: Path) -> Path:
        """The path up to where ``remove`` heads are gone, and before the last head goes."""
        gone, most = path.masks().sum(1), path.added.shape[1] - 1
        steps = int((gone[1:] <= min(most, self.remove or most)).sum())
        if not steps:
            raise _passed(gone[:2].tolist(), most if self.remove is None else self.remove, most + 1)
        columns = ("added", "names", "spent", "exhaustive")
        return dataclasses.replace(
            path, **{column: getattr(path, column)[:steps] for column in columns}
        )


def _passed(steps: Sequence[int], wanted: int, count: int) -> UserError:
    """The error of steps that pass ``wanted``.

    count: of heads, of which fewer can be asked for; 0 if it is unknown.
    """
    usable = [str(gone) for gone in steps if 0 < gone < count]
    start = (
        f"remove: units of several heads step from {steps[0]} to {steps[1]} removed, got {wanted}."
    )
    return UserError(
        f"{start} {'Ask for ' + ' or '.join(usable) + ', or take' if usable else 'Take'} "
        "units=head."
    )


def within(
    model: nn.Module,
    target: Mapping[str, float],
    step: str = "head",
    exclude_layers: Sequence[int] = (),
    min_heads_per_layer: int = 0,
    multiple: int = 1,
) -> Units:
    """The units of ``model`` that may go under ``target``, {flops | params | memory: share left} or of each kind.

    multiple: as for ``Knapsack``. UserError for a share below what is left without all of them, but
    for one, and for widths that are no multiples.
    """
    layout = layout_of(model)
    refuse_multiple(multiple, layout)
    device = next(model.parameters()).device
    image = torch.zeros(1, channels_of(model), *input_spec(model)["size"], device=device)
    limits = Limits(
        layout, min_heads_per_layer, targets_of(target, layout, costs(model, layout, image, target))
    )
    return constrain(_steps(step, layout, exclude_layers), limits, WHERE, multiple)


def mask_by(score_A: Tensor, units: Units, **options: Any) -> Tensor:
    """(A,) bool, the units that go to the target of ``units``, lowest score first.

    options: of ``packed``.

    UserError for a score that is not finite.
    """
    assert units.limits is not None
    layout = units.limits.layout
    refuse_unscored(score_A, units.masks.any(0), layout, WHERE)
    mask = packed(score_A.double(), units, layout, **options).masks()[-1]
    check_reached(units, mask, WHERE)
    return mask


def _steps(name: str, layout: HeadLayout, exclude_layers: Sequence[int]) -> Units:
    """Units of a step; with neurons, of which an order makes its own, the layers that may lose some."""
    return make_units("layer" if "neuron" in layout.kinds else name, layout, exclude_layers)


def removed_after(gone: Tensor, mask: Tensor) -> Tensor:
    """(loaded A,) bool: ``gone``, and what ``mask``, of the heads that were left, takes besides."""
    gone = gone.clone()
    gone[torch.nonzero(~gone).flatten()[mask]] = True
    return gone


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
    path, about = (
        Path(None, choice.mask[None], ("given",)),
        {"name": "given", "search": "", "chosen_on": None},
    )
    return _promise(path, calibrate, guarantee, seed, layout, rescale=choice.rescale, **about)


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
    return data.only(split, drawn(data, split, count, seed)).images_of(split) == digest


def check_images(guarantee: Guarantee, images: int) -> None:
    """UserError where so few images could never show it."""
    if images < (needed := guarantee.images_needed):
        raise UserError(
            f"guarantee: {images} calibration images are too few to promise a loss of at most "
            f"{counted(guarantee.points, 'point')} with {100 * guarantee.confidence:g} % "
            "confidence; expected at "
            f"least {needed}. Raise the data's calibration_fraction or the guarantee's points."
        )


def _promise(
    path: Path,
    calibrate: Evaluate,
    guarantee: Guarantee,
    seed: int,
    layout: HeadLayout,
    **about: Any,
) -> Promise:
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
