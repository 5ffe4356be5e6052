"""Evidence of a network and its images: measured when it is first asked for, and kept for the next run.

Shapes: A heads of all sites, M masks, n images, R paths of S steps.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.backbones import gives_features
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material, Measurements, PassesTogether
from mhprobe.framework.questions.plan import masks_of
from mhprobe.lab.claims.parts.draws import OnDraw, positions_of
from mhprobe.lab.claims.parts.estimates import Estimate, of_accuracy, over_draws, third_of
from mhprobe.lab.papers.panels.columns import second_set
from mhprobe.lab.papers.panels.maps import Kinds, areas_of, heats_of
from mhprobe.lab.papers.panels.relations import best_of_each
from mhprobe.masking.base import Evaluate
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.kinds import high_norm
from mhprobe.recording.measuring import recorded
from mhprobe.report.runs.run import Run, read_run
from mhprobe.stats.significance import wilson

Columns = Mapping[str, Tensor]
PLACES = ("high_norm_error", "other_error")
NOTHING_LEARNED = (
    "an untrained network guesses: there is no accuracy to lose, and nothing to explain."
)


class Counts(NamedTuple):
    """Numbers of images that are looked at, at most.

    measures: test images for measures of heads; accuracy is that of all. maps: test images for maps
    and relations between patches. control: test images for the untrained twin. choice: validation
    images of each draw that orders and heads are chosen on. draws: number of these draws.
    """

    measures: int
    maps: int
    control: int
    choice: int
    draws: int = 5


class Evidence:
    """Numbers of a trained network that claims are judged by, each measured once, when it is first needed.

    Each method raises UserError where this network, or this data set, has no such number.

    material: the network and its images. maps: kinds of maps by name. second: another data set with
    the same classes; None for the same one with damaged test images. runs: folders of other runs,
    by role; key: their option, for messages.
    """

    def __init__(
        self,
        material: Material,
        maps: Kinds,
        counts: Counts,
        second: ImageData | None = None,
        runs: Mapping[str, str | None] | None = None,
        key: str = "runs",
    ) -> None:
        self.material, self.layout = material, material.layout
        self.measured = _of_fewer(material, "test", counts.measures)
        self.maps, self.counts = maps, counts
        self.twin = None
        if material.twin is not None:
            self.twin = Untrained(_of_fewer(material, "test", counts.control))
        self.other, self.runs, self.key = second, runs or {}, key
        self._paths: dict[str, Tensor] = {}

    def columns(self, name: str) -> Columns:
        """Columns of a measure by its name in conf/claims.yaml, of at most ``counts.measures`` test images."""
        return self.measured.columns(name)

    def control(self, name: str) -> Columns:
        """Columns of the same measure of the untrained twin."""
        if self.twin is None:
            raise UserError(
                "there is no untrained twin to compare with: it was left out, or the weights are "
                "pruned."
            )
        return self.twin.columns(name)

    def second(self, name: str) -> Columns:
        """Columns of the same measure of another data set with the same classes."""
        return self._on_second.columns(name)

    def path(self, name: str) -> Tensor:
        """(R, S + 1, A) bool masks after each step of R paths; True: head off.

        A path for each draw of validation images; of a random order its repeats.
        """
        self._refuse_guessing()
        if name not in self._paths:
            spec = self.material.described.named(name)
            units = spec.limited_units(self.layout, self.material.scorers.costs)
            on = self._on_draws if spec.order.searches else self._on_draws[:1]
            paths = [path for each in on for path in spec.order.paths(units, self.layout, each)]
            steps = min(len(path.names) for path in paths)
            self._paths[name] = torch.stack([path.masks()[: 1 + steps] for path in paths])
        return self._paths[name]

    def right(self, masks: Tensor) -> Tensor:
        """(M, n) bool: test images that are classified rightly under each of the (M, A) masks."""
        self._refuse_guessing()
        distinct, place = torch.unique(masks, dim=0, return_inverse=True)
        return self._evaluate(distinct).right[place]

    def chosen(self, masks: Tensor) -> Tensor:
        """(R, M) accuracy on each draw of validation images under each of the (M, A) masks."""
        self._refuse_guessing()
        return torch.stack([evaluate(masks).accuracy for evaluate in self._on_draws])

    def of_images(self, name: str) -> Tensor:
        """(n,) a number per test image: the area under deletion in the order of a map, or of "random"; or by name.

        heat, right: of a rollout, and 1 for a right class. best_head, best_offset: share of right
        answers to queries.
        high_norm_error, other_error: see ``place_errors``.
        """
        walks = {"heat": _heat, "right": _heat, "best_head": _answers, "best_offset": _answers}
        walk = (walks | dict.fromkeys(PLACES, place_errors)).get(name, _areas)
        find = functools.partial(walk, self.material, self.maps, self.counts.maps)
        about = {
            "walk": walk.__name__,
            "maps": {kind: vars(of) for kind, of in self.maps.items()},
            "of": self.counts.maps,
        }
        of_all = self.material.kept(about, lambda: ranks.together(find))
        if name not in of_all:
            raise UserError(f"it needs maps by {name}, which were left out.")
        return of_all[name]

    def run(self, name: str) -> Run:
        """Another run by its role for this network: training, pruned, scratch, wider."""
        if not (folder := self.runs.get(name)):
            raise UserError(f"it needs another run, {self.key}.{name}=<its folder>.")
        return read_run(Path(folder))

    @functools.cached_property
    def _on_second(self) -> Material:
        images = second_set(self.measured.data, self.other)
        return dataclasses.replace(self.measured.on(images), passes=PassesTogether())

    @functools.cached_property
    def _on_draws(self) -> list[OnDraw]:
        """Scores on each draw of validation images."""
        validation = self.material.data.sizes["val"]
        parts = positions_of(validation, self.counts.draws, self.counts.choice)
        scorer, spec = self.material.scorers.on("validation"), self._spec
        return [OnDraw.of(scorer, spec, positions) for positions in parts]

    @property
    def _spec(self) -> CurveSpec:
        """The settings that all curves share; UserError if they differ."""
        specs = [
            spec
            for spec in self.material.described.specs.values()
            if not isinstance(spec, UserError)
        ]
        if len({(spec.fill, spec.rescale) for spec in specs}) > 1:
            raise UserError(
                "claims score all masks alike, but the curves differ in fill or rescale. Make them "
                "equal."
            )
        return dataclasses.replace(specs[0], name="masks")

    @functools.cached_property
    def _evaluate(self) -> Evaluate:
        return self.material.scorers.on("test").under(self._spec)

    def _refuse_guessing(self) -> None:
        """UserError for a network that is no better than a guess: it has no accuracy to lose."""
        _refuse_features(self.material)
        if self.material.data.unlabelled:
            raise UserError("the claim is about accuracy, but the images have no labels.")
        unmasked = self._evaluate(torch.zeros(1, self.layout.num_heads, dtype=torch.bool))
        low, _ = wilson(unmasked.correct[0], torch.tensor(unmasked.images))
        if float(low) <= self.material.chance:
            raise UserError(
                "the network is not shown to be better than a guess: there is no accuracy to lose."
            )


class Untrained(Evidence):
    """Evidence of the untrained twin: what its heads do, and no accuracy."""

    def __init__(self, material: Material) -> None:
        self.material, self.layout = material, material.layout

    def columns(self, name: str) -> Columns:
        """Columns of a measure.

        UserError for one that masks heads, and for one that refuses the twin.
        """
        if isinstance(measure := self.material.measures[name], Measure) and masks_of(measure):
            raise UserError(NOTHING_LEARNED)
        if (columns := self.material.control(name)) is None:
            raise UserError(f"{name} refuses the untrained network.")
        return columns

    def control(self, name: str) -> Columns:
        raise UserError("it compares a network with an untrained one.")

    def _refused(self, *arguments: Any, **options: Any) -> NoReturn:
        raise UserError(NOTHING_LEARNED)

    second = path = right = chosen = of_images = run = _refused


def _of_fewer(material: Material, split: str, images: int) -> Material:
    """The same with at most so many images of a split, equally many of every class."""
    if images >= material.data.sizes[split]:
        return material
    fewer = material.data.limited(**{split: images})
    return dataclasses.replace(material, data=fewer, measurements=Measurements(), facts={})


def _refuse_features(material: Material) -> None:
    if gives_features(material.model):
        raise UserError("the claim needs predicted classes, but the network gives features.")


def _areas(material: Material, maps: Kinds, images: int) -> dict[str, Tensor]:
    _refuse_features(material)
    if not maps:
        raise UserError("it needs maps, all of which were left out.")
    areas_nK4 = areas_of(material, maps, images, random_orders=1)
    deletion = dict(zip(maps, areas_nK4[..., 0].T.contiguous(), strict=True))
    return {**deletion, "random": areas_nK4[:, 0, 2].contiguous()}


def _heat(material: Material, maps: Kinds, images: int) -> dict[str, Tensor]:
    _refuse_features(material)
    if "rollout" not in maps:
        raise UserError("it needs maps by rollout, which were left out.")
    heats = heats_of(material, maps["rollout"], material.data.sizes["test"])
    return dict(zip(("heat", "right"), heats.T.contiguous(), strict=True))


def _answers(material: Material, maps: Kinds, images: int) -> dict[str, Tensor]:
    ways = [ways for _, _, ways in best_of_each(material, images)]
    if not ways:
        raise UserError("the images have no relation between patches.")
    names = {"best_head": "best head", "best_offset": "best fixed offset"}
    return {
        name: torch.stack([of[way][1] for of in ways]).nanmean(0) for name, way in names.items()
    }


def place_errors(material: Material, maps: Kinds, images: int) -> dict[str, Tensor]:
    """(n,) by PLACES: mean error of the place read from tokens of high norm, and from the others, of each test image.

    1 is the error of guessing the middle; NaN without tokens of high norm. Row and column are
    fitted by least squares on validation images (Darcet et al., 2024, arXiv 2309.16588, Figure 5,
    fit a classifier over places). UserError for a network without such tokens. images: at most, of
    each split.

    Shapes: b images, T patch tokens of the last block, C channels.
    """
    site = material.layout.sites[-1]
    rows, columns = (torch.arange(length, dtype=torch.float64) for length in site.token_grid)
    place_T2 = torch.cartesian_prod(rows - rows.mean(), columns - columns.mean())
    guessing = float(place_T2.norm(dim=1).mean())

    def tokens(split: str) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, heads in recorded(material.model, material.walk(images, split)(), {"stream"}):
            stream = heads.need("stream", "places")[site.block].before[batch.valid]
            patches_bTC = stream[:, site.prefix_tokens :].cpu().double()
            yield (
                torch.cat([patches_bTC, torch.ones_like(patches_bTC[..., :1])], 2),
                high_norm(patches_bTC),
            )

    def errors(x_bTC: Tensor, high_bT: Tensor) -> Tensor:
        error_bT = (x_bTC @ weights_C2 - place_T2).norm(dim=2) / guessing
        return torch.stack([(error_bT * kind).sum(1) / kind.sum(1) for kind in (high_bT, ~high_bT)])

    flat = (x_bTC.flatten(0, 1) for x_bTC, _ in tokens("val"))
    products = sum(
        x.T @ torch.cat([x, place_T2.repeat(len(x) // len(place_T2), 1)], 1) for x in flat
    )
    normal = torch.stack(ranks.gather(torch.as_tensor(products))).sum(0)
    ridge = 1e-6 * normal[:, :-2].diagonal().mean() * torch.eye(len(normal), dtype=torch.float64)
    weights_C2 = torch.linalg.solve(normal[:, :-2] + ridge, normal[:, -2:])
    on_rank = torch.cat([errors(*batch) for batch in tokens("test")], 1)
    high, other = (torch.cat(parts) for parts in zip(*ranks.gather(on_rank.unbind(0)), strict=True))
    if high.isnan().all():
        raise UserError("no image has tokens of high norm in the last block.")
    return dict(zip(PLACES, (high, other), strict=True))


def at_share(path: Tensor, share: float) -> Tensor:
    """(..., S + 1, A) masks of paths -> (..., A) the last one that closes at most this share of the heads."""
    closed = path.sum(-1)
    within = closed <= share * path.shape[-1] + 1e-9
    step = torch.where(within, closed, -1).argmax(-1)
    return path.gather(-2, step[..., None, None].expand(*step.shape, 1, path.shape[-1])).squeeze(-2)


def gained(evidence: Evidence, better: Tensor, worse: Tensor) -> Estimate:
    """Mean accuracy under (R, M, A) masks ``better`` minus that under (Q, K, A) ``worse``, on the same test images.

    R and Q: draws that chose the masks, which are paired; or 1 for masks that nobody chose. M and K
    masks of a draw are averaged.
    """
    rows = min((len(masks) for masks in (better, worse) if len(masks) > 1), default=1)
    under, other = (
        evidence.right(masks.flatten(0, 1)).unflatten(0, masks.shape[:2])
        for masks in (better[:rows], worse[:rows])
    )
    if rows == under.shape[1] == other.shape[1] == 1:
        return of_accuracy(under[0, 0], other[0, 0])
    return over_draws(under.double().mean(1) - other.double().mean(1))


def loss(evidence: Evidence, masks: Tensor) -> Estimate:
    """Minus the loss of accuracy under (R, A) masks of R draws, on test images: the effect of shape "at most"."""
    return gained(evidence, masks[:, None], torch.zeros_like(masks)[:1, None])


def without_thirds(evidence: Evidence) -> Tensor:
    """(3, A) masks that close all heads of the early, the middle, the late blocks.

    UserError for fewer than three.
    """
    third = third_of(evidence.layout)
    return torch.stack([third == number for number in range(3)])
