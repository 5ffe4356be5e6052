"""How much of the clean result each head alone restores on a corrupted image: activation patching and its estimates.

Every image (clean) has a corrupted twin. In the run on the twin one head's output is replaced by that of the clean run,
and the metric moves some of the way back (Heimersheim & Nanda, 2024, arXiv 2404.15255): 0 it stays where the corrupted
run is, 1 it is where the clean run is. How twins are made: recording/twins.py; how heads are patched and what the
estimates are: recording/patching.py.

The effect is one ratio over all pairs, mean effect over mean (clean - corrupted). The mean of a ratio per pair would be
ruled by pairs that hardly differ.

Shapes: B images, A heads of all sites, E estimates.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import Donors, HeadBatch, HeadLayout, Need, Patching
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.hashing import image_numbers
from mhprobe.measures.pool import Pool
from mhprobe.stats.agreement import spearman, spearman_interval
from mhprobe.stats.significance import Z95, holm, standard_error, two_sided


class NothingToRestore(MeasureWarning):
    """The metric is not lower on corrupted images than on clean ones, as far as can be told."""


class ActivationPatching(Measure):
    """Share of the way from the corrupted run to the clean one that a head's output alone brings the metric.

    corrupt, direction, metric, noise, seed: as for ``Patching``. donors: how many images of the selection split stand
        by to take another's place (corrupt="class"); without such a split those of the same batch do.
    estimates: of "exact", "atp", "graddrop" those to find. The first, one of the first two, is what value is; what
        slopes say beside exact effects shows where they go wrong.

    Columns, (A,) where nothing else is said:
        value: the share, larger: the head matters more; about 0 alone it does nothing, below 0 it leads away; low,
        high: 95 % normal interval over pairs; p_holm: two-sided that the mean effect is 0, Holm over heads;
        effect: the mean effect in units of the metric; size: mean of |effect| over pairs, over the same way;
        atp, atp_size, graddrop: their estimates, the last a size as ``size`` is; difference: atp - value;
        places: how many places further down atp ranks the head than value does;
        spearman_atp, spearman_size, spearman_graddrop: () rank correlation over heads of atp with value, of atp_size
        and of graddrop with size, each with _low and _high (95 %);
        clean, corrupted: () mean metric of either run; pairs: () how many pairs; images: ().

    NothingToRestore warns where the metric does not fall. UserError without a single pair.
    """

    fooled_by = "by definition: a head that both images need alike: it is the same in both, and restores nothing"
    kind = "per_head"
    larger = "the head alone restores more of the clean result; below 0 it leads away from it"
    also: ClassVar[tuple[str, ...]] = ("patching",)
    default: ClassVar[tuple[str, ...]] = ("exact", "atp", "graddrop")

    effects: Tensor  # (E, 4, A) sums over pairs of x, |x|, x^2 and x (clean - corrupted)
    ends: Tensor  # (3,) sums over pairs of the clean metric, the corrupted one, and the square of their difference
    pairs: Tensor  # ()

    def __init__(
        self,
        layout: HeadLayout,
        corrupt: str = "class",
        direction: str = "denoising",
        metric: str = "logit_difference",
        noise: float = 1.0,
        donors: int = 64,
        seed: int = 0,
        estimates: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        if donors < 2:
            raise UserError(f"{self.name}: donors is at least 2, got {donors}.")
        self.estimates = tuple(self.default if estimates is None else estimates)
        if self.estimates[:1] not in (("exact",), ("atp",)):
            raise UserError(f"{self.name}: the first of estimates is exact or atp, got {list(self.estimates)}.")
        self.options: dict[str, Any] = dict(
            corrupt=corrupt, direction=direction, metric=metric, noise=noise, seed=seed, estimates=self.estimates
        )
        self.pool = Pool(donors if corrupt == "class" else 0)
        if corrupt == "class":
            self.select_needs = frozenset()
        self.needs: frozenset[Need] = frozenset({Patching(**self.options)})
        self.label = "share of the metric that the head alone restores"
        heads = layout.num_heads
        self.add_state("effects", torch.zeros(len(self.estimates), 4, heads, dtype=torch.float64))
        self.add_state("ends", torch.zeros(3, dtype=torch.float64))
        self.add_state("pairs", torch.zeros((), dtype=torch.long))

    def select(self, batch: HeadBatch) -> None:
        if batch.valid.any() and batch.images is not None:
            images, labels = batch.images[batch.valid], batch.need("labels", self.name)[batch.valid]
            self.pool.add(image_numbers(images), [images, labels])

    def end_select(self) -> None:
        self.pool.gather()
        count = len(self.pool)
        if not count:
            return
        images, labels = (part[:count].clone() for part in self.pool.parts)
        donors = Donors(images, labels, self.pool.number[:count].clone())
        self.needs = frozenset({Patching(**self.options, donors=donors)})

    def reset(self) -> None:
        super().reset()
        self.pool = Pool(len(self.pool.number))
        self.needs = frozenset({Patching(**self.options)})

    def update(self, batch: HeadBatch) -> None:
        (need,) = self.needs
        found = batch.patched[need]  # type: ignore[index]
        counted = batch.valid & found.paired.to(batch.valid.device)
        self.images += batch.valid.sum()
        if not counted.any():
            return
        clean, corrupt = found.clean[counted].double(), found.corrupt[counted].double()
        way_B = clean - corrupt
        for number, name in enumerate(self.estimates):
            x_BA = found.effect[name][counted].double()
            self.effects[number] += torch.stack([x_BA.sum(0), x_BA.abs().sum(0), x_BA.square().sum(0), way_B @ x_BA])
        self.ends += torch.stack([clean.sum(), corrupt.sum(), way_B.square().sum()])
        self.pairs += counted.sum()

    def finish(self) -> dict[str, Tensor]:
        if not int(self.pairs):
            raise UserError(
                f"{self.name}: none of {int(self.images)} images has a corrupted twin (corrupt="
                f"{self.options['corrupt']}), expected images of several classes, or of objects on a ground."
            )
        clean, corrupted, _ = self.ends / self.pairs
        self._warn(clean - corrupted)
        main = self.estimates[0]
        value, error = self._share(main), self._error(main)
        x, _, square, _ = self.effects[0]
        mean_error = standard_error(x, square, self.pairs)
        return {
            "value": value,
            "low": value - Z95 * error,
            "high": value + Z95 * error,
            "p_holm": holm(two_sided(x / self.pairs, mean_error)),
            "effect": x / self.pairs,
            "size": self._size(main),
            **self._estimated(value),
            "clean": clean,
            "corrupted": corrupted,
            "pairs": self.pairs.clone(),
            "images": self.images.clone(),
        }

    def _estimated(self, value: Tensor) -> dict[str, Tensor]:
        """Columns that compare the slope-based estimates (AtP, GradDrop) with the exact effect."""
        found: dict[str, Tensor] = {}
        size = self._size(self.estimates[0])
        if "atp" in self.estimates[1:]:
            atp, atp_size = self._share("atp"), self._size("atp")
            found |= {
                "atp": atp,
                "atp_size": atp_size,
                "difference": atp - value,
                "places": _place(atp) - _place(value),
            }
            found |= _agreement("atp", atp, value) | _agreement("size", atp_size, size)
        if "graddrop" in self.estimates:
            found |= {"graddrop": self._size("graddrop")} | _agreement("graddrop", self._size("graddrop"), size)
        return found

    def _sums(self, estimate: str) -> Tensor:
        return self.effects[self.estimates.index(estimate)]

    def _share(self, estimate: str) -> Tensor:
        return self._sums(estimate)[0] / (self.ends[0] - self.ends[1])

    def _size(self, estimate: str) -> Tensor:
        return self._sums(estimate)[1] / (self.ends[0] - self.ends[1]).abs()

    def _error(self, estimate: str) -> Tensor:
        """(A,) standard error of a ratio of two means, by the delta method; NaN with a single pair."""
        x, _, square, cross = self._sums(estimate)
        way, ratio = self.ends[0] - self.ends[1], self._share(estimate)
        residual = square - 2 * ratio * cross + ratio**2 * self.ends[2]
        if int(self.pairs) < 2:
            return torch.full_like(x, torch.nan)
        return (residual.clamp(min=0) * self.pairs / (self.pairs - 1)).sqrt() / way.abs()

    def _warn(self, way: Tensor) -> None:
        total = self.ends[0] - self.ends[1]
        error = standard_error(total[None], self.ends[2][None], self.pairs)
        if not way > Z95 * error:
            warnings.warn(
                f"{self.name}: the metric falls by {float(way):.3g} +- {float(Z95 * error):.2g} from clean to "
                f"corrupted images ({int(self.pairs)} pairs): there is nothing to restore, and shares of it mean "
                f"little. Corrupt more, or show more images.",
                NothingToRestore,
                stacklevel=2,
            )


def _place(x_A: Tensor) -> Tensor:
    """(A,) 0 for the largest."""
    return x_A.argsort(descending=True, stable=True).argsort()


def _agreement(name: str, estimate: Tensor, exact: Tensor) -> dict[str, Tensor]:
    rho = spearman(estimate.cpu(), exact.cpu())
    low, high = spearman_interval(rho, len(exact))
    key = f"spearman_{name}"
    return {key: exact.new_tensor(rho), f"{key}_low": exact.new_tensor(low), f"{key}_high": exact.new_tensor(high)}
