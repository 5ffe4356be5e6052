"""Changes of each head's measures in a training: before, after, and their paired difference.

Images are dealt into folds, and each measure is taken of every fold in both networks. A change is
the mean over images of (after - before), with Student's interval over folds; p is of no change,
with Holm's correction over all heads and measures. Of fewer than ``LEAST`` images there is no p.

Shapes: A heads of network A, F folds, N images.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from mhprobe.api import measure
from mhprobe.differences.compare import RATE, Batches
from mhprobe.differences.errors import Pairs
from mhprobe.differences.sides import Torch
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.progress import progress
from mhprobe.io.written import counted, rounded
from mhprobe.measures import AttentionDistance, Entropy, GateImportance, Sinks, WriteNorm
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.pages.diffing.worth import at_once, images_of, of_both
from mhprobe.stats.intervals import p_of_interval
from mhprobe.stats.significance import holm, t_interval

FOLDS = 10
# of fewer images a skewed head that did not change is named too often: in resamples of two trainings of
# one ViT in 4.9 % of draws of 64 images, in 6.4 % of 30, in 9.7 % of 12
LEAST = 64
KINDS: Mapping[str, tuple[Callable[[HeadLayout], Measure], str]] = {
    "importance": (GateImportance, "importance"),
    "write": (WriteNorm, "relative length of what is written"),
    "distance": (AttentionDistance, "distance of attention in pixels"),
    "entropy": (Entropy, "entropy of attention in nats"),
    "sinks": (Sinks, "share of attention on the favourite token"),
}
"""By the beginning of their columns: measures, and what they are called in a sentence."""


def changes(
    a: Torch,
    b: Torch,
    pairs: Pairs,
    batches: Batches,
    labels: Tensor | None,
    images: int,
    show: bool,
) -> dict[str, Tensor]:
    """Return for each measure (A,) ``_before``, ``_after``, ``_change``, ``_low``, ``_high`` and ``_p``.

    images: N; of fewer than ``LEAST`` there is no ``_p``.
    labels: (N,) of the photographs, for importance; without them it is of the class that each
    network gives, or of the features' length. NaN for heads that B has not. A measure that a
    network's heads do not allow is left out.
    """
    before, after = (_of_folds(side, at, batches, labels, show) for at, side in enumerate((a, b)))
    found: dict[str, Tensor] = {}
    tests: dict[str, Tensor] = {}
    for name in before.keys() & after.keys():
        folds = [
            of_both(name, both, a, b, pairs) for both in zip(before[name], after[name], strict=True)
        ]
        ends = {
            end: torch.stack([of[f"{name}_{end}"] for of in folds]) for end in ("before", "after")
        }
        shares = torch.bincount(torch.arange(images) % len(folds)).double() / images
        found |= {f"{name}_{end}": shares @ values.double() for end, values in ends.items()}
        middle, _, high = t_interval(ends["after"] - ends["before"])
        change, half = found[f"{name}_after"] - found[f"{name}_before"], high - middle
        tests[name] = p_of_interval(change, half, len(folds) - 1)
        found |= {f"{name}_change": change, f"{name}_low": change - half}
        found |= {f"{name}_high": change + half}
    if tests and images >= LEAST:
        corrected = holm(torch.cat(list(tests.values()))).chunk(len(tests))
        found |= {f"{name}_p": p for name, p in zip(tests, corrected, strict=True)}
    order = [name for name in KINDS if name in tests]
    return {key: found[key] for name in order for key in found if key.startswith(f"{name}_")}


def _of_folds(
    side: Torch, at: int, batches: Batches, labels: Tensor | None, show: bool
) -> dict[str, list[Tensor]]:
    """Return by measure its values (A_of_side,) of every fold. at: 0 for A's images, 1 for B's."""
    images = images_of(side, at, batches)
    folds = min(FOLDS, len(images))
    built = {name: kind(side.layout.of("head")) for name, (kind, _) in KINDS.items()}
    values: dict[str, list[Tensor]] = {name: [] for name in KINDS}
    with (
        progress(f"measuring {side.name}", folds, "folds", show) as done,
        warnings.catch_warnings(action="ignore", category=MeasureWarning),
    ):
        for fold in range(folds):
            of_fold = None if labels is None else labels[fold::folds]
            try:
                found = measure(
                    side.model, at_once(images[fold::folds], of_fold), list(built.values())
                )
            except UserError:  # none fits, as of a network that hides both slopes and attention
                return {}
            for name, one in built.items():
                if one.name in found:
                    values[name].append(found[one.name].detach())
            done(1)
    return {name: of for name, of in values.items() if len(of) == folds}


def likeness_and_changes(columns: Mapping[str, Tensor], images: int) -> Iterator[str]:
    """Yield a sentence on how alike outputs still are, and one on what changed in the measures.

    images: number of photographs.
    """
    if "svcca" in columns:
        alike, chance = columns["svcca"], columns["svcca_null"]
        known = ~alike.isnan()
        yield (
            f"The outputs of a head before and after are alike (SVCCA) by "
            f"{rounded(float(alike[known].min()))} to {rounded(float(alike[known].max()))}; on two "
            f"different images they are by {rounded(float(chance[known].mean()))}, which is chance."
        )
    if images < LEAST and any(key.endswith("_change") for key in columns):
        yield (
            f"In how many heads measures change is told from {LEAST} photographs on, here are "
            f"{images}; the table has each change with its interval."
        )
    parts = [_moves(name, called, columns) for name, (_, called) in KINDS.items()]
    if said := [part for part in parts if part]:
        yield (
            f"Of what is measured of each head {'; '.join(said)} (p below {rounded(RATE)} after "
            f"Holm's correction over heads and measures)."
        )


def _moves(name: str, called: str, columns: Mapping[str, Tensor]) -> str:
    if f"{name}_p" not in columns:
        return ""
    sure = columns[f"{name}_p"] < RATE
    change = columns[f"{name}_change"]
    up, down = int((sure & (change > 0)).sum()), int((sure & (change < 0)).sum())
    if not up + down:
        return f"the {called} changes in no head"
    return f"the {called} rises in {counted(up, 'head')} and falls in {down}"
