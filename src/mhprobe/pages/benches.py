"""PruneBench's ranking: of one network over seeds, and of several networks, such as trainings with other seeds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError, short
from mhprobe.report.figures.pruned import pareto
from mhprobe.report.result import Result, Sample
from mhprobe.report.runs.run import Run
from mhprobe.report.tables import from_rows
from mhprobe.stats.ranking import STAGES, Cell, Right, cells_that_count, ranking

TABLE, RANKING = "prunebench", "prunebench_ranking"  # names of results


def ranked(
    rows: Sequence[Mapping[str, Any]], right: Right, of: Sample, lost: Iterable[Cell] = ()
) -> Result:
    """Return the table of ``ranking``, with the dense accuracy, and the figure of the cells that count in it.

    rows: of cells that did not fail. right, lost: as for ``ranking``. of: the test images.
    """
    dense = statistics.fmean(row["dense"] for row in rows)
    table = from_rows([{**row, "dense": dense} for row in ranking(right, lost)], "ranking")
    drawn = [
        row
        for row in rows
        if Cell(row["method"], row["budget"], row["seed"]) in cells_that_count(right)
    ]
    return Result(table, pareto(drawn) if drawn else None, of=of, drawn="pareto").saying(
        "accuracy", "a better network"
    )


def over_networks(runs: Mapping[str, Run]) -> Result:
    """Rank the methods of several runs of mhprobe.prunebench, each of another network: the networks are the repeats.

    runs: by name. Only cells of every network count; notes name the others. A network's outcome is
    the mean over its seeds. Intervals and p are for new images and new networks. Empty for fewer
    than two networks. Raises UserError for a run without its outcomes, two runs of one network
    among others, different test images, and no cell in common.
    """
    benches = {name: run for name, run in runs.items() if TABLE in run.tables}
    kept = [run.bench() for run in benches.values()] if len(benches) > 1 else []
    abouts = [about for _, about in kept]
    networks = {about["network"] for about in abouts}
    if len(networks) < 2:
        return Result()
    _refuse_unlike(abouts)
    tables = list(map(_cells, benches.values()))
    shared = set.intersection(*map(set, tables))
    if not shared:
        raise UserError(
            "compare: the benches share no cell (method, budget, seed). Run the same in each."
        )
    rows: list[dict[str, Any]] = []
    right: dict[Cell, dict[str, Tensor]] = {}
    seeds = _by_method_and_budget(shared)
    for network, (table, (flags, _)) in enumerate(zip(tables, kept, strict=True)):
        for (method, budget), cells in seeds.items():
            mine = Cell(method, budget, network)
            rows.append(_means([table[cell] for cell in cells]) | mine._asdict())
            right[mine] = _shares_right(cells, flags)
    of = Sample(
        words=f"{short(', '.join(benches), 100)}; {Sample(len(next(iter(kept[0][0].values()))), 'test')}"
    )
    about = f"Ranked over {len(benches)} networks, which the table counts as seeds: {', '.join(benches)}."
    return ranked(rows, right, of, set.union(*map(set, tables)) - shared)._replace(about=about)


def _refuse_unlike(abouts: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError for two benches of one network, and for other test images. abouts: of each bench."""
    if len({about["network"] for about in abouts}) < len(abouts):
        raise UserError(
            "compare: two benches are of one network, expected one of each. Leave out the others."
        )
    if len({about["images"] for about in abouts}) > 1:
        raise UserError(
            "compare: the benches tested on different images. Give all the same data and "
            "data.limit_test."
        )


def _cells(run: Run) -> dict[Cell, dict[str, Any]]:
    """Return the rows of a bench by cell, without those that failed."""
    rows = [row for row in run.tables[TABLE].dicts() if row["note"] is None]
    return {Cell(row["method"], row["budget"], row["seed"]): row for row in rows}


def _by_method_and_budget(cells: Iterable[Cell]) -> dict[tuple[str, float], list[Cell]]:
    """Return the cells of each method at each budget, which differ in their seeds."""
    seeds: dict[tuple[str, float], list[Cell]] = {}
    for cell in sorted(cells):
        seeds.setdefault((cell.method, cell.budget), []).append(cell)
    return seeds


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean over rows of each column of numbers."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: statistics.fmean(values)
        for name, values in columns.items()
        if all(isinstance(value, float) for value in values)
    }


def _shares_right(cells: Sequence[Cell], flags: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return (images,) the share of cells that are right about each image, by stage that all cells have."""
    stacks = {
        stage: [flags[f"{cell}/{stage}"] for cell in cells]
        for stage in STAGES
        if all(f"{cell}/{stage}" in flags for cell in cells)
    }
    return {stage: torch.stack(stacked).double().mean(0) for stage, stacked in stacks.items()}
