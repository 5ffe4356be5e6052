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
from mhprobe.stats.ranking import STAGES, Cell, Right, counted, ranking

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
        row for row in rows if Cell(row["method"], row["budget"], row["seed"]) in counted(right)
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
    networks, images = ({about[key] for _, about in kept} for key in ("network", "images"))
    if len(networks) < 2:
        return Result()
    if len(networks) < len(benches):
        raise UserError(
            "compare: two benches are of one network, expected one of each. Leave out the others."
        )
    if len(images) > 1:
        raise UserError(
            "compare: the benches tested on different images. Give all the same data and "
            "data.limit_test."
        )
    done = [
        [row for row in run.tables[TABLE].dicts() if row["note"] is None]
        for run in benches.values()
    ]
    tables = [
        {Cell(row["method"], row["budget"], row["seed"]): row for row in rows} for rows in done
    ]
    shared = set.intersection(*map(set, tables))
    if not shared:
        raise UserError(
            "compare: the benches share no cell (method, budget, seed). Run the same in each."
        )
    rows, right = list[dict[str, Any]](), dict[Cell, dict[str, Tensor]]()
    for network, (table, (flags, _)) in enumerate(zip(tables, kept, strict=True)):
        for method, budget in sorted({cell[:2] for cell in shared}):
            cells = [cell for cell in shared if cell[:2] == (method, budget)]
            columns = {name: [table[cell][name] for cell in cells] for name in table[cells[0]]}
            numbers = {
                name: of
                for name, of in columns.items()
                if all(isinstance(value, float) for value in of)
            }
            stages = [
                stage for stage in STAGES if all(f"{cell}/{stage}" in flags for cell in cells)
            ]
            stacks = {
                stage: torch.stack([flags[f"{cell}/{stage}"] for cell in cells]) for stage in stages
            }
            mine = Cell(method, budget, network)
            rows.append(
                {name: statistics.fmean(of) for name, of in numbers.items()} | mine._asdict()
            )
            right[mine] = {stage: stacked.double().mean(0) for stage, stacked in stacks.items()}
    of = Sample(
        words=f"{short(', '.join(benches), 100)}; {Sample(len(next(iter(kept[0][0].values()))), 'test')}"
    )
    about = f"Ranked over {len(benches)} networks, which the table counts as seeds: {', '.join(benches)}."
    return ranked(rows, right, of, set.union(*map(set, tables)) - shared)._replace(about=about)
