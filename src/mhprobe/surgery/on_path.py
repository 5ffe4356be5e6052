"""Heads to remove by any masking order: its path is followed until so many heads are off, or a target is met.

With several rounds each removes an equal part, and finds its path anew on the network that the round before left.

Shapes: A heads of all sites of the present network.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import input_spec, layout_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Order, Units
from mhprobe.masking.parts.limits import Cost, Limits
from mhprobe.masking.parts.units import check_reached, constrain, make_units, refuse_neurons, target_of
from mhprobe.surgery.costs import costs, head_shares
from mhprobe.surgery.given import Choice
from mhprobe.surgery.latency import latency_cost

WHERE = "prune"  # the options, for messages


@dataclass(frozen=True)
class OnPath:
    """Heads at a point of a masking path.

    order: of the path. units: head, index, layer or stage, the heads of one step.
    remove: how many heads go in all. target: or, instead, what shall be left of the loaded network: {heads: how many} |
        {flops: share} | {params: share} | {latency: share}; where the model has gates on neurons, too, one of the last
        three, with an order of neurons (knapsack).
    exclude_layers: never touched. min_heads_per_layer: of every layer so many stay. rescale: the heads that a layer
        keeps are multiplied by H / kept, while the path is searched and in what is left.
    latency_table: the file of a table of times by width (surgery/latency.py), made if it is missing; None to take two
        points of each layer now.
    """

    order: Order
    units: str = "head"
    remove: int | None = None
    target: Mapping[str, float] | None = None
    exclude_layers: Sequence[int] = ()
    min_heads_per_layer: int = 0
    rescale: bool = False
    latency_table: str | None = None

    def __post_init__(self) -> None:
        if (self.remove is None) == (self.target is None):
            raise UserError(
                "remove: say how far to go with remove=<how many heads>, or with target={heads: <left>}, "
                "{flops: <share left>}, {params: <share left>} or {latency: <share left>}."
            )

    def check(self, layout: HeadLayout, rounds: int) -> None:
        """UserError for what can be seen to be impossible before the model has run."""
        if self.latency_table is not None and (rounds > 1 or "latency" not in (self.target or {})):
            raise UserError("latency_table: prices target={latency: <share left>} in one round.")
        if "neuron" in layout.kinds:
            if not self.order.of_neurons or self.units != "head":
                refuse_neurons(layout, "order" if self.units == "head" else "units")
            if self.remove is not None or "heads" in (self.target or {}):
                raise UserError("remove: counts heads alone; of a mix give target={flops: <share left>}.")
        num_heads = layout.num_heads
        remove = self._in_all(num_heads)
        if remove is None:
            return
        if not 0 < remove < num_heads:
            option = "remove" if self.target is None else "target.heads"
            nearest = min(max(remove, 1), num_heads - 1)
            raise UserError(
                f"{option}: of {num_heads} heads 1 to {num_heads - 1} can go, got {remove}; the nearest is "
                f"{nearest if self.target is None else num_heads - nearest}."
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

        evaluate: scores masks of the present ``model`` on the images that choose. images: a batch, to time it.
        loaded: the heads of the loaded network. left: what the present one has of its cost. part: how much
        of the way is to be done after this round, from 0 to 1.
        """
        layout = layout_of(model)
        remove, costs_left = self._in_all(loaded.num_heads), {}
        if remove is not None:
            goal = {"heads": min(float(loaded.num_heads - round(part * remove)), layout.num_heads)}
        else:
            assert self.target is not None
            costs_left = self._costs(model, layout, images(), self.target)
            # the round before may have gone farther than it had to: a unit goes whole or not at all
            goal = {unit: min(max(1.0, share), (1 - part * (1 - share)) / left) for unit, share in self.target.items()}
        units = self._units(layout, loaded, goal, costs_left)
        steps = layout.num_heads - int(goal["heads"]) if remove is not None and self.units == "head" else None
        path = self.order.paths(units, layout, evaluate, steps)[0]
        mask = path.masks()[-1]
        assert units.limits is not None and units.limits.target is not None
        check_reached(units.limits, mask, WHERE)
        _exactly(units, path.masks(), remove is not None and self.target is None)
        left *= units.limits.target.left(mask) if costs_left else 1.0
        return Choice(mask, self.rescale, scores=path.scores), left

    def _costs(self, model: nn.Module, layout: HeadLayout, images: Tensor, target: Collection[str]) -> dict[str, Cost]:
        if self.latency_table is not None and "latency" in target:
            return {"latency": latency_cost(self.latency_table, model, layout, images)}
        return costs(head_shares(model, layout, images, target))

    def _in_all(self, num_heads: int) -> int | None:
        """Return the number of heads to remove, where the options name a number."""
        if self.target is None or "heads" not in self.target:
            return self.remove
        heads = self.target["heads"]
        if heads != int(heads):
            raise UserError(f"target.heads: expected a whole number of heads, got {heads}.")
        return num_heads - int(heads)

    def _units(
        self, layout: HeadLayout, loaded: HeadLayout, goal: Mapping[str, float], costs_left: Mapping[str, Cost]
    ) -> Units:
        mixed = "neuron" in layout.kinds
        # of thousands of neurons the order makes the units itself: it is told the layers
        make_units(name := "layer" if mixed else self.units, loaded, self.exclude_layers)  # refuses unknown layers
        excluded = {loaded.sites[number].name for number in self.exclude_layers}
        there = [number for number, site in enumerate(layout.sites) if site.name in excluded]  # without emptied ones
        limits = Limits(layout, self.min_heads_per_layer, target_of(goal, layout, costs_left))
        units = make_units(name, layout, there)
        return dataclasses.replace(units, limits=limits) if mixed else constrain(units, limits, WHERE)


def _exactly(units: Units, masks_SA: Tensor, exact: bool) -> None:
    """UserError if a number of heads was asked for and units of several heads step over it."""
    assert units.limits is not None and units.limits.target is not None
    left = [int((~mask).sum()) for mask in masks_SA]
    wanted = int(units.limits.target.value)
    if exact and left[-1] != wanted:
        total = masks_SA.shape[1]
        raise UserError(
            f"remove: units of several heads step from {total - left[-2]} to {total - left[-1]} removed, got "
            f"{total - wanted}. Ask for one of them, or take units=head."
        )


class _Known(Evaluate):
    """Scores that were measured before."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def __call__(self, masks: Tensor, images: Tensor | None = None) -> Any:
        raise NotImplementedError("there are scores of units here, none of masks")

    def measure(self, make: Callable[[HeadLayout], Any], mask: Tensor, column: str = "value") -> Tensor:
        return self.scores


def mask_by(scores_A: Tensor, model: nn.Module, source: OnPath) -> Tensor:
    """(A,) bool, the units that go by ``source``, whose order is by these scores, lowest first. No image is asked."""
    image = torch.zeros(1, 3, *input_spec(model)["size"], device=next(model.parameters()).device)
    return source.choose(model, _Known(scores_A), lambda: image, layout_of(model), 1.0, 1.0)[0].mask


def removed_after(gone: Tensor, mask: Tensor) -> Tensor:
    """(loaded A,) bool: ``gone``, and what ``mask``, of the heads that were left, takes besides."""
    gone = gone.clone()
    gone[torch.nonzero(~gone).flatten()[mask]] = True
    return gone
