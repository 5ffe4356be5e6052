"""Maps of single images laid over them, as python -m mhprobe.maps draws them, and how they are judged over many."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mhprobe import ranks
from mhprobe.data.draws import evenly
from mhprobe.maps.base import MapKind
from mhprobe.maps.faithfulness import Faithfulness
from mhprobe.maps.faithfulness import faithfulness as judge
from mhprobe.maps.gallery import gallery
from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.result import Result
from mhprobe.stats.significance import Z95


def overlays(
    material: Material, kinds: Mapping[str, MapKind], images: Sequence[int] | int, **options: Any
) -> dict[str, Result]:
    """Maps of single images.

    images: positions in the test split, or a number, evenly from all of it. options: of ``maps.faithfulness``.
    """
    backbone: Any = material.model.backbone
    chosen = evenly(images, material.data.sizes["test"]) if isinstance(images, int) else images
    results, _ = gallery(backbone, material.data, chosen, kinds, seed=material.seed, **options)
    return results


def judged(material: Material, kinds: Mapping[str, MapKind], images: int = 200, **options: Any) -> dict[str, Result]:
    """Each kind's areas under deletion and insertion over many images, against random orders of the same images.

    images: so many, evenly from the test split. options: of ``maps.faithfulness``. Of a kind with a map per head, the
    mean of the maps is judged. Table: map, area, score (mean), random, better (how much better than random, paired
    image by image; positive is better for both areas), low, high (its 95 % interval over images), images.
    """
    backbone: Any = material.model.backbone
    chosen = torch.tensor(evenly(images, material.data.sizes["test"]))
    found: list[list[list[float]]] = []  # per image, per kind: four areas
    for batch in material.data.batches("test", material.model.device, images=chosen):
        made = [kind(backbone, batch.images, batch.labels) for kind in kinds.values()]
        maps = [torch.stack(list(each.values())).mean(0) for each in made]
        areas = judge(backbone, batch.images, maps, seed=material.seed, **options)
        found += torch.stack([torch.stack(each, -1) for each in areas], 1)[batch.valid].tolist()
    every = torch.tensor([one for part in ranks.gather(found) for one in part], dtype=torch.float64)
    rows: list[dict[str, Any]] = []
    for kind, name in enumerate(kinds):
        areas_of = Faithfulness(*every[:, kind].T)
        rows.append(_row(name, "deletion", areas_of.deletion, areas_of.random_deletion, better=-1))
        rows.append(_row(name, "insertion", areas_of.insertion, areas_of.random_insertion, better=1))
    return {"areas": Result(tables.from_rows(rows))}


def _row(name: str, area: str, score: torch.Tensor, random: torch.Tensor, better: int) -> dict[str, Any]:
    gain = better * (score - random)
    mean, half = gain.mean().item(), Z95 * gain.std().item() / len(gain) ** 0.5
    means = {"score": score.mean().item(), "random": random.mean().item(), "better": mean}
    return {"map": name, "area": area, **means, "low": mean - half, "high": mean + half, "images": len(gain)}
