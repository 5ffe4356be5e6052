"""Budgets of a pruning: a number of heads, a share of a cost, or as much as can be promised.

Shapes: A heads (units) of all sites of the present network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import channels_of, input_spec, layout_of
from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import SHARES, Limits, Path, Units
from mhprobe.masking.by_score import refuse_unscored
from mhprobe.masking.knapsack import knapsack_path, refuse_multiple
from mhprobe.masking.parts.units import check_reached, constrain, make_units, targets_of
from mhprobe.surgery.costs import costs

WHERE = "prune"  # the options, for messages


@dataclass(frozen=True)
class HeadBudget:
    """Budget of a number of heads of the loaded network, which go.

    typed: the option that says so, remove, or target.heads: how many stay.
    """

    remove: int
    typed: str = "remove"

    @property
    def priced(self) -> Sequence[str]:
        """Costs that must be known to follow a path so far."""
        return ()

    def after(
        self, part: float, layout: HeadLayout, loaded: HeadLayout, left: float
    ) -> dict[str, float]:
        """Return what is to be left of the present network, by unit, at ``part`` of the way, 0 to 1.

        left: the share of the ``loaded`` network's cost that it has.
        """
        heads = float(loaded.num_heads - round(part * self.remove))
        return {"heads": min(heads, layout.num_heads)}

    def farthest(self, layout: HeadLayout) -> dict[str, float]:
        """Return what is left, by unit, where a path with a guarantee ends; {} for all of the path."""
        counted = self.typed == "target.heads"
        return {"heads": float(layout.num_heads - self.remove)} if counted else {}

    def check(self, count: int, rounds: int) -> None:
        """UserError for more heads than there are, and for fewer than ``rounds``. count: of heads."""
        if not 0 < self.remove < count:
            stays = self.typed == "target.heads"
            verb, got = ("stay", count - self.remove) if stays else ("go", self.remove)
            raise UserError(
                f"{self.typed}: of {count} heads 1 to {count - 1} can {verb}, got {got}; the nearest "
                f"is {min(max(got, 1), count - 1)}."
            )
        if self.remove < rounds:
            raise UserError(
                f"rounds: {rounds} rounds for {self.remove} heads; the nearest is {self.remove}."
            )

    def check_met(self, path: Path, left: float, layout: HeadLayout, first: bool) -> None:
        """UserError for steps of several heads that pass the number.

        left: heads that were to be left. first: True if the path is of the loaded network, all the
        way.
        """
        gone, wanted = path.masks().sum(1).tolist(), layout.num_heads - int(left)
        if self.typed == "remove" and gone[-1] != wanted:
            # of several rounds only the last sees where it ends
            raise passed(gone[-2:], wanted, layout.num_heads if first else 0)


@dataclass(frozen=True)
class Share:
    """Shares of costs of the loaded network that stay, by unit: flops, params, latency, memory, or each kind."""

    shares: Mapping[str, float]

    @property
    def priced(self) -> Sequence[str]:
        return [*self.shares]

    def after(
        self, part: float, layout: HeadLayout, loaded: HeadLayout, left: float
    ) -> dict[str, float]:
        """Return the target after a part of the rounds, as ``HeadBudget`` does.

        A round before may have gone farther than it had to: a unit goes whole or not at all.
        """
        return {
            unit: min(max(1.0, share), (1 - part * (1 - share)) / left)
            for unit, share in self.shares.items()
        }

    def farthest(self, layout: HeadLayout) -> dict[str, float]:
        return dict(self.shares)

    def check(self, layout: HeadLayout) -> None:
        """UserError for shares that mean nothing here, and for one that the whole network has."""
        targets_of(self.shares, layout, dict.fromkeys(SHARES, lambda masks: masks))
        if min(self.shares.values()) >= 1:
            raise UserError(
                "target: the whole network meets it: nothing would be removed. Ask for less than 1."
            )


@dataclass(frozen=True)
class Promised:
    """Budget of a guarantee: as much goes as it allows, heads and neurons by their cost in FLOPs."""

    def farthest(self, layout: HeadLayout) -> dict[str, float]:
        return {"flops": 0.0} if "neuron" in layout.kinds else {}


Budget = HeadBudget | Share | Promised


def budget_of(remove: int | None, target: Mapping[str, float] | None, layout: HeadLayout) -> Budget:
    """Return the budget of the options ``remove`` and ``target`` for a loaded network.

    UserError for a part of a head.
    """
    if target is not None and "heads" in target:
        if len(target) > 1:
            raise UserError(
                f"target: expected one of heads, {', '.join(SHARES)} with its value, got "
                f"{quoted(dict(target))}."
            )
        heads = target["heads"]
        if heads != int(heads):
            raise UserError(f"target.heads: expected a whole number of heads, got {heads}.")
        return HeadBudget(layout.num_heads - int(heads), "target.heads")
    if target is not None:
        return Share(target)
    return Promised() if remove is None else HeadBudget(remove)


def passed(steps: Sequence[int], wanted: int, count: int) -> UserError:
    """Return the error of steps that pass ``wanted``.

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
    return constrain(steps_of(step, layout, exclude_layers), limits, WHERE, multiple)


def mask_by(score_A: Tensor, units: Units, **options: Any) -> Tensor:
    """(A,) bool, the units that go to the target of ``units``, lowest score first.

    options: of ``knapsack_path``.

    UserError for a score that is not finite.
    """
    assert units.limits is not None
    layout = units.limits.layout
    refuse_unscored(score_A, units.masks.any(0), layout, WHERE)
    mask = knapsack_path(score_A.double(), units, layout, **options).masks()[-1]
    check_reached(units, mask, WHERE)
    return mask


def steps_of(name: str, layout: HeadLayout, exclude_layers: Sequence[int]) -> Units:
    """Units of a step; with neurons, of which an order makes its own, the layers that may lose some."""
    return make_units("layer" if "neuron" in layout.kinds else name, layout, exclude_layers)
