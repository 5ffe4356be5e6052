"""Material of a panel: the columns and curves of one figure, and the model and its images themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from torch import Tensor, nn

from mhprobe.data.base import ImageData
from mhprobe.heads import HeadLayout
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.redundant_or_inert import MaskedHead, RedundantOrInert
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import Walk
from mhprobe.report.report import Result, Sample, counted
from mhprobe.weights.twin import RandomTwin

Columns = Mapping[str, Tensor]


@dataclass(frozen=True)
class Material:
    """For one figure.

    measures, columns: by the name that the paper's yaml gives them. control: the same columns of a freshly initialised
    network, of those measures that it was measured with. curves: the masking curves, and specs: how they
    are described. heads, join: whether the heads that could go are redundant or inert, where the yaml asks. seed: of
    whatever a panel draws. trainer: to shard by rank and to say which rank this is.
    """

    layout: HeadLayout
    model: L.LightningModule
    data: ImageData
    measures: Mapping[str, Measure] = field(default_factory=dict)
    columns: Mapping[str, Columns] = field(default_factory=dict)
    control: Mapping[str, Columns] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    specs: Sequence[CurveSpec] = ()
    heads: Sequence[MaskedHead] = ()
    join: RedundantOrInert | None = None
    seed: int = 0
    first: bool = True  # whether this rank shows progress

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""
        return 1 / self.data.num_classes

    def untrained(self) -> nn.Module:
        """A network of the same shape that has learned nothing, on the model's device."""
        model: Any = self.model
        return RandomTwin(model.backbone, self.layout, model.description, self.seed)()

    def of(self, images: int, split: str = "test") -> Sample:
        """For ``Result.of``: at most so many of a split."""
        return counted(min(images, self.data.sizes[split]), {"train": "training"}.get(split, split))

    def walk(self, images: int | None = None, split: str = "test") -> Walk:
        """Over the images of a split, or so many of them, evenly from all."""
        return functools.partial(self.data.batches, split, self.model.device, images=images)


Panel = Callable[[Material], Mapping[str, Result]]
"""Results by the end of their name. A collective: every rank calls it; only rank 0 writes what it gives."""
