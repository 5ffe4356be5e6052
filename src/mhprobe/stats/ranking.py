"""Ranking of pruning methods on the same test images: which is best, and which differences are real.

Shapes: N test images, R seeds.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.stats.significance import crossed, holm, significant

STAGES = ("pruned", "repaired", "tuned")


class Cell(NamedTuple):
    """A method by its name, the share of the FLOPs that may be left, and a seed."""

    method: str
    budget: float
    seed: int

    def __str__(self) -> str:
        """Name of its file, e.g. fisher_0.5_0."""
        return f"{self.method}_{self.budget}_{self.seed}"


Right = Mapping[Cell, Mapping[str, Tensor]]
"""Which test images are right, (N,) by stage; {} for a cell that failed."""


def cells_that_count(right: Right) -> set[Cell]:
    """Cells with a result whose seed has one of every method that has any at their budget."""
    done = [cell for cell, stages in right.items() if stages]
    seeds = dict[float, dict[str, set[int]]]()
    for cell in done:
        seeds.setdefault(cell.budget, {}).setdefault(cell.method, set()).add(cell.seed)
    return {
        cell
        for cell in done
        if all(cell.seed in seeds_of_method for seeds_of_method in seeds[cell.budget].values())
    }


def ranking(right: Right, lost: Iterable[Cell] = ()) -> list[dict[str, Any]]:
    """One row per budget and method, best first: mean accuracy over seeds, and the paired difference to the best.

    The last stage that all cells have counts, and only seeds that all methods of a budget have.
    note: names seeds of a method that do not count, also those of ``lost``; of a method without any
    other it is all that the row says. p is for new images and new seeds (``crossed``), p_holm over
    all pairs of methods, since the same images say which is best. real: p_holm < .05.
    """
    counts = cells_that_count(right)
    budgets = sorted({cell.budget for cell in counts}, reverse=True)
    table = [row for budget in budgets for row in _of_budget(budget, counts, right)]
    notes = dict[tuple[str, float], str]()
    for cell in sorted([*lost, *(right.keys() - counts)]):
        notes[cell[:2]] = f"{notes.get(cell[:2], 'left out: seed')} {cell.seed}"
    table = [{**row, "note": notes.pop((row["method"], row["budget"]), "")} for row in table]
    return table + [
        {"budget": budget, "method": name, "seeds": 0, "note": note}
        for (name, budget), note in notes.items()
    ]


def _of_budget(budget: float, counts: Collection[Cell], right: Right) -> list[dict[str, Any]]:
    """Return the rows of one budget, best method first. counts: the cells that count."""
    cells = [cell for cell in right if cell in counts and cell.budget == budget]
    seeds = sorted({cell.seed for cell in cells})
    stage = next(name for name in reversed(STAGES) if all(name in right[cell] for cell in cells))
    flags = {
        name: torch.stack([right[Cell(name, budget, seed)][stage] for seed in seeds]).double()
        for name in dict.fromkeys(cell.method for cell in cells)
    }
    names = sorted(flags, key=lambda name: -float(flags[name].mean()))
    tests = {
        (better, worse): crossed(flags[worse] - flags[better])
        for better, worse in itertools.combinations(names, 2)
    }
    p_holm = holm(torch.tensor([test.p for test in tests.values()], dtype=torch.float64))
    of_pair = dict(zip(tests, p_holm.tolist(), strict=True))
    rows = []
    for name in names:
        accuracy = flags[name].mean(1)
        row = {"budget": budget, "method": name, "stage": stage, "seeds": len(seeds)}
        row |= {
            "accuracy": float(accuracy.mean()),
            "lowest": float(accuracy.min()),
            "highest": float(accuracy.max()),
        }
        if (pair := (names[0], name)) in tests:
            test = tests[pair]
            row |= {"to_best": test.difference, "low": test.low, "high": test.high, "p": test.p}
            row |= {"p_holm": of_pair[pair], "real": significant(of_pair[pair])}
        rows.append(row)
    return rows
