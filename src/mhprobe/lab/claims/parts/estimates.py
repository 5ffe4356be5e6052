"""Estimates of effects with 95 % intervals, and the p of any number that the effect might be.

Claims about heads: the heads of a block are a sample, the blocks are fixed. Errors come from the
delete-one jackknife, block by block (Shao & Tu, 1995, The Jackknife and Bootstrap, ch. 6). Claims
about accuracy: images are the sample, and differences on the same images are paired.
"""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc, betaincinv, stdtr, stdtrit
from scipy.stats import rankdata
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.stats.agreement import auroc, auroc_error
from mhprobe.stats.significance import LEVEL, Z95, crossed, satterthwaite

# share of a measure's variance over heads: noise then reduces a correlation to no less than .89 of
# it
RELIABLE = 0.8
FARTHEST = 1.5  # skewness times t, up to which Hall's transformation is taken as it is
FEWEST = 4  # degrees of freedom below which an error is too uncertain to be used


class TooFewError(UserError):
    """Raised for too few heads or images; ``needed`` are the fewest."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class StudentsLaw(NamedTuple):
    """Student's law, of infinitely many degrees of freedom the normal one: scipy's own takes 20 times as long."""

    freedom: float

    def cdf(self, t: float) -> float:
        """Chance of less than t."""
        return float(stdtr(self.freedom, t))

    def quantile(self, chance: float) -> float:
        """Number that is above a draw with this chance."""
        return float(stdtrit(self.freedom, chance))


@dataclass(frozen=True)
class Estimate:
    """An effect and its 95 % interval.

    p: (number, times) -> two-sided p that the effect is this number, with ``times`` as many heads
    or images. power: (number, true effect) -> chance that the 95 % interval does not reach the
    number. unit, count: the sample: heads, blocks or images. chance: the chance level that was
    subtracted, or NaN. needed: number of images that would be enough, if these are too few. found:
    of a share, how many have the property at the least and at the most.
    """

    effect: float
    low: float
    high: float
    p: Callable[..., float]
    power: Callable[[float, float], float]
    unit: str
    count: int
    chance: float = math.nan
    needed: int | None = None
    found: tuple[int, int] | None = None

    def beyond(self, number: float) -> "Estimate":
        """Return the estimate of the effect minus a number, e.g. of a share minus a half for "most"."""
        moved = {name: getattr(self, name) - number for name in ("effect", "low", "high", "chance")}
        return replace(
            self,
            p=lambda effect, times=1.0: self.p(effect + number, times),
            power=lambda cut, truth: self.power(cut + number, truth + number),
            **moved,
        )


def over_heads(
    layout: HeadLayout,
    statistic: Callable[[Tensor], float],
    heads: Tensor | None = None,
    correlation: bool = False,
    chance: float = math.nan,
) -> Estimate:
    """Estimate of a statistic of heads by the jackknife.

    A few heads of long tails decide a mean, and a draw without them has a small error, too. The
    interval follows the skewness of the heads' shares in the error, so that an effect is no more
    often "too small to matter" by mistake than it "holds" (Hall, 1992, JRSS B 54:221).

    statistic: of (K,) flat indices of heads. heads: (A,) bool, the heads with a value; None for
    all. correlation: the statistic is one, and its error is that of its arctanh, which has no such
    tails. TooFewError for too few heads.
    """
    every = torch.arange(layout.num_heads) if heads is None else torch.nonzero(heads).flatten()
    parts: list[tuple[float, int]] = []
    cubes = 0.0  # third powers of what each head adds to the error
    scale = _stretched if correlation else float
    for span in map(layout.span, range(len(layout.sites))):
        members = every[(every >= span.start) & (every < span.stop)]
        if len(members) > 1:
            without = [scale(statistic(every[every != head])) for head in members.tolist()]
            factor = (1 - 1 / len(every)) ** 2 * len(
                members
            )  # each leaves out one of all heads, not of its block
            parts.append((factor * statistics.variance(without), len(members) - 1))
            cubes += _cubes(without, factor)
    if sum(freedom for _, freedom in parts) < FEWEST:
        raise TooFewError(
            f"there are {len(every)} heads that can be compared, which are too few to vary over.",
            len(layout.sites) + FEWEST,
        )
    error, freedom = satterthwaite(parts)
    lean = 0.0 if correlation or not error > 0 else cubes / error**3
    estimate = student(
        statistic(every), error, freedom, "heads", len(every), correlation=correlation, lean=lean
    )
    return replace(estimate, chance=chance)


def _cubes(without: list[float], factor: float) -> float:
    """Sum of the third powers of what the heads of a block add to an estimate.

    without: the estimate without each of them. factor: of its variance in the error.
    """
    members, middle = len(without), statistics.fmean(without)
    if members < 3:
        return 0.0
    size = math.sqrt(factor / (members - 1))
    return sum((size * (middle - part)) ** 3 for part in without) * members / (members - 2)


def over_images(differences: Tensor) -> Estimate:
    """Mean of (n,) paired differences, or of (R, n) of R random draws, without NaN; TooFewError for under 10 images."""
    rows = differences.double()[..., ~differences.isnan().reshape(-1, differences.shape[-1]).any(0)]
    count = _enough(rows.shape[-1])
    test = crossed(rows.reshape(-1, count))  # other draws would give another mean
    return student(test.difference, test.error, test.freedom, "images", count)


def over_draws(differences: Tensor) -> Estimate:
    """Mean of (R, n) differences of right and wrong, of R draws that chose on the same n images; under 10: TooFewError.

    The error is that of other images and of other draws, which are added (``significance.crossed``).
    That of images is of two images more, one a gain and one a loss (Agresti & Min, 2005, Statistics
    in Medicine 24:729): where no image differs, other images still may.
    """
    draws, count = differences.shape[0], _enough(differences.shape[1])
    of_image = differences.double().mean(0)
    padded = torch.cat([of_image, of_image.new_tensor([1.0, -1.0])])
    parts = [(float(padded.var(correction=0)) / len(padded), count - 1)]
    if draws > 1:
        parts.append((float(differences.double().mean(1).var()) / draws, draws - 1))
    return student(float(of_image.mean()), *satterthwaite(parts), "images", count)


def of_accuracy(better: Tensor, worse: Tensor) -> Estimate:
    """Estimate of the share of images that are right in (n,) ``better`` minus that in ``worse``: a score interval.

    The error is that under the number that is tested (Tango, 1998, Statistics in Medicine 17:891):
    few images differ. TooFewError for fewer than 10 images.
    """
    won, lost, count = (
        int((better & ~worse).sum()),
        int((worse & ~better).sum()),
        _enough(len(better)),
    )
    effect = (won - lost) / count

    def error(number: float) -> float:
        linear = (2 * count - won + lost) * number - won - lost
        root = math.sqrt(max(0.0, linear**2 + 8 * count * lost * number * (1 - number)))
        return math.sqrt(max(0.0, (root - linear) / (2 * count) + number * (1 - number)) / count)

    def beyond(number: float, errors: float) -> float:
        return (effect - number) / max(error(number), 1e-12) - errors

    low = brentq(beyond, -1, effect, args=(Z95,)) if effect > -1 else -1.0
    high = brentq(beyond, effect, 1, args=(-Z95,)) if effect < 1 else 1.0
    return _estimate(effect, low, high, error, StudentsLaw(math.inf), "images", count)


def _enough(images: int) -> int:
    if images < 10:
        raise TooFewError(f"there are {images} images, expected 10 at the least.", 10)
    return images


def share_of_heads(
    sure: Tensor, excluded: Tensor, images: int | Tensor = 0, unit: str = "heads"
) -> Estimate:
    """Estimate of the share of heads with a property, by the exact binomial law (Clopper & Pearson, 1934).

    sure, excluded: (K,) bool, heads for which the images show the property, and for which they
    exclude it. A head whose interval is not known (NaN) is neither. unit: "heads" or "blocks".
    TooFewError for too few of them.
    """
    count, least, most = len(sure), int(sure.sum()), int((sure | ~excluded).sum())
    if count < FEWEST:
        raise TooFewError(
            f"there are {count} {unit} that can be counted, which are too few.", FEWEST
        )
    low = betaincinv(least, count - least + 1, LEVEL / 2) if least else 0.0
    high = betaincinv(most + 1, count - most, 1 - LEVEL / 2) if most < count else 1.0

    def p(expected: float, times: float = 1.0) -> float:
        few, many, of = (round(times * number) for number in (least, most, count))
        if not 0 <= expected <= 1:
            return 0.0
        if few <= expected * of <= many:
            return 1.0
        tail = bdtrc(few - 1, of, expected) if few > expected * of else bdtr(many, of, expected)
        return min(1.0, 2 * float(tail))

    def power(cut: float, truth: float) -> float:
        seen = np.arange(count + 1)  # heads with the property; uncertain ones count against it
        shown = (seen > cut * count) & (2 * bdtrc(seen - 1, count, cut) < LEVEL)
        return float(bdtrc(shown.argmax() - 1 + most - least, count, truth)) if shown.any() else 0.0

    over, number = ("images", int(images)) if least < most and images else (unit, count)
    middle = (least + most) / 2 / count
    ends = float(low), float(high)
    return Estimate(middle, *ends, p, power, over, number, found=(least, most))


def more_often(values: Tensor, inside: Tensor) -> Estimate:
    """Chance that a value inside a group is larger than one outside, minus .5; UserError for an empty group."""
    first, second = int(inside.sum()), int((~inside).sum())
    if not first or not second:
        raise UserError(f"{first} images are right and {second} wrong, expected some of either.")
    area = auroc(values[inside], values[~inside])
    error = auroc_error(area, first, second, least=0.25)
    return student(area - 0.5, error, first + second - 2, "images", first + second)


def student(
    value: float,
    error: float,
    freedom: float,
    unit: str,
    count: int,
    correlation: bool = False,
    lean: float = 0.0,
) -> Estimate:
    """Estimate of a number with a standard error and degrees of freedom, by Student's law.

    correlation: the error is that of the number's arctanh. lean: skewness of the error, positive
    for a long upper tail. UserError for a number or an error that is not finite.
    """
    if not math.isfinite(value) or not math.isfinite(error):
        raise UserError(
            "the number that would decide it is not defined here: all heads, or all images, are "
            "alike."
        )
    if lean and error > 0:
        return _skewed(value, error, lean, StudentsLaw(freedom), unit, count)
    stretch, shrink = (_stretched, math.tanh) if correlation else (float, float)
    middle, law = stretch(value), StudentsLaw(freedom)
    half = law.quantile(1 - LEVEL / 2) * error
    ends = shrink(middle - half), shrink(middle + half)
    return _estimate(value, *ends, lambda number: error, law, unit, count, stretch)


def _skewed(
    value: float, error: float, lean: float, law: StudentsLaw, unit: str, count: int
) -> Estimate:
    """Estimate of a number whose errors are skewed: Hall's transformation of its t follows ``law``."""
    quantile = law.quantile(1 - LEVEL / 2)

    def end(of_law: float) -> float:
        return value - error * brentq(lambda t: _straightened(t, lean) - of_law, -1e9, 1e9)

    low, high = end(quantile), end(-quantile)

    def p(number: float, times: float = 1.0) -> float:
        t = (value - number) / error * math.sqrt(times)
        return min(1.0, 2 * law.cdf(-abs(_straightened(t, lean / math.sqrt(times)))))

    def power(cut: float, truth: float) -> float:
        half = value - low if truth > cut else high - value
        return law.cdf((abs(truth - cut) - half) / error)

    return Estimate(value, low, high, p, power, unit, count)


def _straightened(t: float, lean: float) -> float:
    """Hall's transformation, which takes the first order of skewness out of Student's t, and rises everywhere.

    It is flat where lean x t is -3, however sure the effect: beyond FARTHEST lean counts less.
    """
    felt = math.copysign(min(abs(lean), FARTHEST / max(abs(t), 1e-12)), lean)
    return t + felt * t**2 / 3 + felt**2 * t**3 / 27 + felt / 6


def _estimate(
    value: float,
    low: float,
    high: float,
    error: Callable[[float], float],
    law: StudentsLaw,
    unit: str,
    count: int,
    stretch: Callable[[float], float] = float,
) -> Estimate:
    """Estimate of a number that follows a law on a stretched scale.

    error: standard error by true effect.
    """

    def errors(first: float, second: float, under: float, beyond: float = 0.0) -> float:
        return (abs(stretch(first) - stretch(second)) - beyond) / max(error(under), 1e-12)

    def p(number: float, times: float = 1.0) -> float:
        return 2 * law.cdf(-errors(value, number, number) * math.sqrt(times))

    def power(cut: float, truth: float) -> float:
        half = law.quantile(1 - LEVEL / 2) * error(cut)
        return law.cdf(errors(truth, cut, truth, half))

    return Estimate(value, low, high, p, power, unit, count)


def _stretched(correlation: float) -> float:
    return math.atanh(min(max(correlation, -1 + 1e-9), 1 - 1e-9))


def rank_correlation(rho: float, heads: int) -> Estimate:
    """Estimate of a rank correlation over independent heads (Bonett & Wright, 2000); TooFewError for too few heads."""
    if heads - 3 < FEWEST:
        raise TooFewError(f"there are {heads} heads, which are too few to correlate.", 3 + FEWEST)
    return student(
        rho, math.sqrt((1 + rho**2 / 2) / (heads - 3)), heads - 3, "heads", heads, correlation=True
    )


def minus_another(first: Estimate, second: Mapping[str, Any]) -> Estimate:
    """Estimate of an effect minus that of another network, from a row of its ``tables/claims.csv``."""
    effect, low, high = (float(second[name]) for name in ("effect", "low", "high"))
    error, count = math.hypot(first.high - first.low, high - low) / 2 / Z95, int(second["count"])
    return student(
        first.effect - effect, error, min(first.count, count) - 1, first.unit, first.count + count
    )


def third_of(layout: HeadLayout) -> Tensor:
    """(A,) 0, 1 or 2 for heads of the early, the middle and the late blocks.

    UserError for fewer than three blocks.
    """
    block, blocks = _depth(layout)
    if blocks < 3:
        raise UserError(f"the network has {blocks} blocks, expected three at the least.")
    return block * 3 // blocks


def early_and_late(layout: HeadLayout) -> tuple[Tensor, Tensor]:
    """(A,) bool each: heads of the early and of the late half of the blocks.

    UserError for one block.
    """
    block, blocks = _depth(layout)
    if not (half := blocks // 2):
        raise UserError("the network has one block, expected two at the least.")
    return block < half, block >= blocks - half


def _depth(layout: HeadLayout) -> tuple[Tensor, int]:
    """(A,) number of each head's block among those with heads, and how many there are."""
    blocks, block = torch.tensor([site.block for _, _, site in layout]).unique(return_inverse=True)
    return block, len(blocks)


def mean_over_heads(
    layout: HeadLayout,
    values: Tensor,
    chance: Tensor | None = None,
    heads: Tensor | None = None,
    minus: Tensor | None = None,
    absent: str = "it is known of no head.",
) -> Estimate:
    """Mean of (A,) values over heads, or of (A, A) values over the pairs of heads of each block; NaN are left out.

    chance: chance levels of the same shape, subtracted. heads: (A,) bool, None for all. minus: (A,)
    bool, heads whose mean is subtracted. absent: message of the UserError where all values are NaN.
    """
    above = values if chance is None else values - chance
    finite, of_pairs = above.isfinite(), above.dim() == 2
    over = in_blocks(layout) & finite if of_pairs else finite
    if not over.any():
        raise UserError(absent)
    groups = [over if heads is None else _within(over, heads)]
    if minus is not None:
        groups.append(_within(over, minus))
    mean = functools.partial(
        _mean_less_others, above.numpy(force=True), [group.numpy(force=True) for group in groups]
    )
    by_chance = math.nan if chance is None or minus is not None else float(chance[over].mean())
    every = torch.stack(groups).any(0)
    return over_heads(layout, mean, every.any(1) if of_pairs else every, chance=by_chance)


def _within(over: Tensor, heads: Tensor) -> Tensor:
    """Return the values of ``over``, (A,) or (A, A) bool, that are of these heads, of pairs the first."""
    return over & (heads[:, None] if over.dim() == 2 else heads)


def _mean_less_others(table: np.ndarray, groups: Sequence[np.ndarray], kept: Tensor) -> float:
    """Mean of the first group's values less that of the others, of kept heads; NaN where one has none."""
    at = np.ix_(*[kept.numpy(force=True)] * table.ndim)
    found = [table[at][group[at]] for group in groups]
    means = [float(part.mean()) if part.size else math.nan for part in found]
    return means[0] - sum(means[1:])


def late_minus_early(layout: HeadLayout, values: Tensor) -> Estimate:
    """Mean of (A,) values over the heads of the later half of the blocks, minus that of the earlier half."""
    early, late = early_and_late(layout)
    return mean_over_heads(layout, values, heads=late, minus=early)


def go_together(layout: HeadLayout, first: Tensor, second: Tensor) -> Estimate:
    """Rank correlation of two (A,) values over heads, or of two (A, A) values over the pairs of heads of each block.

    Ranks are over all blocks, minus their mean in each: differences between blocks do not count.
    NaN are left out.
    """
    block = layout.site_of_head
    finite = first.isfinite() & second.isfinite()
    pairs = (in_blocks(layout) & finite).triu() if first.dim() == 2 else torch.diag(finite)
    row, column = pairs.nonzero(as_tuple=True)  # of a head the pair with itself
    both = torch.stack(
        [
            part if part.dim() == 2 else torch.diag(part)
            for part in (first.double(), second.double())
        ]
    )
    values = torch.from_numpy(rankdata(both[:, pairs].numpy(), axis=1))  # equal ones share theirs
    nothing = torch.zeros(2, len(layout.sites), dtype=torch.float64)

    def correlation(kept: Tensor) -> float:
        inside = torch.zeros(layout.num_heads, dtype=torch.bool).index_fill(0, kept, True)
        left = inside[row] & inside[column]
        here, group = values[:, left], block[row[left]]
        size = torch.bincount(group, minlength=len(layout.sites)).clamp(min=1)
        x, y = here - (nothing.index_add(1, group, here) / size)[:, group]
        length = float((x.square().sum() * y.square().sum()).sqrt())
        return float((x * y).sum()) / length if length > 0 else math.nan

    return over_heads(layout, correlation, pairs.any(0) | pairs.any(1), correlation=True)


def goes_with_cost(layout: HeadLayout, values: Tensor, cost: Mapping[str, Tensor]) -> Estimate:
    """Rank correlation of (A,) values with a cost, columns "value", "low", "high" and "images" of a measure.

    Reliability of the cost: the share of its variance inside blocks that is no noise of the images
    (Spearman, 1904: noise reduces a correlation by the root of it). Below RELIABLE the interval is
    [-1, 1], and ``needed`` is the number of images that would reach it.
    """
    correlated = go_together(layout, values, cost["value"])
    noise = ((cost["high"] - cost["low"]) / 2 / Z95).double().square().mean()
    inside = [(part - part.mean()).square().sum() for part in layout.split(cost["value"].double())]
    variance = sum(inside) / max(1, layout.num_heads - len(layout.sites))
    reliability = (
        float((1 - noise / variance).clamp(min=0).nan_to_num(0)) if variance > 0 else 0.0
    )  # of one image
    if reliability >= RELIABLE:
        return correlated
    images, odds = int(cost["images"]), RELIABLE / (1 - RELIABLE)
    needed = math.ceil(images * odds * (1 - reliability) / reliability) if reliability else None
    never: dict[str, Any] = {"p": lambda effect, times=1.0: 1.0, "power": lambda cut, truth: 0.0}
    return replace(
        correlated, low=-1.0, high=1.0, **never, unit="images", count=images, needed=needed
    )


def in_blocks(layout: HeadLayout) -> Tensor:
    """(A, A) bool: pairs of different heads of one block."""
    block = layout.site_of_head
    return (block[:, None] == block) & ~torch.eye(len(block), dtype=torch.bool)


def between_blocks(layout: HeadLayout, values: Tensor) -> Tensor:
    """(A, A) bool: pairs of heads of different blocks that (A, A) values compare.

    UserError if there are none.
    """
    block = layout.site_of_head
    between = (block[:, None] != block) & values.isfinite()
    if not between.any():
        raise UserError("no two blocks have heads that attend among the same tokens.")
    return between


def most_alike(layout: HeadLayout, values: Tensor) -> Tensor:
    """(A,) the largest of (A, A) values of each head with another of its block; NaN without any."""
    largest = values.masked_fill(~in_blocks(layout) | ~values.isfinite(), -math.inf).amax(1)
    return largest.where(largest.isfinite(), math.nan)
