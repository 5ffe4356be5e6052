"""Pruning by learned gates: hard-concrete gates on frozen weights, trained to an expected share of the FLOPs.

Louizos et al. 2018, arXiv 1712.01312 (the gates, gates/hard_concrete.py); Wang, Wohlwend & Lei
2020, arXiv 1910.04732, and CoFi, Xia et al. 2022, arXiv 2204.00408 (the price, gates/target.py).
The expected share of FLOPs is 1 - sum over units of P(closed) times cost. Then the units of least
P(open) go, until the budget is met.

Where we differ: the weights stay as they are; repair and tuning follow.

Shapes: A units of all sites, B images of a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.gates.hard_concrete import EPS, HardConcrete
from mhprobe.gates.target import Lagrangian
from mhprobe.io.progress import progress
from mhprobe.masking.parts.units import saving_of_each
from mhprobe.pruning.budget import mask_by, within
from mhprobe.pruning.rounds import Judge
from mhprobe.recording.outputs import gate_slope
from mhprobe.recording.state import inspecting

START, END = (
    3.0,
    4.6,
)  # log_alpha begins, and ends at the most (CoFi's ln 100): nothing closes or opens for good


@dataclass(frozen=True)
class LearnedGates:
    """Choose units by gates that are fitted to the loss and to a budget.

    steps: of Adam, at ``lr``, each with a draw of the gates and ``batch`` images. price_lr: of the
    multipliers. seed: of draws and images. multiple: as for ``Knapsack``. UserError for numbers
    below 1, or rates that are not above 0.
    """

    steps: int = 300
    batch: int = 64
    lr: float = 0.1
    price_lr: float = 0.1
    seed: int = 0
    multiple: int = 1

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("lr", 1e-12), ("price_lr", 1e-12)):
            if not getattr(self, name) >= least:
                raise UserError(
                    f"{name}: learned gates need {least:g} or more, got {getattr(self, name)}."
                )

    def choose(self, model: nn.Module, judge: Judge, target: Mapping[str, float]) -> Tensor:
        """(A,) bool, units to remove so that at most ``target`` is left (units of it: ``within``).

        model: carries gates.
        """
        units = within(model, target)
        open_A = self.fit(model, judge, [*target.values()], saving_of_each(units.limits))
        return mask_by(open_A, units, compete="each", multiple=self.multiple)

    def fit(
        self, model: nn.Module, judge: Judge, shares: Sequence[float], cost_TA: Tensor
    ) -> Tensor:
        """(A,) float64, P(open) after the last step. cost_TA: share of each whole that a unit is, of FLOPs or a kind.

        shares: of each whole that may be left.
        """
        gates, count = gates_of(model), len(judge.selection.chosen)
        relaxed = HardConcrete()
        prices = [Lagrangian(lr=self.price_lr) for _ in shares]
        factors = gates.effective().cpu().double()
        draw = torch.Generator().manual_seed(self.seed)
        show = progress("learning gates", self.steps, "steps")
        with inspecting(model, gradients=True), gates.fixed(gates.effective()), show as done:
            log_alpha = torch.full_like(factors, START).requires_grad_()
            optimizer = torch.optim.Adam(
                [
                    {"params": [log_alpha], "lr": self.lr},
                    {
                        "params": [p for price in prices for p in price.parameters()],
                        "lr": self.price_lr,
                        "maximize": True,
                    },
                ]
            )
            for step in range(self.steps):
                noise = (
                    torch.rand(len(factors), generator=draw, dtype=torch.float64)
                    .clamp(EPS, 1 - EPS)
                    .logit()
                )
                gate = relaxed.sample(log_alpha, noise)
                positions = torch.randperm(count, generator=draw)[: self.batch]
                slope = gate_slope(
                    model, gates, factors * gate.detach(), judge.sloped(positions), judge.of
                ).cpu()
                left_T = 1 - cost_TA @ (1 - relaxed.p_open(log_alpha))
                loss = (slope * factors * gate).sum()
                for price, left, share in zip(prices, left_T, shares, strict=True):
                    loss = loss + price.price(left, share, step / self.steps)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    log_alpha.clamp_(-END, END)
                done(1)
        return relaxed.p_open(log_alpha.detach())
