"""Gates that are 0 or 1 with some probability, and that gradients can train: the L0 penalty made smooth.

Louizos, Welling & Kingma, 2018, arXiv 1712.01312; per head as in Voita et al., 2019, arXiv
1905.09418. A logistic variable is squeezed through a sigmoid, stretched beyond [0, 1] and clipped,
so that both ends have mass:

    s = sigmoid((ln u - ln(1 - u) + log_alpha) / beta),  u ~ U(eps, 1 - eps);   g = clip(s (zeta - gamma) + gamma, 0, 1)
    P(g > 0) = sigmoid(log_alpha - beta ln(-gamma / zeta))

Each forward pass draws one gate per head, shared by all images of the batch, from torch's global
generator. Ranks draw independently (mhprobe seeds them so, step by step) and average their
gradients, so log_alpha is the same on all ranks.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.gates.base import GateHook, HeadGates
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.gates.reentrant import again_and_again
from mhprobe.heads import HeadLayout

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class HardConcrete:
    """Hard-concrete distribution.

    beta: temperature. gamma < 0 and zeta > 1: ends of the stretched variable.
    """

    beta: float = 0.33
    gamma: float = -0.1
    zeta: float = 1.1

    def sample(self, log_alpha: Tensor, noise: Tensor) -> Tensor:
        """Gates of one draw; ``noise`` is ln u - ln(1 - u)."""
        return self.evaluated((noise + log_alpha) / self.beta)

    def p_open(self, log_alpha: Tensor) -> Tensor:
        """P(gate > 0)."""
        return torch.sigmoid(log_alpha - self.beta * math.log(-self.gamma / self.zeta))

    def below(self, gate: Tensor, log_alpha: Tensor) -> Tensor:
        """P(a draw <= gate), for gates from 0 to below 1; the rest is P(gate = 1)."""
        return torch.sigmoid(
            self.beta * torch.logit((gate - self.gamma) / (self.zeta - self.gamma)) - log_alpha
        )

    def binned(self, log_alpha: Tensor, bins: int) -> Tensor:
        """(A,) -> (A, bins + 2) float64: P(gate = 0), P of each equal bin between, P(gate = 1).

        Rows sum to 1.
        """
        under = self.below(
            torch.linspace(0, 1, bins + 1, dtype=torch.float64), log_alpha.double().cpu()[:, None]
        )
        return torch.cat([under[:, :1], under.diff(dim=1), 1 - under[:, -1:]], 1)

    @property
    def even(self) -> float:
        """P(gate > 0) where a gate of exactly 1 is as likely as one of exactly 0."""
        log_alpha = (
            self.beta
            / 2
            * (math.log((1 - self.gamma) / (self.zeta - 1)) + math.log(-self.gamma / self.zeta))
        )
        return float(self.p_open(torch.tensor(log_alpha, dtype=torch.float64)))

    def evaluated(self, log_alpha: Tensor) -> Tensor:
        """The gate without noise, for evaluation."""
        return (torch.sigmoid(log_alpha) * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)


class HardConcreteGates(HeadGates):
    """A hard-concrete gate on every head, times the fixed factor ``values``.

    log_alpha: (A,) float32, trained; larger means more often open.
    beta, gamma, zeta: as for HardConcrete; CoFi takes 2/3 for beta.
    start, start_std: log_alpha begins at N(start, start_std); at 3 nine of ten draws are fully
    open. CoFi: N(10, 0.01).
        Gates must be open there in evaluation: training starts from a converged model.
    low, high: ``project`` keeps log_alpha between these. CoFi: ln 0.01 = -4.6 and ln 100 = 4.6.
    values: (A,) as in HeadGates: a head at 0 stays off whatever is learned.
    relaxed: (A,) bool, False where ``values`` alone is the gate.

    Raises UserError for a distribution that cannot reach 0 or 1, a start at which gates are closed,
    and the state of gates of another distribution.
    """

    noise: Tensor
    relaxed: Tensor

    def __init__(  # noqa: PLR0913 -- its arguments are the keys of conf/gates/
        self,
        model: nn.Module,
        layout: HeadLayout,
        beta: float = 0.33,
        gamma: float = -0.1,
        zeta: float = 1.1,
        start: float = 3.0,
        start_std: float = 0.0,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        for name, value, fine, expected in [
            ("beta", beta, beta > 0, "a temperature above 0"),
            ("gamma", gamma, gamma < 0, "a number below 0, or gates cannot reach 0"),
            (
                "zeta",
                zeta,
                zeta > 1,
                "a number above 1, or gates cannot reach 1 and all drift to 0",
            ),
            ("start_std", start_std, start_std >= 0, "a deviation of 0 or more"),
        ]:
            if not (fine and math.isfinite(value)):
                raise UserError(f"{name}: expected {expected}, got {value}.")
        begin = min(start, math.inf if high is None else high)
        opens_at = math.log((1 - gamma) / (zeta - 1))  # sigmoid(this) stretches to exactly 1
        if not (math.isfinite(start) and begin >= opens_at):
            raise UserError(
                f"start: expected {opens_at:.2f} or more, so that the gates of a trained model "
                f"begin open, got {begin}."
            )
        super().__init__(model, layout, low=low, high=high)
        self.distribution, self.start, self.start_std = (
            HardConcrete(beta, gamma, zeta),
            start,
            start_std,
        )
        at_start = (
            start + start_std * torch.randn(layout.num_heads) if start_std else torch.tensor(start)
        )
        self.log_alpha = nn.Parameter(
            torch.zeros_like(self.values) + at_start.to(self.values.device)
        )
        self.register_buffer("noise", torch.zeros_like(self.values), persistent=False)
        self.register_buffer("relaxed", torch.ones_like(self.values, dtype=torch.bool))
        self.project()
        model.register_forward_pre_hook(Draw(self))

    def learn(self, learnable: bool) -> None:
        self.log_alpha.requires_grad_(learnable)

    def like(self, model: nn.Module, layout: HeadLayout) -> HeadGates:
        options = {
            **dataclasses.asdict(self.distribution),
            "start": self.start,
            "start_std": self.start_std,
        }
        return HardConcreteGates(model, layout, **options, low=self.low, high=self.high)

    def factors(self, heads: slice, training: bool) -> Tensor:
        log_alpha, law = self.log_alpha[heads], self.distribution
        gate = law.sample(log_alpha, self.noise[heads]) if training else law.evaluated(log_alpha)
        return torch.where(self.relaxed[heads], gate, 1.0) * self.values[heads]

    def amount(self) -> Tensor:
        """(A,) P(gate > 0); its sum is the expected number of open heads."""
        return torch.where(self.relaxed, self.distribution.p_open(self.log_alpha), 1.0) * (
            self.values != 0
        )

    def threshold(self, rule: float | str) -> float:
        """Return the threshold of P(open); "likelier" keeps gates more likely 1 than 0 (Voita et al. 2019)."""
        return self.distribution.even if rule == "likelier" else super().threshold(rule)

    @again_and_again
    def fixed(self, values: Tensor) -> Iterator[None]:
        with (
            super().fixed(values),
            meanwhile([self], relaxed=torch.zeros_like(self.relaxed)),
        ):  # other threads wait
            yield

    @torch.no_grad()
    def draw(self) -> None:
        """Draw new noise for every gate."""
        self.noise.copy_(torch.empty_like(self.noise).uniform_(EPS, 1 - EPS).logit())

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "relaxation": dataclasses.asdict(self.distribution)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        ours = dataclasses.asdict(self.distribution)
        if state.get("relaxation") != ours:
            raise UserError(
                f"gates: the checkpoint has hard-concrete ones of {state.get('relaxation')}, here: "
                f"{ours}."
            )


class Draw(GateHook):
    """Forward pre-hook of the model: in training each forward pass draws new gates."""

    gates: HardConcreteGates

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if module.training:
            self.gates.draw()
