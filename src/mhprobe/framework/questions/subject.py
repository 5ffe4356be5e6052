"""Subject of questions: a model and its images."""

import functools
from dataclasses import astuple, dataclass, field
from typing import Any

from torch import Tensor, nn

from mhprobe import __version__
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Walk
from mhprobe.heads import HeadLayout
from mhprobe.io.code import code_digests
from mhprobe.io.tensors import digest
from mhprobe.report.result import Sample
from mhprobe.weights.twin import RandomTwin


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
