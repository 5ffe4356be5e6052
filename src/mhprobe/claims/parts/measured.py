"""Evidence of a network and its images: measured when it is first asked for, and kept for the next run."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.claims.parts.claim import Columns
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Ablation, HeadLayout
from mhprobe.io.progress import progress
from mhprobe.maps.base import MapKind
from mhprobe.maps.faithfulness import faithfulness
from mhprobe.masking.base import Evaluate
from mhprobe.masking.parts.units import make_units
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.losses import outcomes
from mhprobe.questions.masking import Masking
from mhprobe.questions.material import Known, Material
from mhprobe.stats.significance import wilson
from mhprobe.studies.panels.heat import hottest

HEAT = ("heat", "right")  # of a test image: how concentrated its rollout is, and whether it is classified rightly
NOTHING_LEARNED = "an untrained network guesses: there is no accuracy to lose, and nothing to explain."


class Measured:
    """Evidence of a trained network.

    material: the network and its images. maps: kinds of maps by name; of_maps: how many test images they are judged on.
    of_control: how many test images the untrained twin is shown, at most.
    """

    def __init__(self, material: Material, maps: Mapping[str, MapKind], of_maps: int, of_control: int) -> None:
        self.material, self.maps, self.of_maps = material, maps, of_maps
        self.twin = None if material.twin is None else Untrained(_of_fewer(material, of_control))

    @property
    def layout(self) -> HeadLayout:
        """Layout of the network's heads."""
        return self.material.layout

    def columns(self, name: str) -> Columns:
        """Columns of a measure of the test images, with those that the same pass gives."""
        return self.material.columns(name)

    def control(self, name: str) -> Columns:
        """Columns of the untrained twin. UserError where it has none."""
        if self.twin is None:
            raise UserError("there is no untrained twin to compare with: it was left out, or the weights are pruned.")
        return self.twin.columns(name)

    def path(self, name: str) -> Tensor:
        """(R, S + 1, A) masks of the paths of an order, chosen on validation images."""
        self._refuse_guessing()
        spec = self._masking.named(name)
        paths = spec.order.paths(make_units(spec.units, self.layout), self.layout, self._evaluate("validation"))
        return torch.stack([path.masks() for path in paths])

    def right(self, masks: Tensor, split: str = "test") -> Tensor:
        """(M, n) bool: images that are right under each mask; equal masks are evaluated once."""
        self._refuse_guessing()
        distinct, place = torch.unique(masks, dim=0, return_inverse=True)
        return self._evaluate(split)(distinct).right[place]

    def of_images(self, name: str) -> Tensor:
        """(n,) the area under deletion by a kind of map, or "random"; "heat" of rollouts, "right": 1 or 0."""
        kinds = {kind: vars(each) for kind, each in self.maps.items()}
        if name in HEAT:
            return self.material.kept({"heat": kinds["rollout"]}, lambda: ranks.together(self._heat))[name]
        return self.material.kept({"areas": kinds, "of": self.of_maps}, lambda: ranks.together(self._areas))[name]

    @property
    def _masking(self) -> Masking:
        masking = self.material.masking
        assert masking is not None, "conf/claims.yaml describes the orders"
        return masking

    def _evaluate(self, split: str) -> Evaluate:
        spec = dataclasses.replace(self._masking.named("importance"), name="masks")  # of no order in particular
        return self._masking.evaluate(self.material, split, spec)

    def _refuse_guessing(self) -> None:
        """UserError for a network that is no better than a guess: it has no accuracy that heads could cost."""
        data = self.material.data
        if data.unlabelled:
            raise UserError("the images have no labels, and accuracy is what it is about.")
        whole = self._evaluate("test")(torch.zeros(1, self.layout.num_heads, dtype=torch.bool))
        low, _ = wilson(whole.correct[0], torch.tensor(whole.images))
        if float(low) <= self.material.chance:
            raise UserError("the network is not shown to be better than a guess: there is no accuracy to lose.")

    def _areas(self) -> dict[str, Tensor]:
        backbone: Any = self.material.model.backbone

        def of_batch(batch: Batch) -> Tensor:
            made = [kind(backbone, batch.images, batch.labels) for kind in self.maps.values()]
            maps = [torch.stack(list(each.values())).mean(0) for each in made]
            areas = faithfulness(backbone, batch.images, maps, random_orders=1)
            return torch.stack([*(each.deletion for each in areas), areas[0].random_deletion], 1)

        return self._walked("deleting patches in the order of maps", self.of_maps, [*self.maps, "random"], of_batch)

    def _heat(self) -> dict[str, Tensor]:
        backbone: Any = self.material.model.backbone

        def of_batch(batch: Batch) -> Tensor:
            (maps,) = self.maps["rollout"](backbone, batch.images, batch.labels).values()
            with torch.inference_mode():
                right, _ = outcomes(backbone(batch.images), batch.labels)
            return torch.stack([hottest(maps), right.double()], 1)

        return self._walked("rollouts of test images", self.material.data.sizes["test"], HEAT, of_batch)

    def _walked(
        self, label: str, images: int, names: tuple[str, ...] | list[str], of_batch: Callable[[Batch], Tensor]
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


class Untrained:
    """Evidence of the untrained twin: what its heads do, and no accuracy."""

    def __init__(self, material: Material) -> None:
        self.material = material

    @property
    def layout(self) -> HeadLayout:
        """Layout of the network's heads, which are the twin's."""
        return self.material.layout

    def columns(self, name: str) -> Columns:
        """Columns of a measure. UserError for one that masks heads, and for one that refuses the twin."""
        if any(isinstance(need, Ablation) for need in self._needs(name)):
            raise UserError(NOTHING_LEARNED)
        found = self.material.control(name)
        if found is None:
            raise UserError(f"{name} refuses the untrained network.")
        return found

    def _needs(self, name: str) -> set[Any]:
        each = self.material.measures[name]
        return {*each.needs, *(each.select_needs or ())} if isinstance(each, Measure) else set()

    def control(self, name: str) -> Columns:
        """UserError: it is the untrained network itself."""
        raise UserError("it compares a network with an untrained one.")

    def path(self, name: str) -> Tensor:
        """UserError: an order of heads that cost nothing means nothing."""
        raise UserError(NOTHING_LEARNED)

    def right(self, masks: Tensor, split: str = "test") -> Tensor:
        """UserError: there is no accuracy to lose."""
        raise UserError(NOTHING_LEARNED)

    def of_images(self, name: str) -> Tensor:
        """UserError: maps of a network that guesses explain nothing."""
        raise UserError(NOTHING_LEARNED)


def _of_fewer(material: Material, images: int) -> Material:
    """The same on so many test images at most, of every class alike."""
    data = material.data
    if images >= data.sizes["test"]:
        return material
    fewer = data.of_source(data.source)
    fewer.limits = {**copy.copy(data.limits), "test": images}
    return dataclasses.replace(material, data=fewer, known=Known(), facts={})
