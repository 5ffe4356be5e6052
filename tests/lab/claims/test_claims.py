"""Every claim on evidence in which it is true, false, and just at the cut: what its verdict promises."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from laws import LAWS, LAYOUT, Drawn
from scipy.stats import binom

from layouts import layout_of
from mhprobe.claims import read_by
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.lab.claims.parts.asking import ask
from mhprobe.lab.claims.parts.claim import all_claims, claims_named
from mhprobe.lab.claims.parts.estimates import goes_with_cost

CLAIMS = sorted(all_claims())
DRAWS = 200
MOST = int(binom.ppf(0.999, DRAWS, 0.05))  # so many of 200 at the most, if each is wrong in 5 %


def verdict(name, effect, seed):
    random = torch.Generator().manual_seed(seed)
    return ask({name: all_claims()[name]}, LAWS[name].draw(effect, random))[name]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_holds_where_it_is_true_and_not_where_it_is_false(name):
    law, matters = LAWS[name], all_claims()[name].margin.size
    if all_claims()[name].shape == "none":  # of 36 heads no claim of nothing can be shown
        assert verdict(name, law.true * matters, seed=1).word == "cannot be told"
    else:
        assert verdict(name, law.true * matters, seed=1).word == "holds"
    assert verdict(name, law.false * matters, seed=1).word == law.word


@pytest.mark.parametrize("name", CLAIMS)
def test_at_the_cut_a_claim_hardly_ever_holds(name):
    claim = all_claims()[name]
    words = [verdict(name, claim.bounds[1], seed).word for seed in range(DRAWS)]
    assert words.count("holds") <= MOST
    if claim.shape == "more":
        assert words.count("contradicted") == 0
    if claim.shape == "at most":
        assert words.count("contradicted") <= MOST


@pytest.mark.parametrize("name", CLAIMS)
def test_the_power_that_is_stated_is_how_often_a_claim_holds(name):
    claim = all_claims()[name]
    effect = 2 * claim.margin.size if claim.shape == "more" else 0.0
    seen = [verdict(name, effect, seed) for seed in range(DRAWS // 2)]
    holds = sum(each.word == "holds" for each in seen) / len(seen)
    assert holds == pytest.approx(
        sum(each.power for each in seen) / len(seen), abs=0.2
    )  # a few images are steps


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_says_what_it_is(name):
    claim = all_claims()[name]
    assert re.fullmatch(r"[A-Z].*\.", claim.says) and claim.margin.because and claim.margin.unit
    assert re.fullmatch(r".+; .+", claim.source)  # where, and of what network
    assert claim.margin.size > 0


def test_every_claim_has_a_law_to_be_tried_on():
    assert set(LAWS) == set(all_claims())
    assert len(all_claims()) >= 50


class Recorder:
    """Evidence that notes which options of ``evidence`` decide what it is asked for."""

    def __init__(self, evidence):
        self.evidence = evidence
        self.asked = set()

    def __getattr__(self, method):
        answer = getattr(self.evidence, method)
        if not callable(answer):
            return answer

        def noted(argument):
            self.asked |= set(OPTIONS.get(method, lambda _: ())(argument))
            return answer(argument)

        return noted


OPTIONS = {
    "path": lambda name: (f"masking.curves.{name}", "draws", "chosen_on"),
    "chosen": lambda masks: ("masking.fill", "draws", "chosen_on"),
    "right": lambda masks: ("masking.fill",),
    "of_images": lambda name: ("maps_of", *MAPS.get(name, ())),
    "second": lambda name: ("second",),
    "run": lambda name: (f"runs.{name}",),
}
KINDS = ("attention", "rollout", "gradient_rollout", "relevance_map")
MAPS = {name: (f"maps.{name}.options",) for name in KINDS} | {"heat": ("maps.rollout.options",)}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_says_which_options_of_the_evidence_it_reads(name):
    """All that it asks for, and nothing else: an option that is typed for nothing is refused by this."""
    claim, law = all_claims()[name], LAWS[name]
    recorder = Recorder(law.draw(law.true * claim.margin.size, torch.Generator().manual_seed(0)))
    claim.estimate(recorder)
    patterns = read_by(claim)
    assert all(uses(patterns, option) for option in recorder.asked)
    of_measures = ("measure.*", "measures_of", "control_of")
    asks = [one for one in patterns if not uses(of_measures, one)]
    assert [one for one in asks if not fnmatch.filter(recorder.asked, one)] == []  # none is idle
    assert uses(patterns, "measures_of") == bool(claim.measures)
    assert not uses(patterns, "measure.nothing.options")


def uses(patterns, option):
    return any(fnmatch.fnmatchcase(option, pattern) for pattern in patterns)


def test_contributing_says_what_a_new_claim_touches():
    (row,) = re.findall(
        r"^\| claim \|.*$",
        (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(),
        re.MULTILINE,
    )
    assert "| 0: a function under `@claim`" in row and "`lab/claims/`" in row
    assert "`tests/lab/claims/laws.py`" in row and "`docs/claims.md`" in row


def test_an_unknown_claim_is_answered_with_the_nearest_name():
    with pytest.raises(
        UserError, match=r"most_heads_go.*did you mean most_heads_can_go.*there are a_fifth"
    ):
        claims_named(["most_heads_go"])
    with pytest.raises(UserError, match="empty list"):
        claims_named([])
    assert list(claims_named(["most_heads_can_go", "entropy_falls_with_depth"])) == sorted(
        ["most_heads_can_go", "entropy_falls_with_depth"]
    )


@pytest.mark.parametrize("name", CLAIMS)
def test_the_page_of_claims_has_a_row_with_what_matters(name):
    page = (Path(__file__).parents[3] / "docs" / "claims.md").read_text()
    matters = f"{all_claims()[name].margin.size:g}".removeprefix("0")
    link = re.escape(name.replace("_", " "))
    assert re.search(rf"^\| \[{link}\]\(\S+\) \| {re.escape(matters)} \|", page, re.MULTILINE)


RANDOM = torch.Generator().manual_seed(5)


def test_narrow_heads_are_compared_within_a_network_that_has_two_widths():
    layout = layout_of(3, 3, head_dim=8)
    sites = (layout.sites[0], dataclasses.replace(layout.sites[1], head_dim=16))
    value = torch.full((6, 6), 0.3) + 0.2 * (torch.arange(6) < 3)[:, None]
    evidence = Drawn(
        RANDOM, {"svcca": {"value": value, "null": torch.zeros(6, 6)}}, layout=HeadLayout(sites)
    )
    assert all_claims()["narrow_heads_are_more_alike"].estimate(evidence).effect == pytest.approx(
        0.2
    )


UNKNOWN = {
    "claim": "heads_of_a_block_are_alike",
    "effect": None,
    "low": None,
    "high": None,
    "count": 0,
}


@pytest.mark.parametrize(
    ("claim", "of_runs", "reason"),
    [
        ("pruned_beats_from_scratch", {"outcomes": lambda: None}, "same test images"),
        ("importance_settles_early", {"tables": {}}, "no heads in its first quarter"),
        (
            "narrow_heads_are_more_alike",
            {"rows": lambda kind: []},
            "no number for heads_of_a_block_are_alike",
        ),
        (
            "narrow_heads_are_more_alike",
            {"rows": lambda kind: [UNKNOWN]},
            "no number for heads_of_a_block_are_alike",
        ),
    ],
)
def test_a_run_that_does_not_say_it_is_no_answer(claim, of_runs, reason):
    tables = {"svcca": {"value": torch.zeros(36, 36), "null": torch.zeros(36, 36)}}
    other = dict.fromkeys(("pruned", "scratch", "training", "wider"), SimpleNamespace(**of_runs))
    verdict = ask({claim: all_claims()[claim]}, Drawn(RANDOM, tables, runs=other, layout=LAYOUT))[
        claim
    ]
    assert verdict.word == "not applicable" and reason in verdict.reason


NO_ENDS = {
    "low": torch.full((36,), torch.nan),
    "high": torch.full((36,), torch.nan),
    "images": torch.tensor(1),
}


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        (
            "early_blocks_have_local_heads",
            {"attention_distance": {**NO_ENDS, "uniform": torch.ones(36)}},
        ),
        (
            "late_heads_look_everywhere",
            {"attention_distance": {**NO_ENDS, "whole": torch.ones(36)}},
        ),
        ("some_heads_are_positional", {"position": NO_ENDS}),
        (
            "most_heads_can_go",
            {
                "ablation_delta": {
                    **NO_ENDS,
                    "drop_low": NO_ENDS["low"],
                    "drop_high": NO_ENDS["high"],
                }
            },
        ),
        (
            "heads_have_class_roles",  # the largest class has one image, and no error
            {
                "logit_attribution": {
                    "own": torch.eye(4)[torch.zeros(36, dtype=torch.long)],
                    "images": torch.tensor(30),
                    "own_error": torch.tensor([torch.nan, 1, 1, 1]).expand(36, 4),
                }
            },
        ),
    ],
)
def test_an_interval_that_is_not_known_excludes_nothing(name, tables):
    (verdict,) = ask(claims_named([name]), Drawn(torch.Generator().manual_seed(0), tables)).values()
    assert verdict.word == "cannot be told"
    shift = 0.5 if name in ("late_heads_look_everywhere", "most_heads_can_go") else 0
    assert (verdict.estimate.low, verdict.estimate.high) == (-shift, 1 - shift)


def test_the_cost_of_heads_on_one_image_is_not_reliable():
    values = torch.randn(36, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = goes_with_cost(LAYOUT, values, {**NO_ENDS, "value": values.flip(0)})
    assert (estimate.low, estimate.high, estimate.needed) == (-1, 1, None)
