"""Masking curves: accuracy as heads are switched off, in the orders that the configuration names.

Orders are searched on validation images and reported on test images (``select_on="test"``
reproduces papers that did not separate them). Scores of masks are kept in ``cache``, under a key of
weights, data and split, and shared by curves, jobs of a sweep and later runs.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mhprobe import __version__, ranks
from mhprobe.data.base import SPLITS, ImageData
from mhprobe.data.batch import Walk
from mhprobe.errors import UserError
from mhprobe.gates.fill import Fill
from mhprobe.heads import HeadLayout
from mhprobe.io.code import code_digests
from mhprobe.io.progress import stage
from mhprobe.io.tensors import digest
from mhprobe.masking.base import SHARES, Cost
from mhprobe.masking.parts.cache import MaskCache, cache_key, describe
from mhprobe.masking.parts.curve import CurveSpec, Splits, masking_curve
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.redundant_or_inert import MaskedHead, RedundantOrInert
from mhprobe.recording.fills import find_fill
from mhprobe.recording.measuring import measure
from mhprobe.recording.outputs import Of
from mhprobe.report.result import Sample
from mhprobe.report.runs.run import measured_on
from mhprobe.scoring.base import Score, looked, score_for
from mhprobe.scoring.labels import Labels
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs
from mhprobe.weights.twin import RandomTwin

log = logging.getLogger(__name__)

Keep = Callable[[Any, Callable[[], dict[str, Tensor]]], dict[str, Tensor]]


@dataclass
class Subject:
    """A model and its images.

    model: a LightningModule with a backbone, its gates and a description. seed: of random draws.
    first: True if this rank shows progress. facts: a cache.
    """

    layout: HeadLayout
    model: Any
    data: ImageData
    seed: int = 0
    first: bool = True
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def backbone(self) -> nn.Module:
        backbone: nn.Module = self.model.backbone
        return backbone

    @property
    def chance(self) -> float:
        return 1 / self.data.num_classes

    @property
    def identity(self) -> dict[str, Any]:
        """Facts that decide an answer about the model on these images, for a key, without the question."""
        if not self.facts:
            weights = self.model.state_dict()
            self.facts |= {
                "version": __version__,
                "code": code_digests(*self.model.modules()),
                "weights": digest(
                    {
                        key: of
                        for key, of in weights.items()
                        if key.startswith(("backbone.", "gates."))
                    }
                ),
                "backbone": self.model.description["backbone"],
                "layout": self.layout.digest,
                "data": self.data.fingerprint,
                "input": self.data.spec and astuple(self.data.spec),
            }
        return self.facts

    def untrained(self) -> nn.Module:
        """Return an untrained network of the same shape, on the model's device."""
        return RandomTwin(self.backbone, self.layout, self.model.description, self.seed)()

    def of(self, images: int, split: str = "test") -> Sample:
        """Return the images for ``Result.of``: at most so many of a split."""
        return Sample(min(images, self.data.sizes[split]), {"train": "training"}.get(split, split))

    def walk(self, images: Tensor | int | None = None, split: str = "test") -> Walk:
        """Return a walk over a split: all images, those at these positions, or so many of them, evenly from all."""
        return functools.partial(self.data.batches, split, self.model.device, images=images)


@dataclass
class Masking:
    """Descriptions of masking curves, and what they have in common.

    specs: by name; for one that does not fit the model, why. cache: the folder of scores.
    select_on: the split that greedy orders are chosen on. steps: the longest curve, None for all
    heads. step: only this point of every curve (for sweeps). join: says of the heads that could go
    whether they are redundant or inert; None to leave that out. score: what is right and what is
    lost; None for the labels, or what the model and the data allow without. key: of the curves, for
    messages.
    """

    specs: Mapping[str, CurveSpec | UserError]
    cache: Path
    select_on: str = "validation"
    steps: int | None = None
    step: int | None = None
    join: RedundantOrInert | None = None
    score: type[Score] | None = None
    key: str = "curves"
    _scores: dict[str, Score] = field(default_factory=dict)
    _fills: dict[str, Fill | None] = field(default_factory=dict)
    _shares: dict[str, Cost] | None = None

    @property
    def splits(self) -> tuple[str, str]:
        """Names of the data's splits that paths are chosen on, and reported on."""
        return SPLITS[self.select_on], "test"

    def named(self, name: str) -> CurveSpec:
        """Return the description of a curve.

        UserError for an unknown one, or one that does not fit the model.
        """
        spec = self.specs.get(
            name, UserError(f"curves: expected some of {', '.join(self.specs)}, got {name}.")
        )
        if isinstance(spec, UserError):
            raise spec
        return spec

    def curve(self, material: Subject, name: str) -> list[Curve]:
        """Compute one curve on each split, the same on every rank.

        UserError if it is impossible. A collective.
        """
        spec = self.named(name)
        if material.first:
            stage(f"masking curve {list(self.specs).index(name) + 1} of {len(self.specs)}: {name}")
            if make_units(spec.units, material.layout, spec.exclude_layers).per_stage:
                log.info(
                    "%s: stages differ in their heads, so units=%s goes stage by stage",
                    name,
                    spec.units,
                )
        splits = (self.select_on, "test")
        costs = self.costs(material)
        select, report = (self.evaluate(material, split, spec) for split in splits)
        on = measured_on(spec.order) or self.select_on
        chosen = Splits(*splits, chosen_on=on, chosen_by=material.data.images_of(SPLITS[on]))
        try:
            with _alone(spec, select):
                return masking_curve(
                    material.layout,
                    spec,
                    select,
                    report,
                    splits=chosen,
                    steps=self.steps,
                    step=self.step,
                    costs=costs,
                )
        except UserError as error:
            where, reason = f"{self.key}.{name}", str(error).removeprefix(f"curve {name}: ")
            raise UserError(f"{where}: {reason} To go on without it: ~{where}.") from error

    def masked_heads(
        self, material: Subject, curves: Sequence[Curve], keep: Keep
    ) -> list[MaskedHead]:
        """Measure the heads that the searched curves mask, on the images that the paths were chosen on.

        keep: called with what decides the columns, and a function that finds them, which it may
        have from before.
        """
        whole = [
            c for c in curves if c.split == "test" and c.chosen_on is not None and len(c.step) > 1
        ]
        if self.join is None or not whole:
            return []
        walk, select = (material.walk(split=split) for split in (SPLITS[self.select_on], "val"))
        makers = self.join.measures(material.layout)

        def find() -> dict[str, Tensor]:
            columns, refused = measure(
                material.model, makers, walk, select, class_names=material.data.class_names
            )
            for name, error in refused.items() if material.first else ():
                log.warning("maskable_heads without %s: %s", name, error)
            return {
                f"{name}/{key}": values
                for name, of in columns.items()
                for key, values in of.items()
            }

        columns: dict[str, dict[str, Tensor]] = {}
        for key, values in keep({"masked_heads": self.join, "split": self.select_on}, find).items():
            name, _, column = key.partition("/")
            columns.setdefault(name, {})[column] = values
        return self.join.answer(whole, columns)

    def evaluate(self, material: Subject, split: str, spec: CurveSpec) -> Evaluator:
        """Return a function from masks to their scores on a split, with the fill and scale of a curve."""
        score = self._score(material, split)
        fill = self._fill(material, spec.fill)
        name, data = SPLITS[split], material.data
        # the fingerprint of the data names the pixels of its test images
        beside: dict[str, Any] = {} if name == "test" else {"images": data.images_of(name)}
        if fill is not None:
            beside |= {"fill": spec.fill, "fill_from": self.select_on}
            beside |= {"filled_by": data.images_of(SPLITS[self.select_on])}
        if type(score) is not Labels:
            beside["score"] = [score.scored.name, describe(type(score))]
            beside |= {"bank": data.images_of("train")} if score.banked else {}
        return Evaluator(
            material.model,
            material.walk(split=name),
            material.data.sizes[name],
            label=f"{spec.name} on {split}" if material.first else "",
            pick=functools.partial(material.data.batches, name, material.model.device),
            masked=MaskedAs(fill, spec.rescale),
            cache=MaskCache(
                self.cache,
                cache_key(**material.identity, split=name, rescale=spec.rescale, **beside),
            ),
            score=score,
        )

    def _score(self, material: Subject, split: str) -> Score:
        if split not in self._scores:
            model, data = material.model, material.data
            name, bank = SPLITS[split], (material.walk(split="train"), data.sizes["train"])
            facts = (not data.unlabelled, bool(model.features_only), data.sizes[name])
            walk = material.walk(split=name)
            kind = score_for(self.score, "score", *facts, bank=bank[1])
            slopes_of: Of = "norm" if model.features_only else "loss"
            self._scores[split] = looked(
                kind, model, walk, data.sizes[name], bank, show=material.first, of=slopes_of
            )
        return self._scores[split]

    def _fill(self, material: Subject, name: Any) -> Fill | None:
        """Return the fill for masked heads, found on the images that paths are chosen on."""
        if name not in self._fills:
            self._fills[name] = find_fill(
                material.backbone, name, material.walk(split=self.splits[0])
            )
        return self._fills[name]

    def costs(self, material: Subject) -> dict[str, Cost]:
        """Return the functions from masks to the FLOPs, parameters, time or memory left, for targets of curves."""
        from mhprobe.surgery.costs import costs

        if self._shares is None:
            specs = [spec for spec in self.specs.values() if isinstance(spec, CurveSpec)]
            units = {unit for spec in specs for unit in spec.target or {}} & {*SHARES}
            self._shares = {}
            if units:
                images = next(iter(material.walk(split="val")())).images
                self._shares = costs(material.backbone, material.layout, images, units)
        return self._shares


def _alone(spec: CurveSpec, select: Evaluator) -> contextlib.AbstractContextManager[None]:
    """Jobs side by side search a curve one after another: all but the first read what was found.

    Not under DDP, where the other ranks of a waiting job would run into the time limit of their
    collectives.
    """
    if select.cache is None or not spec.order.searches or ranks.size() > 1:
        return contextlib.nullcontext()
    return select.cache.alone()
