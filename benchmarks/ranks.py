"""Two processes beside one, with a thread each: how near to twice as fast, and what memory a rank takes.

Both sides do the same work to the same numbers; the images are shared out. On fewer than two idle
cores the ratio says nothing. Processes are started once; what they wait for costs them no time.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import mhprobe
from benchmarks.harness.models import small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, single
from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.data.loader import EvalOrder
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.lab.papers.causal_gates import Fit, causal_gates
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.random import Random
from mhprobe.masking.search.base import Search
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.search.screened import Screened
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.measures.base import Measure
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.measures.svcca import SVCCA
from mhprobe.recording.measuring import measure_columns
from mhprobe.scoring.parts.evaluate import Evaluator

RANKS = 2
BATCH = 32
AIM = ">= 1.6"  # of 2: an efficiency of 0.8


class Work:
    """The jobs, on this rank's share of the images.

    depth: of the network. images: (N, 3, h, w). labels: (N,).
    """

    def __init__(self, depth: int, images: Tensor, labels: Tensor) -> None:
        self.model: nn.Module = small_vit(depth).eval()
        self.layout = mhprobe.attach(self.model).layout
        self.images, self.labels = images, labels

    def batches(self, chosen: Tensor | None = None) -> Iterator[Batch]:
        count = len(self.labels) if chosen is None else chosen.numpy()
        for picks in EvalOrder(count, BATCH, ranks.rank(), ranks.size()):
            at = torch.from_numpy(picks.index)
            yield Batch(self.images[at], self.labels[at], at, torch.from_numpy(picks.valid))

    def exact_search(self) -> Any:
        return self._greedy("index", Exact())

    def fast_search(self) -> Any:
        return self._greedy("head", Screened(best=8, then=Racing()))

    def random_repeats(self) -> Any:
        evaluate = self._evaluate()
        paths = Random(repeats=4).paths(make_units("layer", self.layout), self.layout)
        return [evaluate(path.masks()).correct.tolist() for path in paths]

    def ablation(self) -> Any:
        values, _ = measure_columns(self.model, {"delta": AblationDelta(self.layout)}, self.batches)
        return values["delta"]["value"].argsort().tolist()[:3]

    def importance_and_svcca(self) -> Any:
        measures: dict[str, Measure] = {
            "importance": GateImportance(self.layout),
            "svcca": SVCCA(self.layout),
        }
        values, _ = measure_columns(self.model, measures, self.batches)
        return values["importance"]["value"].argsort().tolist()[:3]

    def causal_gating(self) -> Any:
        def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            for piece in torch.arange(len(self.labels)).split(BATCH):
                for batch in self.batches(piece):
                    yield batch.images[batch.valid], batch.labels[batch.valid]

        return causal_gates(self.model, batches, Fit(steps=2, start_steps=1))["role"].tolist()

    def _greedy(self, units: str, search: Search) -> Any:
        (path,) = KeepBest(search=search).paths(
            make_units(units, self.layout), self.layout, self._evaluate(), 1
        )
        return path.names

    def _evaluate(self) -> Any:
        return Evaluator(self.model, self.batches, len(self.labels), pick=self.batches)


JOBS = [name for name in vars(Work) if not name.startswith("_") and name != "batches"]


def run(size: Size) -> Iterator[Ratio]:
    count = size.pick(4, 96, 384)
    images = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    of = (size.pick(2, 6), images, torch.arange(count) % 10)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with Helpers(size.pick("fork", "spawn"), *of) as helpers:
            yield _memory(helpers, size.pick(8, 256))
            work = Work(*of)
            for job in JOBS:
                if getattr(work, job)() != (result := helpers.do(job))[0]:
                    raise RuntimeError(f"{job}: two processes give something else than one")
                peak = f"{result[1] / 1024:.0f} MiB at most in a rank"
                what = f"{job.replace('_', ' ')}: time of one process / of {RANKS}"
                yield compare(
                    what,
                    getattr(work, job),
                    lambda job=job: helpers.do(job),
                    size.rounds(5),
                    AIM,
                    peak,
                )  # type: ignore[misc]
    finally:
        torch.set_num_threads(threads)


def _memory(helpers: Helpers, megabytes: int) -> Ratio:
    grown, _ = helpers.do(f"sums {megabytes}")
    what = f"adding up {megabytes} MiB of sums over ranks: memory a rank takes for it / the sums"
    return single(
        what,
        grown,
        "<= 1.5",
        "one copy is the rank's own sums, put aside; gloo copies a piece at a time",
    )


class Helpers:
    """Processes that do a job together, as often as they are told to.

    start: how; of: what ``Work`` is given.
    """

    def __init__(self, start: str, *of: Any) -> None:
        context = mp.get_context(start)
        self.folder = tempfile.TemporaryDirectory(prefix="mhprobe_ranks_")
        pipes = [context.Pipe() for _ in range(RANKS)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_rank, args=(rank, theirs, self.folder.name, *of), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]

    def __enter__(self) -> Helpers:
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(30)
        self.folder.cleanup()

    def do(self, job: str) -> tuple[Any, int]:
        """What the first rank found, and the largest peak of resident memory of any rank so far, in KiB."""
        for pipe in self.pipes:
            pipe.send(job)
        answers = [pipe.recv() for pipe in self.pipes]
        return answers[0][0], max(peak for _, peak in answers)


def _rank(rank: int, pipe: Any, folder: str, *of: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    work = Work(*of)
    while (job := pipe.recv()) is not None:
        name, _, number = job.partition(" ")
        result = _add_up(int(number)) if name == "sums" else getattr(work, job)()
        pipe.send((result, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    dist.destroy_process_group()


class _Sums(Measure):
    """Nothing but a large sum."""

    total: Tensor

    def __init__(self, layout: HeadLayout, megabytes: int) -> None:
        super().__init__(layout)
        self.add_state("total", torch.zeros(megabytes * 2**17, dtype=torch.float64))

    def update(self, batch: HeadBatch) -> None:
        self.total += 1
        self.images += 1

    def finish(self) -> dict[str, Tensor]:
        return {"value": self.total[0]}


def _add_up(megabytes: int) -> float:
    """How much more memory than before the process had at most while it added up, over the size of the sums."""
    sums = _Sums(mhprobe.attach(small_vit()).layout, megabytes)
    sums.update(None)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 2**20
    assert float(sums.columns()["value"]) == RANKS
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before) / megabytes
