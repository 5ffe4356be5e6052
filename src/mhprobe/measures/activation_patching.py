"""Activation patching: the share of the clean result that each head alone restores on a corrupted image.

Every image (clean) has a corrupted twin. In the run on the twin one head's output is replaced by
that of the clean run (Heimersheim & Nanda, 2024, arXiv 2404.15255). Twins, patching and estimates:
recording/patching.py. The value is the mean effect over the mean of (clean - corrupted): pairs that
hardly differ would rule the mean of a ratio per pair.

Pairs that share a donor are not independent, so errors are clustered by donor (Liang & Zeger, 1986,
Biometrika 73:13). Donors of n_k pairs count as (sum n_k^2)^2 / sum n_k^4 equal ones (Carter,
Schnepel & Steigerwald, 2017, Review of Economics and Statistics 99:698). If donors are of the same
batch, a pair is in two clusters: its own image's and its donor's (Aronow, Samii & Assenova, 2015,
Political Analysis 23:564).
Shapes: E estimates, N donors, P pairs of images.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import Donors, HeadBatch, HeadLayout, Need, Patching
from mhprobe.measures.base import Measure, MeasureWarning, counts, sums
from mhprobe.measures.parts.hashing import Pool, image_numbers
from mhprobe.stats.agreement import spearman, spearman_interval
from mhprobe.stats.significance import holm, t_quantile, two_sided


class NothingToRestore(MeasureWarning):
    """The metric is not significantly lower on corrupted images than on clean ones."""


class ActivationPatching(Measure):
    """Share of the way from the corrupted run to the clean one that a head's output alone brings the metric.

    corrupt, direction, metric, noise, seed: as for ``Patching``. donors: number of images of the
    selection split to draw donors from (corrupt="class"); without a selection split donors are of
    the same batch.
    estimates: some of "exact", "atp", "graddrop". value is of the first, "exact" or "atp"; others
    are compared with it.

    Columns, (A,) unless said otherwise: value: the share, larger: the head matters more; 0: alone
    it does nothing,
    below 0: it leads away; low, high: 95 % interval over images and donors; p_holm: two-sided test
    of a mean effect of 0, Holm over heads; effect: mean effect in units of the metric; size: mean
    of |effect| over pairs, divided as value is; atp, atp_size, graddrop: estimates of value, size
    and size, graddrop NaN with fewer than two known blocks;
    difference: atp - value; places: places by which atp ranks the head lower than value does;
    spearman_atp,
    spearman_size, spearman_graddrop: () rank correlation over heads of atp with value, of atp_size
    and of graddrop with size, each with _low and _high (95 %); clean, corrupted: () mean metric of
    either run; pairs: () number of pairs;
    donors: () number of their donors, equal to pairs if no donor serves two images; images: ().
    NothingToRestore warns if the metric does not fall. Raises UserError without any pair.
    """

    fooled_by = "by definition: a head that both images need alike: it is the same in both, and restores nothing"
    label = "share of the metric that the head alone restores"
    larger = "the head alone restores more of the clean result; below 0 it leads away from it"
    also: ClassVar[tuple[str, ...]] = ("patching",)
    selects_by_images = True

    effects: Tensor  # (E, 2, A) sums over pairs of x and |x|
    ends: Tensor = sums(2)  # over pairs of the clean metric and of the corrupted one
    pairs: Tensor = counts()
    # (N, A + 2) per donor of the selection, sums over its pairs of x, clean - corrupted and 1
    of_donors: Tensor
    squares: Tensor  # (3, A + 2) of other pairs, see _squares
    clusters: Tensor = counts()  # how many of those

    def __init__(
        self,
        layout: HeadLayout,
        corrupt: str = "class",
        direction: str = "denoising",
        metric: str = "logit_difference",
        noise: float = 1.0,
        donors: Annotated[int, 2] = 256,
        seed: int = 0,
        estimates: Sequence[str] = ("exact", "atp", "graddrop"),
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        self.estimates = tuple(estimates)
        if self.estimates[:1] not in (("exact",), ("atp",)):
            raise UserError(
                f"{self.name}: the first of estimates is exact or atp, got {list(self.estimates)}."
            )
        self.patching = Patching(corrupt, direction, metric, self.estimates, noise, seed)
        self.pool = Pool(donors if corrupt == "class" else 0)
        if corrupt == "class":
            self.select_needs = frozenset()
        self.needs: frozenset[Need] = frozenset({self.patching})
        if "graddrop" in self.estimates and (known_blocks := len(layout.blocks)) < 2:
            self.empty = f"graddrop is a mean over the other blocks, and mhprobe sees {known_blocks} of this network"
        heads = layout.num_heads
        self.add_state("effects", torch.zeros(len(self.estimates), 2, heads, dtype=torch.float64))
        self.add_state("of_donors", torch.zeros(self.pool.size, heads + 2, dtype=torch.float64))
        self.add_state("squares", torch.zeros(3, heads + 2, dtype=torch.float64))

    def select(self, batch: HeadBatch) -> None:
        if batch.images is not None:
            images, labels = batch.images[batch.valid], batch.need("labels", self.name)[batch.valid]
            self.pool.add(image_numbers(images), [images, labels])

    def end_select(self) -> None:
        self.pool.gather()
        if len(self.pool):
            number, images, labels = self.pool.held
            self.needs = frozenset(
                {dataclasses.replace(self.patching, donors=Donors(images, labels, number))}
            )

    def reset(self) -> None:
        super().reset()
        self.pool = Pool(self.pool.size)
        self.needs = frozenset({self.patching})

    def add(self, batch: HeadBatch) -> None:
        (need,) = self.needs
        effects = batch.patched[need]  # type: ignore[index]
        counted = batch.valid & effects.paired.to(batch.valid.device)
        if not counted.any():
            return
        clean = effects.clean[counted].double()
        corrupt = effects.corrupt[counted].double()
        x_EPA = torch.stack([effects.effect[name][counted].double() for name in self.estimates])
        self.effects += torch.stack([x_EPA.sum(1), x_EPA.abs().sum(1)], 1)
        self.ends += torch.stack([clean.sum(), corrupt.sum()])
        self.pairs += counted.sum()
        pairs_PV = torch.cat(
            [x_EPA[0], torch.stack([clean - corrupt, torch.ones_like(clean)], 1)], 1
        )
        self._cluster(pairs_PV, effects.donor, counted)

    def _cluster(self, pairs_PV: Tensor, donor: Tensor | None, counted: Tensor) -> None:
        """Add to the sums of the errors.

        pairs: x of all heads, clean - corrupted and 1. counted: (B,) bool.
        """
        (need,) = self.needs
        if donor is None:
            self.squares += _squares(pairs_PV)
            self.clusters += len(pairs_PV)
        elif need.donors is not None:  # type: ignore[union-attr]
            self.of_donors.index_add_(0, donor[counted], pairs_PV)
        else:
            images_BV = pairs_PV.new_zeros(len(counted), pairs_PV.shape[1])
            images_BV[counted] = pairs_PV
            images_BV.index_add_(0, donor[counted], pairs_PV)
            self.squares += _squares(images_BV) - _squares(
                pairs_PV
            )  # each pair is in two sums, and counts once
            self.clusters += len(pairs_PV)

    def finish(self) -> dict[str, Tensor]:
        if not int(self.pairs):
            raise UserError(
                f"{self.name}: none of {int(self.images)} images has a corrupted twin (corrupt="
                f"{self.patching.corrupt}), expected images of several classes, or with objects on "
                "a background."
            )
        clean, corrupted = self.ends / self.pairs
        self._warn(clean - corrupted)
        main = self.estimates[0]
        value, mean, freedom = self._share(main), self.effects[0, 0] / self.pairs, self._freedom
        reach = t_quantile(freedom) * self._error()
        return {
            "value": value,
            "low": value - reach,
            "high": value + reach,
            "p_holm": holm(two_sided(mean, self._mean_error(mean), freedom)),
            "effect": mean,
            "size": self._size(main),
            **self._estimated(value),
            "clean": clean,
            "corrupted": corrupted,
            "pairs": self.pairs.clone(),
            "donors": self._clusters.clone(),
        }

    def _estimated(self, value: Tensor) -> dict[str, Tensor]:
        """Columns that compare the slope-based estimates (AtP, GradDrop) with the exact effect."""
        columns = dict[str, Tensor]()
        size = self._size(self.estimates[0])
        if "atp" in self.estimates[1:]:
            atp = self._share("atp")
            atp_size = self._size("atp")
            place, atp_place = (
                x.argsort(descending=True, stable=True).argsort() for x in (value, atp)
            )
            columns = {
                "atp": atp,
                "atp_size": atp_size,
                "difference": atp - value,
                "places": atp_place - place,
            }
            columns |= _agreement("atp", atp, value) | _agreement("size", atp_size, size)
        if "graddrop" in self.estimates:
            dropped = (
                self._size("graddrop")
                if len(self.layout.blocks) > 1
                else torch.full_like(size, torch.nan)
            )
            columns |= {"graddrop": dropped} | _agreement("graddrop", dropped, size)
        return columns

    def _share(self, estimate: str) -> Tensor:
        return self.effects[self.estimates.index(estimate), 0] / (self.ends[0] - self.ends[1])

    def _size(self, estimate: str) -> Tensor:
        return self.effects[self.estimates.index(estimate), 1] / (self.ends[0] - self.ends[1]).abs()

    @property
    def _clusters(self) -> Tensor:
        """() number of clusters."""
        return (self.of_donors[:, -1] > 0).sum() + self.clusters

    @property
    def _freedom(self) -> Tensor:
        """() degrees of freedom of the errors; 0 with a single cluster."""
        square_N = self.of_donors[:, -1].square()
        served = square_N.sum() ** 2 / square_N.square().sum().clamp(min=1)
        return (served + self.clusters - 1).clamp(min=(self._clusters > 1).double())

    @property
    def _sums_of_squares(self) -> Tensor:
        """(3, A + 2) over all clusters, widened for their number; NaN with a single one."""
        count = self._clusters.double()
        return (self.squares + _squares(self.of_donors)) * count / (count - 1)

    def _error(self) -> Tensor:
        """(A,) standard error of the share, a ratio of two means, by the delta method."""
        square, by_way, _ = self._sums_of_squares
        ratio = self._share(self.estimates[0])
        residual = square[:-2] - 2 * ratio * by_way[:-2] + ratio**2 * square[-2]
        return residual.clamp(min=0).sqrt() / (self.ends[0] - self.ends[1]).abs()

    def _mean_error(self, mean: Tensor, columns: slice = slice(-2)) -> Tensor:
        """(A,) standard error of the mean effect, or of other ``columns`` of the sums."""
        square, _, by_count = self._sums_of_squares
        residual = square[columns] - 2 * mean * by_count[columns] + mean**2 * square[-1]
        return residual.clamp(min=0).sqrt() / self.pairs

    def _warn(self, way: Tensor) -> None:
        reach = t_quantile(self._freedom) * self._mean_error(way[None], slice(-2, -1))
        if not way > reach:
            warnings.warn(
                f"{self.name}: the metric falls by {float(way):.3g} +- {float(reach):.2g} from "
                "clean to "
                f"corrupted images ({int(self.pairs)} pairs): there is nothing to restore, and "
                "shares of it mean "
                f"little. Corrupt more, or show more images.",
                NothingToRestore,
                stacklevel=2,
            )


def _squares(sums_UV: Tensor) -> Tensor:
    """(3, V) sums over clusters of each column's square, and of its products with the last two columns."""
    return torch.stack(
        [sums_UV.square().sum(0), sums_UV[:, -2] @ sums_UV, sums_UV[:, -1] @ sums_UV]
    )


def _agreement(name: str, estimate: Tensor, exact: Tensor) -> dict[str, Tensor]:
    rho = spearman(estimate.cpu(), exact.cpu())
    ends = zip(("", "_low", "_high"), (rho, *spearman_interval(rho, len(exact))), strict=True)
    return {f"spearman_{name}{end}": exact.new_tensor(number) for end, number in ends}
