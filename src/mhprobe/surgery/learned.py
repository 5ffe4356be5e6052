"""Pruning by learned gates: hard-concrete gates on frozen weights, trained to an expected share of the FLOPs.

Louizos et al. 2018, arXiv 1712.01312 (the gates, gates/hard_concrete.py); Wang, Wohlwend & Lei 2020, arXiv 1910.04732,
and CoFi, Xia et al. 2022, arXiv 2204.00408 (the price, gates/target.py). The expected share of FLOPs is 1 - sum over
units of P(closed) times cost. Then the units of least P(open) go, until the budget is met.

Where we differ: the weights stay as they are; repair and tuning follow.

Shapes: A units of all sites, B images of a step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mhprobe.backbones import layout_of
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.gates.hard_concrete import EPS, HardConcrete
from mhprobe.gates.target import Lagrangian
from mhprobe.recording.outputs import gate_slope
from mhprobe.recording.state import inspecting
from mhprobe.surgery.costs import head_shares
from mhprobe.surgery.on_path import mask_by, within
from mhprobe.surgery.rounds import Images

START, END = 3.0, 4.6  # log_alpha begins, and ends at the most (CoFi's ln 100): nothing closes or opens for good


@dataclass(frozen=True)
class LearnedGates:
    """Choose units by gates that are fitted to the loss and to a budget.

    steps: of Adam, at ``lr``, each with a draw of the gates and ``batch`` images. price_lr: of the multipliers. seed:
    of draws and images. UserError for numbers below 1, or rates that are not above 0.
    """

    steps: int = 300
    batch: int = 64
    lr: float = 0.1
    price_lr: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("lr", 1e-12), ("price_lr", 1e-12)):
            if not getattr(self, name) >= least:
                raise UserError(f"{name}: learned gates need {least:g} or more, got {getattr(self, name)}.")

    def choose(self, model: nn.Module, images: Images, share: float) -> Tensor:
        """(A,) bool, the units that go so that at most ``share`` of the FLOPs is left. ``model`` carries gates."""
        units, cost_A = within(model, {"flops": share}), head_shares(model, layout_of(model), images.first())
        return mask_by(self.fit(model, images, share, cost_A), units, compete="each")

    def fit(self, model: nn.Module, images: Images, share: float, cost_A: Tensor) -> Tensor:
        """(A,) float64, P(open) after the last step; ``cost_A`` is the share of all FLOPs that a unit is."""
        gates, relaxed, price = gates_of(model), HardConcrete(), Lagrangian(lr=self.price_lr)
        factors, draw = gates.effective().cpu().double(), torch.Generator().manual_seed(self.seed)
        with inspecting(model, gradients=True), gates.fixed(gates.effective()):
            log_alpha = torch.full_like(factors, START).requires_grad_()
            optimizer = torch.optim.Adam([
                {"params": [log_alpha], "lr": self.lr},
                {"params": list(price.parameters()), "lr": self.price_lr, "maximize": True},
            ])  # fmt: skip
            for step in range(self.steps):
                noise = torch.rand(len(factors), generator=draw, dtype=torch.float64).clamp(EPS, 1 - EPS).logit()
                gate = relaxed.sample(log_alpha, noise)
                shown = torch.randperm(len(images.chosen), generator=draw)[: self.batch]
                slope = gate_slope(model, gates, factors * gate.detach(), images.sloped(shown), images.of).cpu()
                left = 1 - (cost_A * (1 - relaxed.p_open(log_alpha))).sum()
                loss = (slope * factors * gate).sum() + price.price(left, share, step / self.steps)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    log_alpha.clamp_(-END, END)
        return relaxed.p_open(log_alpha.detach())
