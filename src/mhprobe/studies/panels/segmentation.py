"""Do maps lie on objects? Each kind of map against the masks of many images (maps/segmentation.py).

Beside them two maps that have seen no image: one that is hottest in the centre, where photographers put things, and
one of random patches.

A walk of its own: a kind of map records its images itself.

Shapes: K maps, N images, R resamples, h x w patches.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.data.draws import evenly
from mhprobe.errors import UserError
from mhprobe.maps.base import MapKind
from mhprobe.maps.segmentation import SCORES, overlap, scores
from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import maps as figure
from mhprobe.report.result import Result
from mhprobe.stats.intervals import percentiles, resampled_means

CENTRE, RANDOM = "centre", "random"


def segmentation(
    material: Material, kinds: Mapping[str, MapKind], images: int = 200, number: int | None = None
) -> dict[str, Result]:
    """Each kind's scores over many images, with 95 % intervals by bootstrap over images.

    images: so many, evenly from the test split; those without the object are left out. number: of the object that
    counts, None for all objects. Of a kind with a map per head, the mean of the maps. Table: map, score, value, low,
    high, over_centre (value less that of the centre, paired), over_centre_low, over_centre_high, images. UserError
    where the data have no masks.
    """
    backbone: Any = material.model.backbone
    chosen = torch.tensor(evenly(images, material.data.sizes["test"]))
    found: list[list[list[float]]] = []  # per image, per map, the parts of Overlap
    for batch in material.data.batches("test", material.model.device, images=chosen):
        mask = _mask(batch, number)
        made = [kind(backbone, batch.images, batch.labels) for kind in kinds.values()]
        maps = [torch.stack(list(each.values())).mean(0) for each in made]
        there = batch.valid & mask.flatten(1).any(1)
        parts = [torch.stack(overlap(each[there], mask[there]), -1) for each in (*maps, *_blind(maps, batch.index))]
        found += torch.stack(parts, 1).tolist()
    every = torch.tensor([one for part in ranks.gather(found) for one in part], dtype=torch.float64)
    if not len(every):
        raise UserError(f"segmentation: none of {len(chosen)} images shows object {number}, expected one at least.")
    rows = _rows([*kinds, CENTRE, RANDOM], every, material.seed)
    return {"scores": Result(tables.from_rows(rows), figure.segmentation(rows), of=material.of(len(every)))}


def _mask(batch: Batch, number: int | None) -> Tensor:
    if batch.objects is None:
        raise UserError(
            "segmentation: the data set has no object masks, expected them beside the images. Use data=scenes or "
            "data=pets, or leave the figure out."
        )
    return batch.objects > 0 if number is None else batch.objects == number


def _blind(maps: list[Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
    """The centre and random patches, (B, h, w) each, as fine as the finest of ``maps``."""
    rows, columns = max((each.shape[-2:] for each in maps), key=lambda size: size[0] * size[1])
    down, right = (torch.arange(n, dtype=torch.float64) - (n - 1) / 2 for n in (rows, columns))
    centre = -torch.hypot(down[:, None] / rows, right / columns).expand(len(index), -1, -1)
    draws = [torch.rand(rows, columns, generator=torch.Generator().manual_seed(i)) for i in index.tolist()]
    return centre.to(index.device), torch.stack(draws).to(index.device)  # alike in every batch and rank


def _rows(names: list[str], every_NKx: Tensor, seed: int) -> list[dict[str, Any]]:
    images, maps, parts = every_NKx.shape
    value_KS = scores(every_NKx.mean(0))
    drawn = resampled_means(every_NKx.flatten(1).T, seed=seed).unflatten(1, (maps, parts))
    drawn_RKS = scores(drawn)
    centre = names.index(CENTRE)
    ends = [*percentiles(drawn_RKS), *percentiles(drawn_RKS - drawn_RKS[:, centre, None])]
    over_KS = value_KS - value_KS[centre]
    columns = ("value", "low", "high", "over_centre", "over_centre_low", "over_centre_high")
    values = (value_KS, ends[0], ends[1], over_KS, ends[2], ends[3])
    return [
        {
            **{"map": name, "score": score},
            **{column: of[k, s].item() for column, of in zip(columns, values, strict=True)},
            "images": images,
        }
        for k, name in enumerate(names)
        for s, score in enumerate(SCORES)
    ]
