"""Subject of questions: a model and its images."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import lightning as L
from torch import nn

from mhprobe import __version__
from mhprobe.backbones import gives_features
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import HeadLayout, Need
from mhprobe.io.code import code_digests
from mhprobe.io.progress import progress
from mhprobe.io.tensors import digest
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import Columns, Walk, measure
from mhprobe.recording.outputs import Of
from mhprobe.report.result import Sample
from mhprobe.weights.twin import RandomTwin


@dataclass
class Subject:
    """A model and its images.

    seed: of whatever a question draws. first: whether this rank shows progress. facts: what decides an answer about
    the model on these images, for a key, once it was asked for.
    """

    layout: HeadLayout
    model: L.LightningModule
    data: ImageData
    seed: int = 0
    first: bool = True
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def backbone(self) -> nn.Module:
        """The network itself, without what trains it."""
        return self.model.backbone  # type: ignore[return-value]

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""
        return 1 / self.data.num_classes

    @property
    def identity(self) -> dict[str, Any]:
        """Everything but the question that decides an answer about the model on these images, for a key."""
        if not self.facts:
            self.facts.update(identity_of(self.model, self.data))
        return self.facts

    def untrained(self) -> nn.Module:
        """A network of the same shape that has learned nothing, on the model's device."""
        model: Any = self.model
        return RandomTwin(model.backbone, self.layout, model.description, self.seed)()

    def of(self, images: int, split: str = "test") -> Sample:
        """For ``Result.of``: at most so many of a split."""
        return Sample(min(images, self.data.sizes[split]), {"train": "training"}.get(split, split))

    def walk(self, images: int | None = None, split: str = "test") -> Walk:
        """Over the images of a split, or so many of them, evenly from all."""
        return functools.partial(self.data.batches, split, self.model.device, images=images)


def look(
    model: nn.Module,
    measures: Mapping[str, Measure],
    data: ImageData,
    split: str = "test",
    label: str = "",
    of: Of = "loss",
    show: bool = True,
    beside: frozenset[Need] = frozenset(),
) -> tuple[dict[str, Columns], dict[str, UserError]]:
    """Measure ``model`` on a split in one pass, with progress; what a measure chooses first it chooses on validation.

    Runs outside the precision plugin's autocast, so measures see full precision. Result and errors: as of
    ``recording.measuring.measure``. A collective.
    """
    features, device = gives_features(model), next(model.parameters()).device

    def walk(of_split: str) -> Iterator[Batch]:
        for batch in data.batches(of_split, device):
            yield batch.unlabelled if features else batch  # labels say nothing about features

    chooses = any(each.select_needs is not None for each in measures.values())
    total = data.sizes[split] + (data.sizes["val"] if chooses else 0)
    names = ", ".join(measures) if len(measures) <= 4 else f"{len(measures)} measures"
    with progress(f"{label}measuring {names} on {split}", total, show=show) as done:
        return measure(
            model,
            measures,
            batches=lambda: walk(split),
            select=lambda: walk("val"),
            class_names=data.class_names,
            done=lambda batch: done(int(batch.valid.sum())),
            of=of,
            beside=beside,
        )


def identity_of(module: Any, data: ImageData) -> dict[str, Any]:
    """Cache key of answers without the question: weights alone fix neither the number of heads nor the norm.

    module: a GatedClassifier. Nor do the pixels of ``data`` say how they are normalised, nor a model's name what code
    it has.
    """
    weights = module.state_dict()
    return {
        "version": __version__,
        "code": code_digests(*dict.fromkeys(type(part) for part in module.modules())),
        "weights": digest({key: part for key, part in weights.items() if key.startswith(("backbone.", "gates."))}),
        "backbone": module.description["backbone"],
        "layout": gates_of(module).layout.digest,
        "data": data.fingerprint,
        "input": data.spec and astuple(data.spec),
    }
