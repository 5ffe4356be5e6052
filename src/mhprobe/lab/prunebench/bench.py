"""PruneBench: methods of pruning on one network at equal FLOPs.

One cell is a method at a budget with a seed.

A method chooses a mask; all else is the same for all. A seed draws the images that choose and
repair, and the random numbers of the method and of its parts.

Shapes: A units of all sites, N test images.
"""

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import channels_of, input_spec
from mhprobe.masking.base import Order
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.rounds import Chooses, Judge, Removal, ShownChooser, Stage, prune
from mhprobe.stats.ranking import STAGES, Cell
from mhprobe.surgery.costs import interleaved
from mhprobe.surgery.export import onnx_sessions
from mhprobe.surgery.removal import prune_heads
from mhprobe.surgery.speed import median_interval, speed_table

BATCHES = (1, 16, 64)


def seeded(part: Any, seed: int) -> Any:
    """A copy of a method with this seed, in itself and in the parts that it holds, as an order's search."""
    fields = vars(part) if dataclasses.is_dataclass(part) else {}
    inside = {
        name: seeded(value, seed)
        for name, value in fields.items()
        if dataclasses.is_dataclass(value)
    }
    inside |= {"seed": seed} if "seed" in fields else {}
    return dataclasses.replace(part, **inside) if inside else part


def run_cell(
    cell: Cell,
    method: Order | Chooses,
    model: nn.Module,
    judge: Judge,
    removal: Removal = Removal(),
    *,
    rounds: int = 0,
    onnx: bool = False,
    whole: tuple[Stage, Tensor] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor], tuple[Stage, Tensor]]:
    """Return the row of a cell, by stage (dense, pruned ...) (N,) bool which test images are right, and ``whole``.

    model: with gates on all units that may go. removal, whole: as for ``prune``, ``whole`` from
    another cell on the same test images. rounds: of timings at each batch size, 0 for none. onnx:
    also time ONNX Runtime.

    Columns: flops and parameters (shares left), heads and neurons (left); minutes (to choose);
    accuracy of every stage, with its difference to dense (of the last stage, paired, Newcombe's 95
    % interval); speedup_<batch> with its interval, onnx_<batch> and int8_<batch>: images per second
    over the dense network's (both in ONNX, float32).
    """
    method, target = seeded(method, cell.seed), {"flops": cell.budget}
    source = (
        OnPath(method, target=target) if isinstance(method, Order) else ShownChooser(method, target)
    )
    pruned = prune(model, judge, source, removal, whole=whole)
    dense, last = pruned.stages[0], pruned.stages[-1]
    right = {row.stage: flags for row, flags in zip(pruned.stages, pruned.right, strict=True)}
    row: dict[str, Any] = {
        "flops": last.flops / dense.flops,
        "parameters": last.parameters / dense.parameters,
        "heads": last.heads,
        "neurons": last.neurons,
        "minutes": pruned.minutes,
        "dense": dense.accuracy,
        **{stage.stage: stage.accuracy for stage in pruned.stages if stage.stage in STAGES},
        **{
            name: getattr(last, name)
            for name in ("difference", "difference_low", "difference_high", "images")
        },
    }
    for timed in speed_table(model, {"cell": pruned.gone}, BATCHES, rounds) if rounds else ():
        row |= {
            f"speedup{end}_{timed['batch']}": timed[f"speedup{end}"]
            for end in ("", "_low", "_high")
        }
    if rounds and onnx:
        row |= _in_onnx(prune_heads(model, []), pruned.model, rounds)
    return row, right, (dense, pruned.right[0])


def _in_onnx(dense: nn.Module, pruned: nn.Module, rounds: int) -> dict[str, float]:
    """Speed of ONNX Runtime on the pruned network, float32 and dynamic int8, over the dense one's in float32."""
    example = torch.randn(
        2,
        channels_of(dense),
        *input_spec(dense)["size"],
        generator=torch.Generator().manual_seed(0),
    )
    whole, smaller = onnx_sessions(dense, example), onnx_sessions(pruned, example)
    row = {}
    for batch in BATCHES:
        feed = {"images": example[:1].expand(batch, -1, -1, -1).contiguous().numpy()}
        sessions = (whole["onnx"], smaller["onnx"], smaller["int8"])
        first, *others = interleaved(
            [functools.partial(session.run, ["logits"], feed) for session in sessions], rounds
        )
        for name, times in zip(("onnx", "int8"), others, strict=True):
            row[f"{name}_{batch}"] = median_interval(
                [a / b for a, b in zip(first, times, strict=True)]
            )[0]
    return row
