"""Panels that look at no image: hard-concrete gates (Voita et al. 2019), speed without heads (Michel et al. 2019)."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from mhprobe.framework.questions.material import Material
from mhprobe.gates.hard_concrete import HardConcrete
from mhprobe.io.head_tables import read_column
from mhprobe.report import tables
from mhprobe.report.figures import pruned
from mhprobe.report.figures.gates import BINS, gate_density
from mhprobe.report.report import Result, Sample
from mhprobe.surgery.speed import BATCHES, speed_table


def densities(
    material: Material, log_alphas: Sequence[float] = (-2.0, 0.0, 2.0), gates: str | None = None
) -> dict[str, Result]:
    """Draw the hard-concrete distribution at a few ``log_alphas`` (Voita et al., Figure 6).

    gates: tables/gates.csv.

    Table: log_alpha, zero, one (the probabilities of the ends). UserError for a table of another
    model's heads.
    """
    distribution = HardConcrete()
    log_alpha = torch.tensor(list(log_alphas), dtype=torch.float64)
    shares = distribution.binned(log_alpha, BINS)
    named = {
        f"log alpha = {value:g}": share for value, share in zip(log_alphas, shares, strict=True)
    }
    rows = [
        {"log_alpha": a, "zero": s[0].item(), "one": s[-1].item()}
        for a, s in zip(log_alphas, shares, strict=True)
    ]
    learned = None
    if gates is not None:
        path, asker = Path(gates), "gates"
        value, open_ = (
            read_column(path, column, material.layout, asker).double()
            for column in ("gate", "open")
        )
        start = distribution.beta * math.log(-distribution.gamma / distribution.zeta)
        learned = value, distribution.binned(open_.logit(eps=1e-9) + start, BINS).mean(0)
    result = Result(tables.from_rows(rows), gate_density(named, learned), of=Sample())
    return {
        "gates": result.saying("probability of a gate of 0 and of 1", "more gates are at this end")
    }


def speed(
    material: Material, batches: Sequence[int] = BATCHES, rounds: int = 15, seconds: float = 0.05
) -> dict[str, Result]:
    """Measure images per second: dense, masked, and pruned evenly (Michel et al., Table 4).

    batches: sizes of a batch. rounds: timings of each, of ``seconds`` at least.
    """
    if not material.first:  # processes would disturb each other's timing
        return {}
    rows = speed_table(material.backbone, batches=batches, rounds=rounds, seconds=seconds)
    result = Result(tables.from_rows(rows, "speed"), pruned.speed(rows), of=Sample())
    return {"speed": result.saying("times as fast", "the network is faster")}
