"""MaskingCurve: how accuracy falls as heads are switched off, in the orders that the configuration names.

Orders that look at scores are searched on the validation images and reported on the test images (``select_on="test"``
reproduces papers that did not separate them). Answers about masks are kept in ``cache``, under a key of weights, data
and split. Curves and the jobs of a sweep share them, and a run that was killed finds its own.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch

from mhprobe import __version__, ranks
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.gates.fill import Fill
from mhprobe.io.code import code_digests
from mhprobe.io.progress import stage
from mhprobe.masking.base import Evaluate
from mhprobe.masking.parts.cache import MaskCache, cache_key, describe
from mhprobe.masking.parts.curve import CurveSpec, masking_curve
from mhprobe.masking.parts.limits import Cost
from mhprobe.masking.parts.totals import totals
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.redundant_or_inert import MaskedHead, RedundantOrInert
from mhprobe.recording.fills import find_fill
from mhprobe.recording.measuring import measure
from mhprobe.report.masking import answer, of_curves, of_masked_heads
from mhprobe.report.report import Report
from mhprobe.report.runs.run import measured_on
from mhprobe.scoring.evaluate import evaluator
from mhprobe.scoring.labels import Labels
from mhprobe.scoring.score import Score, looked, score_for

log = logging.getLogger(__name__)

SPLITS = {"validation": "val", "test": "test"}


class MaskingCurve(L.Callback):
    """Draws every curve of ``specs`` at the end of the test.

    cache: the folder of scores. select_on: the split that greedy orders are chosen on.
    steps: the longest curve, None for all heads. step: only this point of every curve (for sweeps).
    score: what is right and what is lost; None for the labels, or what the model and the data allow without.
    join: says of the heads that could go whether they are redundant or inert; None to leave that out.
    """

    def __init__(
        self,
        specs: Sequence[CurveSpec],
        report: Report,
        cache: Path,
        select_on: str = "validation",
        steps: int | None = None,
        step: int | None = None,
        join: RedundantOrInert | None = None,
        score: type[Score] | None = None,
    ) -> None:
        self.specs = specs
        self.report = report
        self.cache = cache
        self.select_on, self.steps, self.step = select_on, steps, step
        self.join, self.score = join, score

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        curves = ranks.together(lambda: self.curves(trainer, pl_module))
        heads = ranks.together(lambda: self.masked_heads(trainer, pl_module, curves))
        if trainer.is_global_zero:
            found = totals(curves)
            by_labels = bool(curves) and curves[0].scored == Labels.scored
            chance = 1 / _data(trainer).num_classes if by_labels else None
            results = of_curves(curves, found, gates_of(pl_module).layout, chance)
            if self.join is not None:
                results |= of_masked_heads(heads, self.join)
            self.report.add_all(results)
            for line in answer(found, heads, curves, chance):
                log.info("%s", line)

    def curves(self, trainer: L.Trainer, pl_module: L.LightningModule) -> list[Curve]:
        """Every curve of ``specs`` as numbers, the same on every rank. A collective."""
        layout = gates_of(pl_module).layout
        data = _data(trainer)
        identity = identity_of(pl_module, data)
        costs = self._costs(pl_module, data)
        curves: list[Curve] = []
        chosen = functools.partial(data.batches, SPLITS[self.select_on], pl_module.device)
        fills = {name: find_fill(pl_module, name, chosen) for name in dict.fromkeys(spec.fill for spec in self.specs)}
        scores = self._scores(trainer, pl_module)
        for number, spec in enumerate(self.specs, 1):
            if trainer.is_global_zero:
                stage(f"masking curve {number} of {len(self.specs)}: {spec.name}")
                if make_units(spec.units, layout, spec.exclude_layers).per_stage:
                    log.info("%s: stages differ in their heads, so units=%s goes stage by stage", spec.name, spec.units)
            select, report = (
                self._evaluator(trainer, pl_module, split, spec, identity, fills[spec.fill], scores[split])
                for split in (self.select_on, "test")
            )
            on = measured_on(spec.order) or self.select_on
            chosen = {"chosen_on": on, "chosen_by": data.images_of(SPLITS[on])}
            path: dict[str, Any] = {"splits": (self.select_on, "test"), "steps": self.steps, "step": self.step}
            try:
                curves += masking_curve(layout, spec, select, report, costs=costs, **path, **chosen)
            except UserError as error:
                where = f"masking.curves.{spec.name}"
                raise UserError(f"{where}: {error} To go on without it: ~{where}.") from error
        return curves

    def masked_heads(self, trainer: L.Trainer, module: L.LightningModule, curves: list[Curve]) -> list[MaskedHead]:
        """Measure the heads that the searched curves mask, on the images that the paths were chosen on.

        What a measure chooses first (Interaction its pairs) it chooses on validation images, as everywhere.
        """
        whole = [c for c in curves if c.split == "test" and c.chosen_on is not None and len(c.step) > 1]
        if self.join is None or not whole:
            return []
        data = _data(trainer)
        walk, select = (
            functools.partial(data.batches, split, module.device) for split in (SPLITS[self.select_on], "val")
        )
        makers = self.join.measures(gates_of(module).layout)
        columns, refused = measure(module, makers, walk, select, data.class_names)
        if trainer.is_global_zero:
            for name, error in refused.items():
                log.warning("maskable_heads without %s: %s", name, error)
        return self.join.answer(whole, columns)

    def _scores(self, trainer: L.Trainer, module: L.LightningModule) -> dict[str, Score]:
        """The score on each split that it is asked on."""
        data = _data(trainer)
        kind = score_for(self.score, "score", not data.unlabelled, bool(module.features_only))
        return {
            split: looked(kind, module, self._walk(trainer, module, split), data.sizes[SPLITS[split]])
            for split in dict.fromkeys((self.select_on, "test"))
        }

    def _evaluator(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        split: str,
        spec: CurveSpec,
        identity: dict[str, Any],
        fill: Fill | None,
        score: Score,
    ) -> Evaluate:
        beside: dict[str, Any] = {} if fill is None else {"fill": spec.fill, "fill_from": self.select_on}
        if type(score) is not Labels:  # a user's may judge by the labels, too, and give other numbers
            beside["score"] = [score.scored.name, describe(type(score))]
        name, data, batches = SPLITS[split], _data(trainer), self._walk(trainer, module, split)
        return evaluator(
            module,
            batches,
            data.sizes[name],
            label=f"{spec.name} on {split}",
            show=trainer.is_global_zero,
            pick=batches,
            rescale=spec.rescale,
            cache=MaskCache(self.cache, cache_key(**identity, split=name, rescale=spec.rescale, **beside)),
            fill=fill,
            score=score,
            of="norm" if module.features_only else "loss",
        )

    def _walk(self, trainer: L.Trainer, module: L.LightningModule, split: str) -> Callable[..., Iterator[Batch]]:
        return functools.partial(_data(trainer).batches, SPLITS[split], module.device)

    def _costs(self, module: L.LightningModule, data: ImageData) -> dict[str, Cost]:
        """Costs that masks leave of the dense model's FLOPs, parameters and time, for the targets that ask."""
        from mhprobe.surgery.costs import costs, head_shares

        asked = {unit for spec in self.specs for unit in spec.target or {}}
        if not asked & {"flops", "params", "latency"}:
            return {}
        images = next(iter(data.batches("val", module.device))).images
        shares = head_shares(cast(torch.nn.Module, module.backbone), gates_of(module).layout, images, asked)
        # times differ from process to process, and all have to stop at the same step
        return costs(ranks.from_rank_zero(lambda: shares))


def _data(trainer: L.Trainer) -> ImageData:
    return trainer.datamodule  # type: ignore[attr-defined]


def identity_of(module: Any, data: ImageData) -> dict[str, Any]:
    """Cache key of scores without the split: weights alone fix neither the number of heads nor the norm.

    module: a GatedClassifier. Nor do the pixels of ``data`` say how they are normalised, nor a model's name what code
    it has.
    """
    return {
        "versions": {"mhprobe": __version__, "timm": version("timm"), "torch": str(torch.__version__)},
        "code": code_digests(*dict.fromkeys(type(part) for part in module.modules())),
        "weights": _digest(module),
        "backbone": module.description["backbone"],
        "layout": gates_of(module).layout.digest,
        "data": data.fingerprint,
        "input": data.spec and dataclasses.astuple(data.spec),
    }


def _digest(module: L.LightningModule) -> str:
    """sha256 over the bits of all weights and gates."""
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        if isinstance(value, torch.Tensor) and key.startswith(("backbone.", "gates.")):
            digest.update(
                key.encode() + value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
    return digest.hexdigest()
