"""PruneBench: methods of pruning on one network at equal FLOPs. One cell is a method at a budget with a seed.

A method chooses a mask; all else is the same for all. A seed draws the images that choose and repair, and the method's
own random numbers.

Shapes: A units of all sites, N test images, R seeds.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones import input_spec, layout_of
from mhprobe.masking.base import Order
from mhprobe.stats.significance import crossed, holm
from mhprobe.surgery.costs import interleaved
from mhprobe.surgery.export import onnx_sessions
from mhprobe.surgery.given import Given
from mhprobe.surgery.on_path import OnPath
from mhprobe.surgery.removal import prune_heads
from mhprobe.surgery.rounds import Chooses, Images, Shown, Stage, Train, prune
from mhprobe.surgery.speed import median_interval, speed_table

BATCHES = (1, 16, 64)
STAGES = ("pruned", "repaired", "tuned")


class Cell(NamedTuple):
    """A method by its name, the share of the FLOPs that may be left, and a seed."""

    method: str
    budget: float
    seed: int

    def __str__(self) -> str:
        """Name of its file, e.g. fisher_0.5_0."""
        return f"{self.method}_{self.budget:g}_{self.seed}"


def choose(method: Order | Chooses, model: nn.Module, images: Images, share: float) -> Tensor:
    """(A,) bool, the units that ``method`` takes so that at most ``share`` of the FLOPs is left."""
    source = OnPath(method, target={"flops": share}) if isinstance(method, Order) else Shown(method, {"flops": share})
    source.check(model, rounds=1)
    if isinstance(source, Shown):
        return source.choose(model, images).mask
    return source.choose(model, images.evaluate(model, False), images.first, layout_of(model), 1.0, 1.0)[0].mask


def run_cell(
    cell: Cell, method: Order | Chooses, model: nn.Module, images: Images, *, mend: Mapping[str, Any] | None = None,
    train: Train | None = None, rounds: int = 0, onnx: bool = False, whole: tuple[Stage, Tensor] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor], tuple[Stage, Tensor]]:  # fmt: skip
    """Return the row of a cell, by stage (dense, pruned ...) (N,) bool which test images are right, and ``whole``.

    model: with gates on all units that may go. mend, train, whole: as for ``prune``, ``whole`` from another cell on the
    same test images. rounds: of timings at each batch size, 0 for none. onnx: also time ONNX Runtime.

    Columns: flops and parameters (shares left), heads and neurons (left); minutes (to choose); accuracy of every stage,
    with its difference to dense (of the last stage, paired, Newcombe's 95 % interval); speedup_<batch> with its
    interval, onnx_<batch> and int8_<batch>: images per second over the dense network's (both in ONNX, float32).
    """
    if "seed" in getattr(method, "__dataclass_fields__", {}):
        method = dataclasses.replace(method, seed=cell.seed)  # type: ignore[type-var]
    images.show(model.to(images.device).eval())
    start = time.perf_counter()
    mask = choose(method, model, images, cell.budget)
    minutes = (time.perf_counter() - start) / 60
    going = Given(mask.nonzero().flatten().tolist())
    pruned = prune(model, images, going, mend=mend, train=train, chosen_by=[images.name], whole=whole)
    dense, last = pruned.stages[0], pruned.stages[-1]
    right = {row.stage: flags for row, flags in zip(pruned.stages, pruned.right, strict=True)}
    row: dict[str, Any] = {
        "flops": last.flops / dense.flops,
        "parameters": last.parameters / dense.parameters,
        "heads": last.heads,
        "neurons": last.neurons,
        "minutes": minutes,
        "dense": dense.accuracy,
        **{stage.stage: stage.accuracy for stage in pruned.stages if stage.stage in STAGES},
        "difference": last.difference,
        "difference_low": last.difference_low,
        "difference_high": last.difference_high,
        "images": last.images,
    }
    for timed in speed_table(model, {"cell": mask}, BATCHES, rounds) if rounds else ():
        row |= {f"speedup{end}_{timed['batch']}": timed[f"speedup{end}"] for end in ("", "_low", "_high")}
    if rounds and onnx:
        row |= _in_onnx(prune_heads(model, mask & False), pruned.model, rounds)
    return row, right, (dense, pruned.right[0])


def _in_onnx(dense: nn.Module, pruned: nn.Module, rounds: int) -> dict[str, float]:
    """Speed of ONNX Runtime on the pruned network, float32 and dynamic int8, over the dense one's in float32."""
    example = torch.randn(2, 3, *input_spec(dense)["size"], generator=torch.Generator().manual_seed(0))
    whole, smaller = onnx_sessions(dense, example), onnx_sessions(pruned, example)
    row = {}
    for batch in BATCHES:
        feed = {"images": example[:1].expand(batch, -1, -1, -1).contiguous().numpy()}
        sessions = (whole["onnx"], smaller["onnx"], smaller["int8"])
        first, *others = interleaved([functools.partial(session.run, ["logits"], feed) for session in sessions], rounds)
        for name, times in zip(("onnx", "int8"), others, strict=True):
            row[f"{name}_{batch}"] = median_interval([a / b for a, b in zip(first, times, strict=True)])[0]
    return row


def ranking(rows: Sequence[Mapping[str, Any]], right: Mapping[Cell, Mapping[str, Tensor]]) -> list[dict[str, Any]]:
    """One row per budget and method, best first: mean accuracy over seeds, and the paired difference to the best.

    rows: of ``run_cell``, with method, budget and seed. right: (N,) per cell and stage. The last stage that all cells
    have counts, and only seeds that all methods of a budget have. p is for new images and new seeds (``crossed``),
    p_holm over all pairs of methods, since the same images say which is best. real: p_holm < .05. dense: not pruned.
    """
    table, dense = list[dict[str, Any]](), rows[0].get("dense")
    for budget in sorted({row["budget"] for row in rows}, reverse=True):
        here = [Cell(row["method"], row["budget"], row["seed"]) for row in rows if row["budget"] == budget]
        names = list(dict.fromkeys(cell.method for cell in here))
        seeds = sorted(set.intersection(*({cell.seed for cell in here if cell.method == name} for name in names)))
        if not seeds:
            continue
        cells = [cell for cell in here if cell.seed in seeds]
        stage = next(stage for stage in reversed(STAGES) if all(stage in right[cell] for cell in cells))
        flags = {name: torch.stack([right[Cell(name, budget, s)][stage] for s in seeds]).double() for name in names}
        names.sort(key=lambda name: -float(flags[name].mean()))
        pairs = list(itertools.combinations(names, 2))
        tests = [crossed(flags[other] - flags[one]) for one, other in pairs]
        adjusted = holm(torch.tensor([test.p for test in tests], dtype=torch.float64)).tolist()
        for name in names:
            of_seeds = flags[name].mean(1).tolist()
            row = {"budget": budget, "method": name, "stage": stage, "seeds": len(seeds), "dense": dense}
            row |= {"accuracy": sum(of_seeds) / len(seeds), "lowest": min(of_seeds), "highest": max(of_seeds)}
            if name != names[0]:
                number = pairs.index((names[0], name))
                test, p = tests[number], adjusted[number]
                row |= {"to_best": test.difference, "low": test.low, "high": test.high, "p": test.p}
                row |= {"p_holm": p, "real": p < 0.05}
            table.append(row)
    return table
