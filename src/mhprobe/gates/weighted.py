"""Penalty on open heads: weight * sum over heads of their amount.

With hard-concrete gates the amount is P(open): the L0 penalty of Louizos et al., 2018, and Voita et
al., 2019, eq. 8. With plain gates it is |gate|: the L1 penalty. Voita's code averages over layers:
its lambda is ours times their number.
"""

import math

from torch import Tensor, nn

from mhprobe.errors import UserError


class Weighted(nn.Module):
    """Penalty of ``weight`` nats of loss per open head; UserError if that is below 0 or not finite.

    begin, rise: shares of the run in which it is phased in, as in ``ramp``.
    """

    def __init__(self, weight: float, begin: float = 0.0, rise: float = 0.0) -> None:
        super().__init__()
        if not (math.isfinite(weight) and weight >= 0):
            raise UserError(f"weight: expected a number of 0 or more, got {weight}.")
        check_ramp(begin, rise)
        self.weight, self.begin, self.rise = weight, begin, rise

    def forward(self, amount: Tensor, progress: float) -> Tensor:
        """(): penalty to add to the loss, in nats.

        amount: (A,). progress: share of the run that is done.
        """
        return self.weight * ramp(progress, self.begin, self.rise) * amount.sum()


def ramp(progress: float, begin: float, rise: float) -> float:
    """Ramp: 0 until the share ``begin`` of the run, then up to 1 over the share ``rise``, then 1."""
    if progress < begin:
        return 0.0
    return min(1.0, (progress - begin) / rise) if rise else 1.0


def check_ramp(begin: float, rise: float) -> None:
    """Raise UserError for shares that do not fit into the run."""
    if not (begin >= 0 and rise >= 0 and begin + rise <= 1):
        raise UserError(
            "begin: begin and rise are shares of the run, expected begin + rise <= 1 and neither "
            "below 0, "
            f"got begin={begin}, rise={rise}."
        )
