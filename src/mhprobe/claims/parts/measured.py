"""Evidence of a network and its images: measured when it is first asked for, and kept in files for the next run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.callbacks.curve import SPLITS, identity_of
from mhprobe.claims.parts.claim import Columns
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import Ablation, HeadLayout
from mhprobe.io.code import stands_on
from mhprobe.io.progress import progress
from mhprobe.maps.base import MapKind
from mhprobe.maps.faithfulness import faithfulness
from mhprobe.masking.base import Evaluate
from mhprobe.masking.parts.cache import MaskCache, cache_key
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.units import make_units
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.losses import outcomes
from mhprobe.recording.measuring import measure
from mhprobe.scoring.evaluate import evaluator
from mhprobe.stats.significance import wilson
from mhprobe.studies import stored

HEAT = "heat"  # of the rollout of a test image: the share of its mass on its hottest tenth
HOTTEST = 0.1


class Recorded:
    """Columns of measures of one network on test images, from one pass for all that share it, or from files.

    model: makes the network, when it is needed. data: its images; images: at most so many of the test split. measures:
    by name, or why one does not fit. keys: by name, what the files are known by. wanted: names that a run asks for.
    folder, suffix: of the files.
    """

    def __init__(
        self,
        model: Callable[[], nn.Module],
        data: ImageData,
        images: int,
        measures: Mapping[str, Measure | UserError],
        keys: Mapping[str, str],
        wanted: Sequence[str],
        folder: Path,
        suffix: str = "",
    ) -> None:
        self.model, self.data, self.images = model, data, min(images, data.sizes["test"])
        self.measures, self.keys, self.wanted = measures, keys, list(wanted)
        self.folder, self.suffix = folder, suffix
        self.known: dict[str, Columns | UserError] = {}

    def columns(self, name: str) -> Columns:
        """Columns of a measure; UserError if it does not fit, or refuses."""
        if name not in self.known:
            self._measure(name)
        return _unless_refused(self.known[name])

    def _measure(self, name: str) -> None:
        """Measure what is wanted and shares the pass of ``name``, but for what files hold."""
        if isinstance(unfit := self.measures[name], UserError):
            self.known[name] = unfit
            return
        asked = {
            other: self.measures[other] for other in dict.fromkeys([name, *self.wanted]) if other not in self.known
        }
        group = {
            other: each
            for other, each in asked.items()
            if isinstance(each, Measure) and masks_of(each) == masks_of(unfit)
        }
        keys = {other: self.keys[other] for other in group}
        held = ranks.from_rank_zero(lambda: stored.read_all(self.folder, keys, self.suffix))
        self.known |= {other: each.columns for other, each in held.items()}
        group = {other: each for other, each in group.items() if other not in held}
        if not group:
            return
        model = self.model()
        device = next(model.parameters()).device
        choosing = self.data.sizes["val"] if any(each.select_needs is not None for each in group.values()) else 0
        label = f"{'untrained twin: ' if self.suffix else ''}measuring {', '.join(group)}"
        with progress(label, self.images + choosing, show=ranks.rank() == 0) as done:
            columns, refused = measure(
                model,
                group,
                batches=functools.partial(self.data.batches, "test", device, images=self.images),
                select=functools.partial(self.data.batches, "val", device),
                class_names=self.data.class_names,
                done=lambda batch: done(int(batch.valid.sum())),
            )
        self.known |= {**columns, **refused}
        if ranks.rank() == 0:
            for other, values in columns.items():
                stored.write(self.folder, f"{other}{self.suffix}", keys[other], values, {})


class Measured:
    """Evidence of a trained network.

    module: the classifier, with gates. measures: by name, or why one does not fit; options: what they were made from,
    by the same names. wanted: names of the measures that this run asks for. specs: masking orders by name. maps: kinds
    of maps by name; of_maps: how many test images they are judged on. folder: of the files. cache: of scores of masks.
    control: makes the untrained twin, which is shown ``of_control`` test images; None for no twin.
    """

    def __init__(
        self,
        module: L.LightningModule,
        data: ImageData,
        measures: Mapping[str, Measure | UserError],
        options: Mapping[str, Any],
        wanted: Sequence[str],
        specs: Mapping[str, CurveSpec],
        maps: Mapping[str, MapKind],
        of_maps: int,
        folder: Path,
        cache: Path,
        control: Callable[[], nn.Module] | None = None,
        of_control: int = 500,
    ) -> None:
        self.module, self.data, self.layout = module, data, gates_of(module).layout
        self.specs, self.maps, self.of_maps = specs, maps, of_maps
        self.folder, self.cache = folder, cache
        self.identity = identity_of(module, data)
        self._known: dict[str, Columns | UserError] = {}
        self._paths: dict[str, Tensor] = {}

        def recorded(model: Callable[[], nn.Module], images: int, suffix: str) -> Recorded:
            keys = {name: self._key(each, of=images, suffix=suffix) for name, each in options.items()}
            return Recorded(model, data, images, measures, keys, wanted, folder, suffix)

        self._recorded = recorded(lambda: module, data.sizes["test"], "")
        self.twin = None if control is None else Untrained(recorded(functools.cache(control), of_control, "_untrained"))

    def columns(self, name: str) -> Columns:
        """Columns of a measure of the test images, with those that the same pass gives."""
        return self._recorded.columns(name)

    def control(self, name: str) -> Columns:
        """Columns of the untrained twin. UserError where it has none."""
        if self.twin is None:
            raise UserError("there is no untrained twin to compare with: it was left out, or the weights are pruned.")
        return self.twin.columns(name)

    def path(self, name: str) -> Tensor:
        """(R, S + 1, A) masks of the paths of an order, chosen on validation images."""
        self._refuse_guessing()
        if name not in self._paths:
            spec = self.specs[name]
            paths = spec.order.paths(make_units(spec.units, self.layout), self.layout, self._evaluate("validation"))
            self._paths[name] = torch.stack([path.masks() for path in paths])
        return self._paths[name]

    def right(self, masks: Tensor, split: str = "test") -> Tensor:
        """(M, n) bool: images that are right under each mask; equal masks are evaluated once."""
        self._refuse_guessing()
        distinct, place = torch.unique(masks, dim=0, return_inverse=True)
        return self._evaluate(split)(distinct).right[place]

    def of_images(self, name: str) -> Tensor:
        """(n,) the area under deletion by a kind of map, or "random"; "heat" of rollouts, "right": 1 or 0."""
        key = HEAT if name in (HEAT, "right") else "areas"
        ingredients = {"maps": {kind: vars(each) for kind, each in self.maps.items()}, "of": self.of_maps}
        return self._kept(key, self._heat if key == HEAT else self._areas, ingredients)[name]

    def _kept(self, name: str, find: Callable[[], Columns], options: Mapping[str, Any]) -> Columns:
        """Columns from memory or a file, or found and put there."""
        if name not in self._known:
            key = self._key(options)
            held = ranks.from_rank_zero(lambda: stored.read_all(self.folder, {name: key}))
            if name in held:
                self._known[name] = held[name].columns
            else:
                try:
                    self._known[name] = ranks.together(find)
                except ranks.LeftAlone:
                    raise
                except UserError as error:
                    self._known[name] = error
                else:
                    if ranks.rank() == 0:
                        stored.write(self.folder, name, key, self._known[name], {})  # type: ignore[arg-type]
        return _unless_refused(self._known[name])

    def _key(self, options: Any, **more: Any) -> str:
        return cache_key(**self.identity, measure=options, stands_on=stands_on(options), **more)

    def _areas(self) -> Columns:
        """By kind of map the area under deletion in the order of each image's map, and that of a random order."""
        backbone: Any = self.module.backbone
        rows: list[list[float]] = []
        total = min(self.of_maps, self.data.sizes["test"])
        with progress("deleting patches in the order of maps", total, show=ranks.rank() == 0) as done:
            for batch in self.data.batches("test", self.module.device, images=self.of_maps):
                made = [kind(backbone, batch.images, batch.labels) for kind in self.maps.values()]
                maps = [torch.stack(list(each.values())).mean(0) for each in made]
                areas = faithfulness(backbone, batch.images, maps, random_orders=1)
                columns = [*(each.deletion for each in areas), areas[0].random_deletion]
                rows += torch.stack(columns, 1)[batch.valid].tolist()
                done(int(batch.valid.sum()))
        every = torch.tensor([row for part in ranks.gather(rows) for row in part], dtype=torch.float64)
        return dict(zip([*self.maps, "random"], every.T.contiguous(), strict=True))

    def _heat(self) -> Columns:
        """Heat of each test image's rollout, and whether the image is classified rightly (1 or 0)."""
        backbone: Any = self.module.backbone
        rows: list[tuple[float, float]] = []
        with progress("rollouts of test images", self.data.sizes["test"], show=ranks.rank() == 0) as done:
            for batch in self.data.batches("test", self.module.device):
                (maps,) = self.maps["rollout"](backbone, batch.images, batch.labels).values()
                with torch.inference_mode():
                    right, _ = outcomes(backbone(batch.images), batch.labels)
                flat = maps.flatten(1).double()
                hottest = flat.topk(max(1, round(HOTTEST * flat.shape[1])), dim=1).values.sum(1) / flat.sum(1)
                rows += torch.stack([hottest, right.double()], 1)[batch.valid].tolist()
                done(int(batch.valid.sum()))
        every = torch.tensor([row for part in ranks.gather(rows) for row in part], dtype=torch.float64)
        return {HEAT: every[:, 0].contiguous(), "right": every[:, 1].contiguous()}

    @functools.cached_property
    def _whole(self) -> Tensor:
        return self._evaluate("test")(torch.zeros(1, self.layout.num_heads, dtype=torch.bool)).right[0]

    def _refuse_guessing(self) -> None:
        """UserError for a network that is no better than a guess: it has no accuracy that heads could cost."""
        if self.data.unlabelled:
            raise UserError("the images have no labels, and accuracy is what it is about.")
        low, _ = wilson(self._whole.sum(), torch.tensor(len(self._whole)))
        if float(low) <= 1 / self.data.num_classes:
            raise UserError("the network is not shown to be better than a guess: there is no accuracy to lose.")

    def _evaluate(self, split: str) -> Evaluate:
        name = SPLITS[split]
        batches = functools.partial(self.data.batches, name, self.module.device)
        return evaluator(
            self.module,
            batches,
            self.data.sizes[name],
            label=f"masks on {split} images",
            show=ranks.rank() == 0,
            pick=batches,
            cache=MaskCache(self.cache, cache_key(**self.identity, split=name, rescale=False)),
        )


class Untrained:
    """Evidence of the untrained twin: what its heads do, and no accuracy."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    @functools.cached_property
    def layout(self) -> HeadLayout:
        return gates_of(self._recorded.model()).layout

    def columns(self, name: str) -> Columns:
        """Columns of a measure. UserError for one that masks heads."""
        if isinstance(each := self._recorded.measures[name], Measure) and masks_of(each):
            raise UserError(NOTHING_LEARNED)
        return self._recorded.columns(name)

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


NOTHING_LEARNED = "an untrained network guesses: there is no accuracy to lose, and nothing to explain."


def masks_of(measure: Measure) -> frozenset[Ablation]:
    """Masks that a measure's pass evaluates; measures with the same share it."""
    needs = {*measure.needs, *(measure.select_needs or ())}
    return frozenset(need for need in needs if isinstance(need, Ablation))


def _unless_refused(known: Columns | UserError) -> Columns:
    if isinstance(known, UserError):
        raise known
    return known
