"""Penalty that brings gates to a target share of heads or FLOPs: an augmented Lagrangian, without a weight to tune.

Wang, Wohlwend & Lei, 2020, arXiv 1910.04732; Xia, Zhong & Chen (CoFi), 2022, arXiv 2204.00408, eq.
3:

    max over l1, l2   min over gates   l1 (s - t) + l2 (s - t)^2

s and t are the expected and the wanted share that is left (CoFi: number of pruned parameters). t
moves from 1 to its final value (CoFi's warm-up).
"""

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.gates.base import nearest_target
from mhprobe.gates.weighted import check_ramp, ramp


class Lagrangian(nn.Module):
    """Penalty that moves an expected share to a target.

    begin, rise: shares of the run in which t moves, as in ``ramp``.
    lr: learning rate that MAXIMISES its parameters, the multipliers. UserError unless it is above
    0.
    """

    def __init__(self, begin: float = 0.0, rise: float = 0.5, lr: float = 0.05) -> None:
        super().__init__()
        check_ramp(begin, rise)
        if not lr > 0:
            raise UserError(f"lr: expected a rate above 0, got {lr}.")
        self.begin, self.rise, self.lr = begin, rise, lr
        self.linear = nn.Parameter(torch.zeros(()))
        self.square = nn.Parameter(torch.zeros(()))

    def price(self, share: Tensor, wanted: float, progress: float) -> Tensor:
        """(): penalty to add to the loss, in nats.

        share: () expected share. progress: share of the run done.
        """
        excess = share - (1 - (1 - wanted) * ramp(progress, self.begin, self.rise))
        return self.linear * excess + self.square * excess**2


class Target(Lagrangian):
    """Penalty that moves the expected number of open heads to ``heads``; begin, rise, lr: as for ``Lagrangian``."""

    def __init__(self, heads: int, begin: float = 0.0, rise: float = 0.5, lr: float = 0.05) -> None:
        super().__init__(begin, rise, lr)
        self.heads = heads

    def forward(self, amount: Tensor, progress: float) -> Tensor:
        """(): penalty to add to the loss, in nats.

        amount: (A,). progress: share of the run that is done.
        """
        nearest_target(self.heads, len(amount), "heads")
        return self.price(amount.mean(), self.heads / len(amount), progress)
