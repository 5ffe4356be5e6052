"""Hard-concrete gates one number at a time, from the definition, and P(open) by counting."""

from __future__ import annotations

import math
import random


def gate(u: float, log_alpha: float, beta: float, gamma: float, zeta: float) -> float:
    """One draw, from one uniform number."""
    s = 1 / (1 + math.exp(-(math.log(u) - math.log(1 - u) + log_alpha) / beta))
    return min(1.0, max(0.0, s * (zeta - gamma) + gamma))


def shares(
    log_alpha: float, beta: float, gamma: float, zeta: float, draws: int = 20_000, seed: int = 0
) -> tuple:
    """How often a gate is above 0, and how often it is exactly 1."""
    stream = random.Random(seed)
    gates = [
        gate(stream.uniform(1e-6, 1 - 1e-6), log_alpha, beta, gamma, zeta) for _ in range(draws)
    ]
    return sum(g > 0 for g in gates) / draws, sum(g == 1 for g in gates) / draws
