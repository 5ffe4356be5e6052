"""Heads of several networks decide together what those of each leave open."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.lab.claims.parts.asking import verdict_rows
from mhprobe.lab.claims.parts.claim import all_claims
from mhprobe.lab.claims.parts.estimates import Estimate, mean_over_heads, share_of_heads
from mhprobe.lab.claims.parts.judge import judge
from mhprobe.lab.claims.parts.pooled import judge_together, pooled

SINKS = "some_heads_are_sinks"
FALLS = "entropy_falls_with_depth"
LAYOUT = layout_of(6, 6, 6, 6)


def row(name: str, estimate: Estimate | UserError) -> dict[str, object]:
    """The row of a claim in the table of a run."""
    claims = {name: all_claims()[name]}
    (one,) = verdict_rows(claims, judge(claims, {name: estimate}), {})
    return one


def counted(found: int, heads: int, beyond: float = 0.0) -> Estimate:
    heads_with = torch.arange(heads) < found
    return share_of_heads(heads_with, ~heads_with).beyond(beyond)


def test_shares_of_several_networks_are_the_share_of_all_their_heads():
    rows = [row(SINKS, counted(found, heads)) for found, heads in ((0, 72), (3, 24), (1, 66))]
    found, expected = pooled(rows), stats.binomtest(4, 162).proportion_ci(method="exact")
    assert (found.effect, found.low, found.high) == pytest.approx(
        (4 / 162, expected.low, expected.high)
    )
    assert found.count == 162
    moved = pooled([row(SINKS, counted(f, n, 0.5)) for f, n in ((40, 72), (20, 24))])
    assert moved.effect == pytest.approx(60 / 96 - 0.5)


def test_no_sink_in_three_networks_is_told_where_none_of_them_tells_it():
    rows = [{SINKS: row(SINKS, counted(0, 72))} for _ in range(3)]
    claims = {SINKS: all_claims()[SINKS], FALLS: all_claims()[FALLS]}
    alone = judge(claims, {SINKS: counted(0, 72), FALLS: UserError("nothing.")}, tests=30)
    assert alone[SINKS].word == "cannot be told"
    together = judge_together(claims, rows)
    assert together[SINKS].word == "too small to matter"
    assert together[FALLS].word == "not applicable"  # no network was asked


def test_the_mean_over_networks_holds_the_truth():
    """In 95 % of the draws; the error of one network alone would be too small for a mean of unlike ones."""
    random = torch.Generator().manual_seed(0)
    draws, missed, wide = 200, 0, []
    for _ in range(draws):
        networks = [
            mean_over_heads(LAYOUT, size * torch.randn(24, generator=random, dtype=torch.float64))
            for size in (0.5, 1.0, 2.0)
        ]
        found = pooled([row(FALLS, estimate) for estimate in networks])
        missed += not found.low < 0 < found.high
        wide.append((found.high - found.low) / (networks[2].high - networks[2].low))
    assert stats.binom.ppf(0.001, draws, 0.05) <= missed <= stats.binom.ppf(0.999, draws, 0.05)
    assert 0.3 < sum(wide) / draws < 0.6  # three networks tell more than the noisiest of them


def test_what_is_over_images_is_not_pooled():
    """The test images of all networks are the same."""
    over_images = {
        **row(FALLS, mean_over_heads(LAYOUT, torch.randn(24).double())),
        "over": "images",
    }
    with pytest.raises(UserError, match="0 networks have an effect over heads"):
        pooled([over_images, over_images])
    of_heads = {**over_images, "over": "heads"}
    assert pooled([of_heads, of_heads]).effect == pytest.approx(float(of_heads["effect"]))
    with pytest.raises(UserError, match="1 networks"):
        pooled([of_heads, row(FALLS, UserError("it refuses."))])
