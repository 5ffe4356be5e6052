"""Do hotter maps go with right answers? The heat of an image's rollout against whether it is classified rightly.

Heat: the share of a map's mass on its hottest tenth of patches. AUC: the chance that a rightly classified image is
hotter than a wrongly classified one, 0.5 for no relation, with Hanley & McNeil's 95 % interval (1982, Radiology
143:29) and the Mann-Whitney p.

A walk of its own: a kind of map records its images itself.

Shapes: B images, h x w patches.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.maps.base import MapKind
from mhprobe.maps.rollout import Rollout
from mhprobe.measures.parts.losses import outcomes
from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import maps as figure
from mhprobe.report.result import Result
from mhprobe.stats.significance import Z95


def heat(material: Material, images: int = 1000, kind: MapKind | None = None) -> dict[str, Result]:
    """Heat of test images, compared by whether they are classified rightly.

    images: at most so many. kind: of the maps; None for rollout. UserError where all are right, or all wrong: there is
    nothing to compare. Table: images, right, wrong, median_right, median_wrong, auc, low, high, p.
    """
    from scipy.stats import mannwhitneyu

    make = kind or Rollout()
    model, data = material.model, material.data
    backbone: torch.nn.Module = model.backbone  # type: ignore[assignment]
    found: list[tuple[float, bool]] = []
    for batch in data.batches("test", model.device, images=images):
        (maps,) = make(backbone, batch.images, batch.labels).values()
        with torch.inference_mode():
            right, _ = outcomes(backbone(batch.images), batch.labels)
        found += zip(hottest(maps)[batch.valid].tolist(), right[batch.valid].tolist(), strict=True)
    found = [pair for part in ranks.gather(found) for pair in part]
    hot, cold = ([value for value, right in found if right is wanted] for wanted in (True, False))
    if not hot or not cold:
        raise UserError(f"heat: of {len(found)} images {len(hot)} are right, expected some right and some wrong.")
    test = mannwhitneyu(hot, cold)
    auc = float(test.statistic) / (len(hot) * len(cold))
    low, high = auc_interval(auc, len(hot), len(cold))
    numbers = {
        **{"images": len(found), "right": len(hot), "wrong": len(cold)},
        **{"median_right": _median(hot), "median_wrong": _median(cold)},
        **{"auc": auc, "low": low, "high": high, "p": float(test.pvalue)},
    }
    title = f"a right one is hotter in {auc:.2f} of pairs\n({low:.2f} to {high:.2f}), p = {test.pvalue:.2g}"
    drawn = figure.heat(hot, cold, title, "share of the map's mass on its hottest tenth")
    return {"rightness": Result(tables.from_rows([numbers]), drawn, of=material.of(images))}


def hottest(maps: Tensor, share: float = 0.1) -> Tensor:
    """(B, h, w) maps that are nowhere negative -> (B,) the share of their mass on the hottest patches; 1 at most."""
    flat = maps.flatten(1).double()
    top = flat.topk(max(1, round(share * flat.shape[1])), dim=1).values
    return top.sum(1) / flat.sum(1).clamp(min=1e-12)


def auc_interval(auc: float, first: int, second: int) -> tuple[float, float]:
    """95 % interval of the chance that one of ``first`` values is larger than one of ``second``."""
    both = auc * (1 - auc)
    more = (first - 1) * (auc / (2 - auc) - auc**2) + (second - 1) * (2 * auc**2 / (1 + auc) - auc**2)
    error = math.sqrt(max(0.0, (both + more) / (first * second)))
    return max(0.0, auc - Z95 * error), min(1.0, auc + Z95 * error)


def _median(values: Sequence[float]) -> float:
    return torch.tensor(values, dtype=torch.float64).median().item()
