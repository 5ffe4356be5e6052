"""Heads to remove by any masking order, as far along its path as a budget or a guarantee says.

Of several rounds each removes an equal part, and searches its path anew on the network that the
round before left. With a guarantee, images that chose neither path nor weights decide how far to
follow it (``stats.promise``). Where no step can be promised, no head goes.

Shapes: A heads (units) of all sites of the present network.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mhprobe.backbones import layout_of
from mhprobe.errors import UserError
from mhprobe.heads import KINDS, HeadLayout
from mhprobe.masking.base import SHARES, Cost, Evaluate, Limits, Order, Path, Units
from mhprobe.masking.knapsack import refuse_multiple
from mhprobe.masking.parts.units import (
    Unreached,
    check_reached,
    constrain,
    refuse_neurons,
    targets_of,
)
from mhprobe.pruning.budget import (
    WHERE,
    HeadBudget,
    Promised,
    Share,
    budget_of,
    passed,
    steps_of,
    within,
)
from mhprobe.pruning.given import Choice
from mhprobe.pruning.promised import Promise, check_images, promise_on
from mhprobe.stats.promise import Guarantee
from mhprobe.surgery.costs import costs


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
        if len(limits) == 2:
            raise UserError("remove: target says how far to go as well. Give one of the two.")
        if not (limits or self.guarantee):
            raise UserError(
                "remove: say how far to go with remove=<how many heads>, or with target={heads: "
                "<left>}, "
                "{flops: <share left>}, or params, latency or memory instead of flops."
            )

    def check(self, model: nn.Module, rounds: int) -> None:
        """UserError for what can be seen to be impossible before the model has run on images."""
        layout = layout_of(model)
        steps_of(self.units, layout, self.exclude_layers)  # refuses unknown layers
        for refuse in RULES:
            refuse(self, layout, rounds)
        refuse_multiple(self._multiple, layout)
        budget = budget_of(self.remove, self.target, layout)
        if isinstance(budget, Share):
            budget.check(layout)  # before anything is measured
            self._check_reachable(model, budget)
        elif isinstance(budget, HeadBudget) and self.guarantee is None:
            budget.check(layout.num_heads, rounds)

    def _check_reachable(self, model: nn.Module, budget: Share) -> None:
        """UserError for a share that is left without all units; of time it is not known yet."""
        if {*budget.shares} <= {"flops", "params", *KINDS}:
            limits = (self.exclude_layers, self.min_heads_per_layer, self._multiple)
            within(model, budget.shares, self.units, *limits)

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
        budget = budget_of(self.remove, self.target, loaded)
        assert not isinstance(budget, Promised)
        goal = budget.after(part, layout, loaded, left)
        costs_left = self._costs(model, layout, images, budget.priced)
        if isinstance(budget, Share) and part < 1 and left == 1:
            # a target that the last round would miss is refused in the first
            self._units(layout, loaded, budget.shares, costs_left)
        with self._naming_remove():
            units = self._units(layout, loaded, goal, costs_left)
        steps = None
        if isinstance(budget, HeadBudget) and self.units == "head":
            steps = layout.num_heads - int(goal["heads"])
        path = self.order.paths(units, layout, evaluate, steps)[0]
        mask = path.masks()[-1]
        assert units.limits is not None
        check_reached(units, mask, WHERE)
        if isinstance(budget, HeadBudget):
            budget.check_met(path, goal["heads"], layout, (part, layout) == (1, loaded))
        left *= units.limits.targets[0].left(mask) if costs_left else 1.0
        return Choice(mask, self.rescale, scores=path.scores), left

    def promise(
        self,
        model: nn.Module,
        evaluate: Evaluate,
        calibrate: Evaluate,
        images: Callable[[], Tensor],
    ) -> tuple[Choice, Promise]:
        """The units that go, none where nothing can be promised, and how far the guarantee holds.

        evaluate, images: as for ``choose``. calibrate: scores masks on the images that are set
        aside. Heads and neurons without a target go by their cost in FLOPs.
        """
        assert self.guarantee is not None
        check_images(self.guarantee, calibrate.images)
        layout = layout_of(model)
        goal = budget_of(self.remove, self.target, layout).farthest(layout)
        priced = goal if {*goal} & {*SHARES} else ()
        costs_left = self._costs(model, layout, images, priced)
        units = self._units(layout, layout, goal, costs_left)
        steps = self.remove if self.units == "head" else None
        path = self._short(self.order.paths(units, layout, evaluate, steps)[0])
        name = f"{self.units}_{type(self.order).__module__.rpartition('.')[2]}"
        about = {"name": name, "search": self.order.search_name(units), "chosen_on": self.chosen_on}
        promise = promise_on(
            path, calibrate, self.guarantee, self.seed, layout, rescale=self.rescale, **about
        )
        return Choice(promise.curve.traces[0].mask[promise.steps], self.rescale), promise

    @contextlib.contextmanager
    def _naming_remove(self) -> Iterator[None]:
        """Say of ``remove`` what limits leave, where it was given and no target."""
        try:
            yield
        except Unreached as error:
            if self.remove is None:
                raise
            why = error.reason.partition(": ")[2].partition(". ")[0]
            raise UserError(
                f"remove: {self.remove} heads can't go: {why}. Ask for fewer, or lift these limits."
            ) from None

    @property
    def _multiple(self) -> int:
        """Number of which the neurons that stay in a layer are a multiple, as the order says."""
        return getattr(self.order, "multiple", 1)

    def _costs(
        self,
        model: nn.Module,
        layout: HeadLayout,
        images: Callable[[], Tensor],
        units: Collection[str],
    ) -> dict[str, Cost]:
        """The costs left of masks, by unit; images are asked for where there is one to know."""
        if not units:
            return {}
        return costs(model, layout, images(), units, self.latency_table, self._multiple)

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
        units = steps_of(self.units, layout, numbers)
        free = "neuron" in layout.kinds and self.target is None  # as far as can be promised
        multiple = self._multiple if self.target else None
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
            raise passed(gone[:2].tolist(), most if self.remove is None else self.remove, most + 1)
        columns = ("added", "names", "spent", "exhaustive")
        return dataclasses.replace(
            path, **{column: getattr(path, column)[:steps] for column in columns}
        )


def _refuse_rounds_of_a_guarantee(source: OnPath, layout: HeadLayout, rounds: int) -> None:
    if source.guarantee is not None and rounds > 1:
        raise UserError(f"rounds: a guarantee is of one round, got {rounds}.")


def _refuse_idle_table(source: OnPath, layout: HeadLayout, rounds: int) -> None:
    idle = rounds > 1 or "latency" not in (source.target or {})
    if source.latency_table is not None and idle:
        raise UserError(
            "latency_table: prices target={latency: <share left>} in one round. Give it, or no "
            "table."
        )


def _refuse_rounds_of_kinds(source: OnPath, layout: HeadLayout, rounds: int) -> None:
    if rounds > 1 and {*(source.target or {})} & layout.kinds:
        raise UserError(f"rounds: shares of each kind go in one round, got {rounds}.")


def _refuse_order_of_heads(source: OnPath, layout: HeadLayout, rounds: int) -> None:
    if source.units != "head":
        refuse_neurons(layout, "units")
    elif not source.order.of_neurons:
        refuse_neurons(layout, "order")


def _refuse_numbers_of_neurons(source: OnPath, layout: HeadLayout, rounds: int) -> None:
    counts = source.remove is not None or "heads" in (source.target or {})
    if "neuron" in layout.kinds and counts:
        raise UserError(
            "remove: it counts heads; for heads and neurons give target={flops: <share left>}."
        )


RULES: tuple[Callable[[OnPath, HeadLayout, int], None], ...] = (
    _refuse_rounds_of_a_guarantee,
    _refuse_idle_table,
    _refuse_rounds_of_kinds,
    _refuse_order_of_heads,
    _refuse_numbers_of_neurons,
)  # of the options in a layout, with a number of rounds


def removed_after(gone: Tensor, mask: Tensor) -> Tensor:
    """(loaded A,) bool: ``gone``, and what ``mask``, of the heads that were left, takes besides."""
    gone = gone.clone()
    gone[torch.nonzero(~gone).flatten()[mask]] = True
    return gone
