"""Racing search: evaluate candidates on random images until one is good enough, with a stated error.

With probability at least 1 - delta over the order of the images, the chosen candidate's accuracy on
the split is within epsilon of the best candidate's. Once all images have been seen the choice is
the exhaustive one.

Let d_i be 1, 0 or -1: image i is right for the leader alone, for both or neither, for the candidate
alone. Images come in random order without replacement. If the mean of d over all N images is at
most -e, that of the t-th is at most

    m_t = (-e N - (d_1 + ... + d_{t-1})) / (N - t + 1)

given the images before. The wealth prod_t (1 + lambda_t (d_t - m_t)) of a bettor against that, 0 <=
lambda_t < 1 / (1 + m_t), is a nonnegative supermartingale: it ever reaches 1 / alpha with
probability at most alpha (Ville). These are the paired, sequential tests of Waudby-Smith & Ramdas,
2020, arXiv 2006.04347, and 2024, arXiv 2010.09686, with a mixture of bets over a grid of lambda.
They hold after every image, and against a leader that changes:

- e = 0: a candidate that is tested to be worse than some leader is dropped;
- e = epsilon: once all others are tested to be less than epsilon better than the leader, the leader
is chosen.

An error needs the rejection of a true hypothesis about the best candidate, against one of U - 1
others and for one of
two e: each test has the level delta / (2 (U - 1)).

Shapes: U candidates, N images of the split, n seen so far.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.masking.base import Evaluate
from mhprobe.masking.search.base import ScoresSoFar, Search, SearchChoice, SearchStep

BETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
DARING = 0.9  # share of the largest bet that cannot ruin


@dataclass(frozen=True)
class Racing(Search):
    """Race candidates on random images until one is ahead.

    epsilon: of accuracy, in [0, 1]. delta: per step. batch: images between two tests. seed: of the
    order of the images.
    """

    epsilon: float = 0.002
    delta: float = 0.01
    batch: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < 1 or not 0 < self.delta < 1 or self.batch < 1:
            raise UserError(
                "masking search racing: expected 0 <= epsilon < 1, 0 < delta < 1 and batch at "
                "least 1, got "
                f"epsilon={self.epsilon}, delta={self.delta}, batch={self.batch}."
            )

    def choose(self, step: SearchStep, evaluate: Evaluate) -> SearchChoice:
        """A candidate within epsilon of the best, with probability 1 - delta."""
        rivals = len(step.units) - 1
        if rivals == 0:
            return SearchChoice(0)
        generator = torch.Generator().manual_seed(self.seed + step.number)
        order = torch.randperm(evaluate.images, generator=generator)
        log_level = math.log(2 * rivals / self.delta)
        seen = ScoresSoFar(step, evaluate)
        alive = torch.arange(len(step.units))
        for end in range(self.batch, len(order) + self.batch, self.batch):
            past = order[:end]
            seen.look(alive, past[end - self.batch :])
            leader = seen.winner(alive, past)
            if end >= len(order):
                return SearchChoice(
                    leader, seen.scores(torch.tensor([leader]), torch.arange(len(order)))
                )
            right_Un = step.prefers * seen.right[alive[:, None], past].double()
            ahead_Un = right_Un[alive == leader] - right_Un
            worse = rejected(ahead_Un, 0.0, len(order), log_level)
            settled = (
                worse | rejected(ahead_Un, self.epsilon, len(order), log_level) | (alive == leader)
            )
            if settled.all():
                return SearchChoice(leader)
            alive = alive[~worse]
        raise AssertionError("a split without images")


def rejected(ahead_Un: Tensor, margin: float, num_images: int, log_level: float) -> Tensor:
    """(U,) bool: True if "over all N images the mean is at most -margin" was ever rejected by ``ahead``, in [-1, 1]."""
    n = ahead_Un.shape[1]
    left_n = num_images - torch.arange(n, dtype=torch.float64)
    mean_Un = (-margin * num_images - (ahead_Un.cumsum(1) - ahead_Un)) / left_n
    # a mean below -1 is impossible, even if all other images are -1: a bet without limit
    largest_Un = DARING / (1 + mean_Un).clamp(min=1e-6)
    log_wealth = torch.full_like(ahead_Un, -math.inf)
    for bet in BETS:
        gain_Un = (largest_Un.clamp(max=bet) * (ahead_Un - mean_Un)).log1p()
        log_wealth = torch.logaddexp(log_wealth, gain_Un.cumsum(1))
    return (log_wealth - math.log(len(BETS)) >= log_level).any(1) | (mean_Un < -1).any(1)
