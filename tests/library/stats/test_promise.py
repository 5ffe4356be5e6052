"""The promise is broken in at most 5 % of 1,000 draws; the naive choice breaks it far more often."""

from __future__ import annotations

import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.stats.promise import Guarantee, kept_promise, loses_more

IMAGES, STEPS, LIMIT = 1000, 12, 0.01


def draw(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Steps that lose more and more, and win a little back; what each loses in truth: 0.2 points a step."""
    truth = 0.002 * torch.arange(1, STEPS + 1, dtype=torch.float64)
    won = 0.003
    place = torch.rand(IMAGES, generator=generator, dtype=torch.float64)
    whole = place < 0.8
    lost = place[None] < (truth + won)[:, None]
    back = place[None] > 1 - won
    return whole, (whole & ~lost) | (~whole & back), truth


def test_the_promise_holds_and_the_naive_choice_does_not():
    generator = torch.Generator().manual_seed(0)
    draws, broken, naive, taken = 1000, 0, 0, 0
    for number in range(draws):
        whole, steps, truth = draw(generator)
        kept = kept_promise(whole, steps, points=100 * LIMIT, seed=number)
        broken += kept > 0 and float(truth[kept - 1]) > LIMIT + 1e-12
        taken += kept
        seen = (whole.double() - steps.double()).mean(1)
        last = int((seen <= LIMIT).nonzero().amax()) if bool((seen <= LIMIT).any()) else -1
        naive += last >= 0 and float(truth[last]) > LIMIT + 1e-12
    # 5 % and three binomial standard deviations: .05 + 3 sqrt(.05 .95 / 1000)
    assert broken / draws <= 0.071
    assert naive / draws > 0.3
    assert taken / draws > 0.5  # and something is promised


def test_a_loss_at_the_limit_is_rarely_called_less():
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(1000, IMAGES, generator=generator)
    loss = (drawn < 0.03).double() - (drawn > 0.98).double()  # lost 3 %, won 2 %: a mean of 1 point
    assert float((loses_more(loss, LIMIT) <= 0.05).double().mean()) <= 0.071


def test_a_promise_that_a_mean_and_its_error_make_sure_of_is_usually_given():
    """Lost 2 %, won 1 % of 2,500 images, limit 2 points: four standard errors.

    The largest growth gave 33 % of them.
    """
    generator = torch.Generator().manual_seed(2)
    drawn = torch.rand(400, 2500, generator=generator)
    loss = (drawn < 0.02).double() - (drawn > 0.99).double()
    assert float((loses_more(loss, 0.02) <= 0.05).double().mean()) > 0.55


def test_the_capital_at_the_limit_is_nobodys_to_expect_at_any_level():
    """Ville's inequality: at most a share ``level`` of draws whose mean is the limit has a p below it."""
    generator = torch.Generator().manual_seed(3)
    for level in (0.2, 0.05, 0.01):
        drawn = torch.rand(2000, 800, generator=generator)
        loss = (drawn < 0.06).double() - (drawn > 0.98).double()  # lost 6 %, won 2 %
        shown = float((loses_more(loss, 0.04, level) <= level).double().mean())
        assert shown <= level + 3 * (level * (1 - level) / 2000) ** 0.5


def test_a_step_behind_one_that_is_not_shown_is_not_promised():
    whole = torch.ones(2000, dtype=torch.bool)
    good, bad = whole, torch.arange(2000) >= 200  # one image in ten is lost
    assert kept_promise(whole, torch.stack([good, good, good])) == 3
    assert kept_promise(whole, torch.stack([good, bad, good])) == 1
    assert kept_promise(whole, torch.stack([bad, good, good])) == 0


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_fewest_images_that_can_show_it_do_and_one_fewer_do_not(confidence):
    """At twice the level far fewer would do."""
    needed = Guarantee(1.0, confidence).images_needed
    whole = torch.ones(needed, dtype=torch.bool)
    assert kept_promise(whole, whole[None], 1.0, confidence) == 1
    assert kept_promise(whole[1:], whole[None, 1:], 1.0, confidence) == 0
    looser = Guarantee(1.0, 1 - 2 * (1 - confidence)).images_needed
    assert looser < 0.9 * needed
    assert kept_promise(whole[:looser], whole[None, :looser], 1.0, confidence) == 0


def test_images_that_a_step_wins_count_against_those_that_it_loses():
    place = torch.arange(4000)
    whole = place >= 200
    after = (place < 200) | (place >= 400)  # 5 % are lost, 5 % are won: nothing in all
    assert int(whole.sum()) == int(after.sum())
    assert kept_promise(whole, after[None], points=3.0) == 1
    assert (
        kept_promise(whole, (whole & after)[None], points=3.0) == 0
    )  # the same without what is won


def test_limits_out_of_range_are_refused():
    right = torch.ones(5, dtype=torch.bool)
    for points, confidence in ((0, 0.95), (1, 1.0), (100, 0.95)):
        with pytest.raises(UserError, match="guarantee: expected points between 0 and 100"):
            kept_promise(right, right[None], points, confidence)
