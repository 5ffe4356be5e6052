"""Every point of a curve against the unmasked model, on the same images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from curves import curve
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.curve import curve_on_splits as curves_of
from mhprobe.masking.random import Random
from mhprobe.masking.search.exact import Exact
from mhprobe.report.tables import curve_rows
from mhprobe.stats.intervals import bootstrap

IMAGES = 300
LAYOUT = HeadLayout(tuple(HeadSite(f"blocks.{i}.attn", 0, i, 4, 4) for i in range(2)))


def masking_curve(*args, **kwargs) -> list[dict]:
    return curve_rows(curves_of(*args, **kwargs))


class Noisy(Evaluate):
    """Every head that is masked turns some of the images that were right, and a few that were wrong."""

    images = IMAGES

    def __call__(self, masks, images=None):
        generator = torch.Generator().manual_seed(0)
        right = torch.rand(IMAGES, generator=generator) < 0.7
        lost, won = (torch.rand(8, IMAGES, generator=generator) < share for share in (0.04, 0.02))
        noise = torch.randn(8, IMAGES, generator=generator, dtype=torch.float64) + 0.05
        keep = slice(None) if images is None else images
        return Scores(
            torch.stack([(right & ~lost[mask].any(0) | won[mask].any(0))[keep] for mask in masks]),
            torch.stack([(2 - right.double() + noise[mask].sum(0))[keep] for mask in masks]),
        )


@pytest.fixture(scope="module")
def rows():
    return masking_curve(
        LAYOUT, CurveSpec("c", "head", KeepBest(search=Exact())), Noisy(), Noisy()
    )[9:]  # on test


def scores_of(row) -> tuple[np.ndarray, np.ndarray]:
    scores = Noisy()(LAYOUT.mask(list(map(int, row["masked"].split())))[None])
    return scores.right[0].numpy(), scores.losses[0].numpy()


def test_p_is_the_exact_binomial_one(rows):
    before, _ = scores_of(rows[0])
    found = []
    for row in rows:
        after, _ = scores_of(row)
        lost, won = int((before & ~after).sum()), int((~before & after).sum())
        expected = stats.binomtest(lost, lost + won).pvalue if lost + won else 1.0
        found.append(row["p"])
        assert row["p"] == pytest.approx(expected, rel=1e-9)
    assert (
        min(found) < 0.01 < 0.2 < found[1]
    )  # there is something to find, and something to leave alone


def test_holm_is_over_the_steps_of_one_curve(rows):
    points = rows[1:]
    sorted_p = sorted(row["p"] for row in points)
    for row in points:
        rank = sorted_p.index(row["p"])
        expected = min(1.0, max((len(points) - k) * sorted_p[k] for k in range(rank + 1)))
        assert row["p_holm"] == pytest.approx(expected, rel=1e-9)
    assert rows[0]["p"] == rows[0]["p_holm"] == 1.0


def test_delta_is_the_paired_difference_of_losses_with_its_interval(rows):
    _, before = scores_of(rows[0])
    for row in rows[1:9]:
        difference = scores_of(row)[1] - before
        assert row["delta"] == pytest.approx(difference.mean(), rel=1e-9)
        found = stats.bootstrap(
            (difference,), np.mean, n_resamples=20000, method="percentile", random_state=0
        )
        interval = found.confidence_interval
        # both ends are random: with 1000 resamples their standard deviation is 0.085 standard
        # errors of the mean
        error = difference.std() / IMAGES**0.5
        assert abs(row["delta_low"] - interval.low) < 0.35 * error
        assert abs(row["delta_high"] - interval.high) < 0.35 * error
        assert row["delta_low"] < row["delta"] < row["delta_high"]


def newcombe(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Newcombe, 1998 (Stat.

    Med. 17:2635), method 10, of the share right after minus that right before.
    """
    n = len(before)
    e, f, g, h = (
        (x & y).sum()
        for x, y in ((after, before), (after, ~before), (~after, before), (~after, ~before))
    )
    (l1, u1), (l2, u2) = (
        stats.binomtest(int(k), n).proportion_ci(method="wilson") for k in (e + f, e + g)
    )
    p1, p2 = (e + f) / n, (e + g) / n
    top = e * h - f * g
    phi = (max(top - n / 2, 0) if top > 0 else top) / np.sqrt(
        float((e + f) * (g + h)) * float((e + g) * (f + h))
    )
    down = np.sqrt((p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2)
    up = np.sqrt((p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2)
    return p1 - p2 - down, p1 - p2 + up


def test_the_difference_of_accuracies_is_paired_and_has_newcombes_interval(rows):
    before, _ = scores_of(rows[0])
    assert rows[0]["difference"] == 0 and rows[0]["difference_low"] < 0 < rows[0]["difference_high"]
    for row in rows[1:]:
        after, _ = scores_of(row)
        assert row["difference"] == pytest.approx(after.mean() - before.mean(), abs=1e-12)
        ends = newcombe(before, after)
        assert (row["difference_low"], row["difference_high"]) == pytest.approx(ends, abs=1e-6)
        alone = (
            2 * 1.96 * np.sqrt((before.var() + after.var()) / IMAGES)
        )  # as if the images were others
        assert ends[1] - ends[0] < 0.95 * alone
    worst = min(rows, key=lambda row: row["difference"])
    assert worst["difference_high"] < 0 and worst["p"] < 0.05  # the test and the interval agree


class OneLosesMuch(Evaluate):
    """Of 40 images one loses 80 nats with any head off, and no other changes."""

    images = 40

    def __call__(self, masks, images=None):
        losses = torch.zeros(len(masks), 40, dtype=torch.float64)
        losses[:, 0] = 80.0 * masks.any(1)
        keep = slice(None) if images is None else images
        return Scores(torch.ones(len(masks), 40, dtype=torch.bool)[:, keep], losses[:, keep])


def test_the_interval_of_delta_stays_where_differences_are():
    """A normal one reaches below 0, as if masking had helped some image."""
    row = masking_curve(
        LAYOUT, CurveSpec("c", "layer", Random(repeats=1)), OneLosesMuch(), OneLosesMuch()
    )[-1]
    assert row["delta"] == 2 and 2 - 1.96 * 80 / 40 < -1
    assert 0 <= row["delta_low"] < 2 < row["delta_high"]


class AllLoseAlike(Evaluate):
    """Losses differ from image to image by several nats, and every head that is off costs each half a nat."""

    images = 40

    def __call__(self, masks, images=None):
        losses = torch.linspace(0, 9, 40, dtype=torch.float64) + 0.5 * masks.sum(1, keepdim=True)
        keep = slice(None) if images is None else images
        return Scores(torch.ones(len(masks), 40, dtype=torch.bool)[:, keep], losses[:, keep])


def test_what_all_images_lose_alike_has_an_interval_without_a_width():
    spec = CurveSpec("c", "head", Random(repeats=1))
    for row in masking_curve(LAYOUT, spec, AllLoseAlike(), AllLoseAlike()):
        ends = [row[name] for name in ("delta", "delta_low", "delta_high")]
        assert ends == pytest.approx([0.5 * row["heads_masked"]] * 3, abs=1e-9)


def test_pairing_makes_the_interval_narrower_than_the_losses_alone_would(rows):
    _, before = scores_of(rows[0])
    _, after = scores_of(rows[1])
    alone = 2 * 1.96 * np.sqrt((before.var() + after.var()) / IMAGES)
    assert (
        0
        < rows[1]["delta_high"] - rows[1]["delta_low"]
        < 2 * 1.96 * after.std() / IMAGES**0.5
        < alone
    )


def test_bootstrap_is_seeded_and_covers_the_mean():
    generator = torch.Generator().manual_seed(3)
    inside = 0
    for _ in range(100):
        values = torch.randn(1, 80, generator=generator, dtype=torch.float64).exp()
        low, high = bootstrap(values, resamples=300)
        inside += bool(low <= np.exp(0.5) <= high)
    assert 84 <= inside <= 99  # percentile intervals of skewed data cover a little less than 95 %
    assert bootstrap(values)[0].equal(bootstrap(values)[0])
    assert not bootstrap(values)[0].equal(bootstrap(values, seed=1)[0])


def test_the_mean_of_random_paths_has_no_p_but_an_interval_over_repeats():
    random = CurveSpec("r", "head", Random(repeats=5))
    rows = masking_curve(LAYOUT, random, Noisy(), Noisy())
    mean = [row for row in rows if row["seed"] == "mean"]
    assert {row["p"] for row in mean} == {""} and {row["p_holm"] for row in mean} == {""}
    for step in range(1, 8):
        deltas = [row["delta"] for row in rows if row["step"] == step and row["seed"] != "mean"]
        low, high = stats.t.interval(0.95, 4, loc=np.mean(deltas), scale=stats.sem(deltas))
        assert (mean[step]["delta_low"], mean[step]["delta_high"]) == pytest.approx(
            (low, high), rel=1e-9
        )
        changes = [
            row["difference"] for row in rows if row["step"] == step and row["seed"] != "mean"
        ]
        low, high = stats.t.interval(0.95, 4, loc=np.mean(changes), scale=stats.sem(changes))
        assert (mean[step]["difference_low"], mean[step]["difference_high"]) == pytest.approx(
            (low, high), rel=1e-9
        )


@pytest.mark.parametrize("images", [100, 360, 1000])
def test_a_loss_of_exactly_a_point_is_not_more_than_a_point(images):
    right = torch.arange(images // 50 + 1, images + 1).double()
    for before in right.tolist():
        lost = [0, images // 100, images // 100 + 1]  # 1 % or just below, and just above
        falls = curve("c", [0, 1, 2], [(before - count) / images for count in lost]).falls
        assert falls.tolist() == [False, False, True]


def test_one_image_has_no_interval():
    assert all(end.isnan().all() for end in bootstrap(torch.ones(3, 1)))


@pytest.mark.parametrize("fill", ["zero", "optimal"])
@pytest.mark.parametrize("splits", [("validation", "test"), ("test", "test")])
def test_a_fill_that_was_found_on_the_images_that_score_it_is_not_tested(fill, splits):
    """Constants that minimise the loss of these images make it lower here than on others: p said nothing of it."""
    random = CurveSpec("r", "head", Random(repeats=1), fill=fill)
    rows = masking_curve(LAYOUT, random, Noisy(), Noisy(), splits=splits)
    assert ({row["p"] for row in rows} == {""}) == (fill != "zero" and splits[0] == splits[1])
