"""Scorers of masks: on one split of a model's images, what masks of its heads leave right.

What costs a walk over the images is found when first asked for, and once: the score of a split, a
fill, and what masks cost.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mhprobe.data.base import SPLITS
from mhprobe.data.batch import Walk
from mhprobe.framework.questions.subject import Subject
from mhprobe.gates.fill import Fill
from mhprobe.heads import FillName, HeadLayout
from mhprobe.masking.base import Cost
from mhprobe.masking.parts.cache import MaskCache, cache_key, describe
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.recording.fills import find_fill
from mhprobe.recording.outputs import Of
from mhprobe.scoring.base import Score, looked, score_for
from mhprobe.scoring.labels import Labels
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs


@dataclass
class Fills:
    """Fills for masked heads, by name, each found once on the images of ``split`` (a name of masking)."""

    subject: Subject
    split: str
    found: dict[str, Fill | None] = field(default_factory=dict)

    def named(self, name: FillName) -> Fill | None:
        """Return a fill; None for zero. UserError as ``find_fill``. A collective."""
        if name not in self.found:
            walk = self.subject.walk(split=SPLITS[self.split])
            self.found[name] = find_fill(self.subject.backbone, name, walk)
        return self.found[name]


@dataclass
class Scorer:
    """Scores masks on one split.

    split: a name of masking, "validation" or "test". kind: what is right and what is lost; None for
    the labels, or what the model and the data allow without. cache: the folder of scores.
    """

    subject: Subject
    split: str
    kind: type[Score] | None
    fills: Fills
    cache: Path

    @property
    def images(self) -> str:
        """The digest of the split's images."""
        return self.subject.data.images_of(SPLITS[self.split])

    def walk(self, images: Tensor | int | None = None) -> Walk:
        """Return a walk over the split, as ``Subject.walk``."""
        return self.subject.walk(images, SPLITS[self.split])

    @functools.cached_property
    def score(self) -> Score:
        """The score, which knows what the unmasked model says where it compares with that.

        A collective. UserError for a score that the model or the data do not allow.
        """
        model, data = self.subject.model, self.subject.data
        size, bank = data.sizes[SPLITS[self.split]], data.sizes["train"]
        labelled, features = not data.unlabelled, bool(model.features_only)
        kind = score_for(self.kind, "score", labelled, features, size, bank=bank)
        voters = self.subject.walk(split="train"), bank
        slopes_of: Of = "norm" if features else "loss"
        show = self.subject.first
        return looked(kind, model, self.walk(), size, voters, show=show, of=slopes_of)

    def under(self, spec: CurveSpec) -> Evaluator:
        """Return the function from masks to their scores, with the fill and scale of a curve.

        A collective.
        """
        subject, data, name = self.subject, self.subject.data, SPLITS[self.split]
        score = self.score
        fill = self.fills.named(spec.fill)
        key = cache_key(
            **subject.identity,
            split=name,
            rescale=spec.rescale,
            **self._key_of_images(),
            **self._key_of_fill(spec, fill),
            **self._key_of_score(),
        )
        return Evaluator(
            subject.model,
            self.walk(),
            data.sizes[name],
            label=f"{spec.name} on {self.split}" if subject.first else "",
            pick=functools.partial(data.batches, name, subject.model.device),
            masked=MaskedAs(fill, spec.rescale),
            cache=MaskCache(self.cache, key),
            score=score,
        )

    def _key_of_images(self) -> dict[str, Any]:
        # the fingerprint of the data names the pixels of its test images
        return {} if self.split == "test" else {"images": self.images}

    def _key_of_fill(self, spec: CurveSpec, fill: Fill | None) -> dict[str, Any]:
        if fill is None:
            return {}
        split = self.fills.split
        by = self.subject.data.images_of(SPLITS[split])
        return {"fill": spec.fill, "fill_from": split, "filled_by": by}

    def _key_of_score(self) -> dict[str, Any]:
        score = self.score
        if type(score) is Labels:
            return {}
        about = {"score": [score.scored.name, describe(type(score))]}
        return about | ({"bank": self.subject.data.images_of("train")} if score.banked else {})


@dataclass
class Scorers:
    """Scorers of one subject, by split, with the same fills.

    select_on: the split that greedy orders are chosen on, and fills found. kind, cache: as of
    ``Scorer``. shares: units of cost that curves have targets in.
    """

    subject: Subject
    select_on: str
    kind: type[Score] | None
    cache: Path
    shares: Collection[str] = ()
    made: dict[str, Scorer] = field(default_factory=dict)

    @property
    def first(self) -> bool:
        return self.subject.first

    @property
    def layout(self) -> HeadLayout:
        return self.subject.layout

    @functools.cached_property
    def fills(self) -> Fills:
        return Fills(self.subject, self.select_on)

    def on(self, split: str) -> Scorer:
        """Return the scorer of a split, "validation" or "test"."""
        if split not in self.made:
            self.made[split] = Scorer(self.subject, split, self.kind, self.fills, self.cache)
        return self.made[split]

    @functools.cached_property
    def costs(self) -> dict[str, Cost]:
        """Functions from masks to the FLOPs, parameters, time or memory left, by unit."""
        from mhprobe.surgery.costs import costs

        if not self.shares:
            return {}
        subject = self.subject
        images = next(iter(subject.walk(split="val")())).images
        return costs(subject.backbone, subject.layout, images, self.shares)
