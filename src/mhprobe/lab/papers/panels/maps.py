"""Maps of images: laid over single images, and judged over many by deletion, by objects and by right answers.

Shapes: B images of a batch, n images, K maps, P parts of a score, h x w patches, L blocks of one
stage, C channels.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.questions.gallery import gallery
from mhprobe.framework.questions.material import Material
from mhprobe.io.progress import progress
from mhprobe.maps.base import MapKind
from mhprobe.maps.faithfulness import Faithfulness, faithfulness
from mhprobe.maps.rollout import Rollout
from mhprobe.maps.segmentation import SCORES, overlap, scores
from mhprobe.measures.parts.losses import outcomes
from mhprobe.recording.record import record
from mhprobe.report.figures import maps as figure
from mhprobe.report.result import Result
from mhprobe.report.tables import Table, from_rows
from mhprobe.stats.agreement import auroc_error
from mhprobe.stats.intervals import percentiles, resampled_means
from mhprobe.stats.significance import Z95, t_interval

Kinds = Mapping[str, MapKind]


def overlays(
    material: Material, kinds: Kinds, images: Sequence[int] | int, **options: Any
) -> dict[str, Result]:
    """Draw maps over images: positions in the test split, or a number of them.

    options: of ``maps.faithfulness``.
    """
    chosen = material.data.chosen("test", images)
    return gallery(
        material.backbone, material.data, chosen, kinds, seed=material.seed, **options
    ).results


def judged(
    material: Material, kinds: Kinds, images: int = 200, **options: Any
) -> dict[str, Result]:
    """Compare each kind's areas under deletion and insertion with those of random orders of the same images.

    images: of the test split, at most. options: of ``maps.faithfulness``. Table: map, area, score
    (mean), random, better (gain over random, paired by image; larger is better for both areas),
    low, high (its 95 % interval over images), images.
    """
    areas_nK4 = areas_of(material, kinds, images, seed=material.seed, **options)
    rows: list[dict[str, Any]] = []
    for name, areas in zip(kinds, areas_nK4.unbind(1), strict=True):
        marks = Faithfulness(*areas.T)._asdict()
        for area, sign in (("deletion", -1), ("insertion", 1)):
            score, random = marks[area], marks[f"random_{area}"]
            gain = dict(
                zip(
                    ("better", "low", "high"),
                    map(float, t_interval(sign * (score - random))),
                    strict=True,
                )
            )
            means = {"score": score.mean().item(), "random": random.mean().item()}
            rows.append({"map": name, "area": area, **means, **gain, "images": len(score)})
    return {
        "areas": Result(from_rows(rows)).saying(
            "gain over random orders", "the map beats chance by more"
        )
    }


def segmentation(
    material: Material, kinds: Kinds, images: int = 200, number: int | None = None
) -> dict[str, Result]:
    """Score how well maps lie on objects (maps/segmentation.py), beside a map of the centre and a random one.

    images: of the test split, at most; those without the object are left out. number: of the
    object, None for all.
    Table: map, score, value, low, high (95 %, bootstrap over images), over_centre (value less that
    of the centre, paired), over_centre_low, over_centre_high, images. UserError where the data have
    no masks.
    """

    def of_batch(batch: Batch) -> Tensor:
        if batch.objects is None:
            raise UserError(
                "segmentation: the data set has no object masks, expected them beside the images. "
                "Use data=scenes or "
                "data=pets, or leave the figure out."
            )
        mask = batch.objects > 0 if number is None else batch.objects == number
        there = batch.valid & mask.flatten(1).any(1)
        maps = maps_of(kinds, material, batch)
        grids = (*maps, *_blind(maps, batch.index))
        return torch.stack([overlap(grid[there], mask[there]) for grid in grids], 1)

    every_nKP = of_images(material, images, of_batch)
    if not len(every_nKP):
        shown = material.of(images).images
        raise UserError(
            f"segmentation: none of {shown} images shows object {number}, expected one at least."
        )
    value_KS = scores(every_nKP.mean(0))
    drawn_RKS = scores(
        resampled_means(every_nKP.flatten(1).T, seed=material.seed).unflatten(
            1, every_nKP.shape[1:]
        )
    )
    centre = len(kinds)
    over_KS, over_RKS = (score - score[..., centre, None, :] for score in (value_KS, drawn_RKS))
    names = ("value", "low", "high", "over_centre", "over_centre_low", "over_centre_high")
    columns = dict(
        zip(
            names, (value_KS, *percentiles(drawn_RKS), over_KS, *percentiles(over_RKS)), strict=True
        )
    )
    rows = [
        {
            "map": name,
            "score": score,
            **{key: of[k, s].item() for key, of in columns.items()},
            "images": len(every_nKP),
        }
        for k, name in enumerate((*kinds, *figure.BLIND))
        for s, score in enumerate(SCORES)
    ]
    result = Result(from_rows(rows), figure.segmentation(rows), of=material.of(len(every_nKP)))
    return {
        "scores": result.saying(
            "score of a map against the object's mask", "the map lies on the object more"
        )
    }


def _blind(maps: Sequence[Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
    """Return maps of the centre and of random patches, (B, h, w) each, as fine as the finest of ``maps``."""
    rows, columns = max((grid.shape[-2:] for grid in maps), key=lambda size: size[0] * size[1])
    down, right = (torch.arange(n, dtype=torch.float64) - (n - 1) / 2 for n in (rows, columns))
    centre = -torch.hypot(down[:, None] / rows, right / columns).expand(len(index), -1, -1)
    draws = [
        torch.rand(rows, columns, generator=torch.Generator().manual_seed(i))
        for i in index.tolist()
    ]
    return centre.to(index.device), torch.stack(draws).to(
        index.device
    )  # alike in every batch and rank


def heat(material: Material, images: int = 1000, kind: MapKind | None = None) -> dict[str, Result]:
    """Compare the heat of maps between rightly and wrongly classified images.

    AUC: the chance that a rightly classified image is hotter than a wrongly classified one, 0.5 for
    no relation, with Hanley & McNeil's 95 % interval and the Mann-Whitney p.

    images: test images, at most. kind: of the maps; None for rollout. Table: images, right, wrong,
    median_right, median_wrong, auc, low, high, p. UserError where all are right, or all wrong.
    """
    heats, right = heats_of(material, kind or Rollout(), images).unbind(1)
    hot = heats[right > 0].tolist()
    cold = heats[right == 0].tolist()
    if not hot or not cold:
        raise UserError(
            f"heat: of {len(heats)} images {len(hot)} are right, expected some right and some "
            "wrong."
        )
    test = mannwhitneyu(hot, cold)
    auc = float(test.statistic) / (len(hot) * len(cold))
    low, high = auc_interval(auc, len(hot), len(cold))
    numbers: dict[str, float] = {"images": len(heats), "right": len(hot), "wrong": len(cold)}
    numbers |= {"median_right": median(hot), "median_wrong": median(cold)}
    numbers |= {"auc": auc, "low": low, "high": high, "p": float(test.pvalue)}
    title = f"a right one is hotter in {auc:.2f} of pairs\n({low:.2f} to {high:.2f}), p = {test.pvalue:.2g}"
    panel = figure.heat(hot, cold, title, "share of the map's mass on its hottest tenth")
    meaning = (
        "chance that a right image is hotter than a wrong one (AUC)",
        "right images are hotter",
    )
    return {
        "rightness": Result(from_rows([numbers]), panel, of=material.of(images)).saying(*meaning)
    }


def auc_interval(auc: float, first: int, second: int) -> tuple[float, float]:
    """95 % interval of an AUC of ``first`` against ``second`` values (Hanley & McNeil), never of width 0."""
    half = Z95 * auroc_error(auc, first, second, least=0.25)
    return max(0.0, auc - half), min(1.0, auc + half)


def hottest(maps: Tensor, share: float = 0.1) -> Tensor:
    """(B,) share of the mass of maps (B, h, w), nowhere negative, on their hottest patches; 1 at most."""
    flat = maps.flatten(1).double()
    return flat.topk(max(1, round(share * flat.shape[1])), dim=1).values.sum(1) / flat.sum(1).clamp(
        min=1e-12
    )


def surfaces(material: Material, image: int = 0) -> dict[str, Result]:
    """Draw one test image's rollout over space, and its residual stream over channels and blocks, as surfaces.

    Table: block, channel, size (mean over patches of the absolute value).
    """
    layout, data = material.layout, material.data
    chosen = torch.tensor([min(image, data.sizes["test"] - 1)])  # the same for every rank
    (batch,) = material.walk(chosen)()
    (rollout,) = Rollout()(material.backbone, batch.images).values()
    streams = record(material.model, batch.images, needs={"stream"}).need("stream", "surfaces")
    last = [
        number
        for number, block in enumerate(layout.blocks)
        if block.stage == layout.blocks[-1].stage
    ]
    prefix = layout.sites[-1].prefix_tokens
    size_LC = torch.stack(
        [streams[number].after[0, prefix:].abs().double().mean(0) for number in last]
    ).cpu()
    blocks = zip(last, size_LC.tolist(), strict=True)
    rows = [[block, channel, size] for block, sizes in blocks for channel, size in enumerate(sizes)]
    table = Table(["block", "channel", "size"], rows)
    panel = figure.surfaces(rollout[0].cpu(), size_LC, last)
    return {
        "surfaces": Result(table, panel, of=material.of(1)).saying(
            "mean size", "the channel is more active"
        )
    }


def areas_of(material: Material, kinds: Kinds, images: int, **options: Any) -> Tensor:
    """(n, K, 4) areas of ``Faithfulness`` of each kind's maps of test images.

    options: of ``faithfulness``.
    """

    def of_batch(batch: Batch) -> Tensor:
        maps = maps_of(kinds, material, batch)
        areas = faithfulness(material.backbone, batch.images, maps, index=batch.index, **options)
        return torch.stack([torch.stack(of_kind, -1) for of_kind in areas], 1)[batch.valid]

    return of_images(material, images, of_batch)


def heats_of(material: Material, kind: MapKind, images: int) -> Tensor:
    """(n, 2) ``hottest`` share of each test image's map, and 1 where the image is classified rightly."""

    def of_batch(batch: Batch) -> Tensor:
        (maps,) = maps_of({"": kind}, material, batch)
        with torch.inference_mode():
            right, _ = outcomes(material.backbone(batch.images), batch.labels)
        return torch.stack([hottest(maps), right.double()], 1)[batch.valid]

    return of_images(material, images, of_batch)


def maps_of(kinds: Kinds, material: Material, batch: Batch) -> list[Tensor]:
    """(B, h, w) maps of each kind; the mean over heads for a kind with a map per head."""
    maps = (kind(material.backbone, batch.images, batch.labels) for kind in kinds.values())
    return [torch.stack(list(of_kind.values())).mean(0) for of_kind in maps]


def of_images(material: Material, images: int, of_batch: Callable[[Batch], Tensor]) -> Tensor:
    """(n, ...) rows of ``of_batch`` for so many test images, evenly from all. A collective."""
    rows: list[Any] = []
    with progress("maps of test images", material.of(images).images, show=material.first) as done:
        for batch in material.walk(images)():
            rows += of_batch(batch).tolist()
            done(int(batch.valid.sum()))
    return torch.tensor([row for part in ranks.gather(rows) for row in part], dtype=torch.float64)
