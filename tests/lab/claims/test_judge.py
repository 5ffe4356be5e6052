"""The judge: which piece of the number line an interval lies in, and how often that is wrong."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom, norm

from mhprobe.errors import UserError
from mhprobe.lab.claims.parts.claim import Claim, Margin
from mhprobe.lab.claims.parts.estimates import Estimate, TooFewError
from mhprobe.lab.claims.parts.judge import judge, p_of


def claim(shape="more"):
    return Claim(lambda evidence: estimate(0), "", "", Margin(1.0, "", ""), shape)


def estimate(effect, error=0.1, count=50):
    def p(other, times=1.0):
        return float(2 * norm.sf(abs(effect - other) * math.sqrt(times) / error))

    def power(cut, truth):
        return float(norm.cdf(abs(truth - cut) / error - 1.96))

    return Estimate(effect, effect - 1.96 * error, effect + 1.96 * error, p, power, "heads", count)


def word(effect, shape="more", **options):
    return judge({"one": claim(shape)}, {"one": estimate(effect, **options)})["one"].word


@pytest.mark.parametrize(
    ("shape", "effect", "expected"),
    [
        ("more", 1.5, "holds"),
        ("more", -1.5, "contradicted"),
        ("more", 0.2, "too small to matter"),
        ("more", 1.1, "cannot be told"),
        ("more", -0.9, "cannot be told"),
        ("at most", 0.2, "holds"),
        ("at most", -0.5, "holds"),
        ("at most", -1.5, "contradicted"),
        ("at most", -1.1, "cannot be told"),
        ("none", 0.2, "holds"),
        ("none", 1.5, "contradicted"),
        ("none", -1.5, "contradicted"),
        ("none", 0.9, "cannot be told"),
    ],
)
def test_the_piece_that_the_interval_lies_in_is_the_verdict(shape, effect, expected):
    assert word(effect, shape) == expected


def test_a_wrong_verdict_on_any_of_many_claims_is_rare_wherever_the_effects_lie():
    claims = {str(number): claim() for number in range(12)}
    truth = [1.0, -1.0, 1.0, 0.95, -0.95, 1.05, -1.05, 0.0, 3.0, 1.0, -1.0, 1.0]
    generator, draws, wrong = torch.Generator().manual_seed(0), 400, 0
    for _ in range(draws):
        seen = (torch.tensor(truth) + 0.1 * torch.randn(12, generator=generator)).tolist()
        verdicts = judge(
            claims, {str(number): estimate(effect) for number, effect in enumerate(seen)}
        )
        wrong += any(
            not _right(verdicts[str(number)].word, effect) for number, effect in enumerate(truth)
        )
    assert wrong <= binom.ppf(0.999, draws, 0.05)


def _right(said, effect):
    pieces = {
        "holds": effect > 1,
        "contradicted": effect < -1,
        "too small to matter": -1 < effect < 1,
    }
    return said == "cannot be told" or pieces[said]


def test_p_is_the_level_at_which_the_interval_reaches_the_nearest_cut():
    found = estimate(1.3)
    level = p_of(claim(), found)
    assert 1.3 - norm.isf(level / 2) * 0.1 == pytest.approx(1.0)


def test_so_many_heads_as_are_said_to_be_needed_would_tell():
    claims = {name: claim() for name in "abc"}
    found = {name: estimate(effect) for name, effect in zip("abc", (1.12, 0.85, -1.2), strict=True)}
    before = judge(claims, found)["a"]
    assert before.word == "cannot be told" and before.needed is not None and before.needed > 50
    for count, expected in ((before.needed, "holds"), (before.needed - 3, "cannot be told")):
        narrow = {**found, "a": estimate(1.12, 0.1 * math.sqrt(50 / count), count)}
        alone = {
            "a": narrow["a"],
            "b": estimate(1.0, 1),
            "c": estimate(1.0, 1),
        }  # the others tell nothing
        assert judge(claims, alone)["a"].word == expected
    assert judge({"a": claim()}, {"a": estimate(1.0)})["a"].needed is None


def test_power_is_how_often_twice_the_smallest_effect_holds():
    error, draws = 0.4, 2000
    generator = torch.Generator().manual_seed(0)
    seen = (2 + error * torch.randn(draws, generator=generator)).tolist()
    share = sum(word(effect, error=error) == "holds" for effect in seen) / draws
    power = judge({"one": claim()}, {"one": estimate(2, error)})["one"].power
    assert share == pytest.approx(power, abs=4 * math.sqrt(0.25 / draws))


def test_what_cannot_be_asked_keeps_its_reason_and_its_place():
    verdicts = judge(
        {"one": claim(), "two": claim()}, {"one": UserError("no class token."), "two": estimate(2)}
    )
    assert [each.word for each in verdicts.values()] == ["not applicable", "holds"]
    assert verdicts["one"].reason == "no class token."
    few = judge({"one": claim()}, {"one": TooFewError("there are 3 images.", 10)})["one"]
    assert (few.word, few.needed, few.reason) == ("cannot be told", 10, "there are 3 images.")
    assert (
        verdicts["two"].p_holm == verdicts["two"].p
    )  # what was not asked takes no part in Holm's correction
