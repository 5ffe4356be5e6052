"""Evidence of a network and its images: measured when it is first asked for, and kept for the next run."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.backbones import gives_features
from mhprobe.claims.parts.claim import NOTHING_LEARNED, Columns, Evidence
from mhprobe.claims.parts.place import place_errors
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Ablation
from mhprobe.io.progress import progress
from mhprobe.maps.base import MapKind
from mhprobe.maps.faithfulness import faithfulness
from mhprobe.masking.base import Evaluate
from mhprobe.masking.parts.units import make_units
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.losses import outcomes
from mhprobe.questions.masking import Masking
from mhprobe.questions.material import Known, Material
from mhprobe.report.runs.run import Run, read_run
from mhprobe.stats.significance import wilson
from mhprobe.studies.panels.columns import second_set
from mhprobe.studies.panels.maps import hottest
from mhprobe.studies.panels.relations import best_of_each


class Measured(Evidence):
    """Evidence of a trained network.

    material: the network and its images. maps: kinds of maps by name. second: another data set with the same classes;
    None for the same one with damaged test images. runs: folders of other runs, by what they are to this network;
    key: what a message calls them.
    Images, at most: of_maps, test images that maps and relations between patches are judged on; of_control, test images
    that the untrained twin is shown; of_choice, validation images that orders and heads are chosen on.
    """

    def __init__(
        self,
        material: Material,
        maps: Mapping[str, MapKind],
        of_maps: int,
        of_control: int,
        of_choice: int,
        second: ImageData | None = None,
        runs: Mapping[str, str | None] | None = None,
        key: str = "runs",
    ) -> None:
        self.material, self.layout, self.maps, self.of_maps = material, material.layout, maps, of_maps
        self.twin = None if material.twin is None else Untrained(_of_fewer(material, "test", of_control))
        self.choosing = _of_fewer(material, "val", of_choice)
        self.other, self.runs, self.key = second, runs or {}, key

    def columns(self, name: str) -> Columns:
        return self.material.columns(name)

    def control(self, name: str) -> Columns:
        if self.twin is None:
            raise UserError("there is no untrained twin to compare with: it was left out, or the weights are pruned.")
        return self.twin.columns(name)

    def second(self, name: str) -> Columns:
        return self._on_second.columns(name)

    def path(self, name: str) -> Tensor:
        self._refuse_guessing()
        spec = self._masking.named(name)
        paths = spec.order.paths(make_units(spec.units, self.layout), self.layout, self._evaluate("validation"))
        return torch.stack([path.masks() for path in paths])

    def right(self, masks: Tensor, split: str = "test") -> Tensor:
        self._refuse_guessing()
        distinct, place = torch.unique(masks, dim=0, return_inverse=True)
        return self._evaluate(split)(distinct).right[place]

    def of_images(self, name: str) -> Tensor:
        """(n,) the area under deletion by a kind of map, or "random"; or a number of one of the other walks."""
        other = {"heat": self._heat, "right": self._heat, "best_head": self._answers, "best_offset": self._answers}
        other |= {"high_norm_error": self._places, "other_error": self._places}
        walk = other.get(name, self._areas)
        about = {"walk": walk.__name__, "maps": {kind: vars(of) for kind, of in self.maps.items()}, "of": self.of_maps}
        return self.material.kept(about, lambda: ranks.together(walk))[name]

    def run(self, name: str) -> Run:
        if not (folder := self.runs.get(name)):
            raise UserError(f"it needs another run, {self.key}.{name}=<its folder>.")
        return read_run(Path(folder))

    @functools.cached_property
    def _on_second(self) -> Material:
        return dataclasses.replace(self.material.on(second_set(self.material.data, self.other)), passes={})

    @property
    def _masking(self) -> Masking:
        masking = self.material.masking
        assert masking is not None, "conf/claims.yaml describes the orders"
        return masking

    def _evaluate(self, split: str) -> Evaluate:
        masking = self._masking
        any_order = next(spec for spec in masking.specs.values() if not isinstance(spec, UserError))
        return masking.evaluate(
            self.material if split == "test" else self.choosing, split, dataclasses.replace(any_order, name="masks")
        )

    def _refuse_guessing(self) -> None:
        """UserError for a network that is no better than a guess: it has no accuracy that heads could cost."""
        self._refuse_features()
        if self.material.data.unlabelled:
            raise UserError("the images have no labels, and accuracy is what it is about.")
        whole = self._evaluate("test")(torch.zeros(1, self.layout.num_heads, dtype=torch.bool))
        low, _ = wilson(whole.correct[0], torch.tensor(whole.images))
        if float(low) <= self.material.chance:
            raise UserError("the network is not shown to be better than a guess: there is no accuracy to lose.")

    def _refuse_features(self) -> None:
        if gives_features(self.material.model):
            raise UserError("the network gives features, no classes: it has no answers that could be right.")

    def _areas(self) -> dict[str, Tensor]:
        self._refuse_features()
        backbone: Any = self.material.model.backbone

        def of_batch(batch: Batch) -> Tensor:
            made = [kind(backbone, batch.images, batch.labels) for kind in self.maps.values()]
            maps = [torch.stack(list(each.values())).mean(0) for each in made]
            areas = faithfulness(backbone, batch.images, maps, random_orders=1)
            return torch.stack([*(each.deletion for each in areas), areas[0].random_deletion], 1)

        return self._walked("deleting patches in the order of maps", self.of_maps, [*self.maps, "random"], of_batch)

    def _answers(self) -> dict[str, Tensor]:
        ways = [ways for _, _, ways in best_of_each(self.material, self.of_maps)]
        if not ways:
            raise UserError("the images ask about no relation between patches.")
        values = [torch.stack([of[way][1] for of in ways]).nanmean(0) for way in ("best head", "best fixed offset")]
        return dict(zip(("best_head", "best_offset"), values, strict=True))

    def _places(self) -> dict[str, Tensor]:
        loud, other = place_errors(self.material, self.of_maps)
        return {"high_norm_error": loud, "other_error": other}

    def _heat(self) -> dict[str, Tensor]:
        self._refuse_features()
        backbone: Any = self.material.model.backbone

        def of_batch(batch: Batch) -> Tensor:
            (maps,) = self.maps["rollout"](backbone, batch.images, batch.labels).values()
            with torch.inference_mode():
                right, _ = outcomes(backbone(batch.images), batch.labels)
            return torch.stack([hottest(maps), right.double()], 1)

        return self._walked("rollouts of test images", self.material.data.sizes["test"], ["heat", "right"], of_batch)

    def _walked(
        self, label: str, images: int, names: Sequence[str], of_batch: Callable[[Batch], Tensor]
    ) -> dict[str, Tensor]:
        """(n,) under each of the names, from the (B, names) numbers that a batch gives. A collective."""
        rows: list[list[float]] = []
        data = self.material.data
        with progress(label, min(images, data.sizes["test"]), show=self.material.first) as done:
            for batch in data.batches("test", self.material.model.device, images=images):
                rows += of_batch(batch)[batch.valid].tolist()
                done(int(batch.valid.sum()))
        every = torch.tensor([row for part in ranks.gather(rows) for row in part], dtype=torch.float64)
        return dict(zip(names, every.T.contiguous(), strict=True))


class Untrained(Evidence):
    """Evidence of the untrained twin: what its heads do, and no accuracy."""

    def __init__(self, material: Material) -> None:
        self.material, self.layout = material, material.layout

    def columns(self, name: str) -> Columns:
        """Columns of a measure. UserError for one that masks heads, and for one that refuses the twin."""
        measure = self.material.measures[name]
        needs = {*measure.needs, *(measure.select_needs or ())} if isinstance(measure, Measure) else set()
        if any(isinstance(need, Ablation) for need in needs):
            raise UserError(NOTHING_LEARNED)
        found = self.material.control(name)
        if found is None:
            raise UserError(f"{name} refuses the untrained network.")
        return found


def _of_fewer(material: Material, split: str, images: int) -> Material:
    """The same on so many images of a split at most, of every class alike."""
    data = material.data
    if images >= data.sizes[split]:
        return material
    fewer = data.of_source(data.source)
    fewer.limits = {**copy.copy(data.limits), split: images}
    return dataclasses.replace(material, data=fewer, known=Known(), facts={})
