"""mhprobe.claims on a small network: every claim gets a verdict, in a table, a figure, the page and two sentences."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
import torch

import mhprobe.claims as command
import runs
from drawn import assert_nothing_is_clipped
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material
from mhprobe.framework.run import launch
from mhprobe.framework.run.needed import refuse_unneeded
from mhprobe.lab.claims.parts import asking
from mhprobe.lab.claims.parts.claim import all_claims, refuse_left_out
from mhprobe.lab.claims.parts.estimates import Estimate, TooFewError
from mhprobe.lab.claims.parts.evidence import Evidence
from mhprobe.lab.claims.parts.judge import Verdict
from mhprobe.pages.several import matrix, several
from mhprobe.report.report import Report
from mhprobe.report.runs.run import read_run, read_runs
from mhprobe.report.runs.words import findings

SMALL = (
    *(
        "+experiment=digits_vit",
        "backbone.embed_dim=24",
        "backbone.depth=3",
        "backbone.num_heads=3",
        "weights=random",
    ),
    *("data.limit_train=64", "data.limit_val=20", "data.limit_test=40", "trainer.accelerator=cpu"),
    *("trainer.precision=32-true", "evidence.control_of=20", "evidence.maps_of=12"),
)
WORDS = {"holds", "contradicted", "too small to matter", "cannot be told", "not applicable"}


def settings(folder, *more):
    return runs.checked("claims", *SMALL, f"cache_dir={folder}", *more)


ENTROPY, MASKED = "claims=[entropy_falls_with_depth]", "claims=[early_blocks_are_needed_most]"
IDLE = [  # claims that are asked, and an option that none of them reads
    (ENTROPY, "evidence.measure.svcca.null_draws=5"),
    (ENTROPY, "evidence.maps_of=3"),
    (ENTROPY, "evidence.draws=2"),
    (ENTROPY, "evidence.runs.training=here"),
    (ENTROPY, "evidence.masking.fill=mean"),
    (MASKED, "evidence.measures_of=9"),
    (MASKED, "evidence.chosen_on=9"),
    ("claims=[compact_heat_is_right]", "evidence.maps.attention.blocks=[0]"),
]
READ = [  # the controls
    ("claims=null", "evidence.runs.training=here"),
    (ENTROPY, "evidence.measures_of=9"),
    (MASKED, "evidence.masking.fill=mean"),
    ("claims=[heads_of_a_block_are_alike]", "evidence.measure.svcca.null_draws=5"),
    ("claims=[importance_settles_early]", "evidence.runs.training=here"),
    ("claims=[compact_heat_is_right]", "evidence.maps_of=3"),
]


@pytest.mark.parametrize(("claims", "option"), IDLE)
def test_an_option_that_no_asked_claim_reads_is_refused_before_the_work(tmp_path, claims, option):
    cfg = runs.composed("claims", *SMALL, claims, option)
    key = option.partition("=")[0]
    with pytest.raises(UserError, match=f"^{key}: does nothing here: no claim .* leave it out"):
        launch.run("claims", cfg, tmp_path, [claims, option])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("claims", "option"), READ)
def test_an_option_that_an_asked_claim_reads_is_taken(claims, option):
    refuse_unneeded(runs.checked("claims", *SMALL, claims, option), [option], (), command.needs)


def test_a_sweep_over_claims_may_give_all_jobs_an_option_of_some():
    typed = [ENTROPY, "evidence.maps_of=3"]
    cfg = runs.checked("claims", *SMALL, *typed)
    sweep = ["claims=[entropy_falls_with_depth],[compact_heat_is_right]", "evidence.maps_of=3"]
    refuse_unneeded(cfg, typed, sweep, command.needs)


@pytest.fixture
def told(monkeypatch):
    """Lines that the command says."""
    lines: list[str] = []
    monkeypatch.setattr("mhprobe.lab.claims.parts.asking.announce", lines.extend)
    return lines


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # forty images of noise are few for nearly every measure
def test_every_claim_gets_a_verdict_and_none_is_dropped(tmp_path, monkeypatch, told):
    monkeypatch.setattr(
        Evidence, "_refuse_guessing", lambda self: None
    )  # so that masks are evaluated, too
    (folder := tmp_path / "run").mkdir()
    command.run(settings(tmp_path), folder)
    rows = {row["claim"]: row for row in runs.rows(folder / "tables" / "claims.csv")}
    assert set(rows) == set(all_claims()) and {row["verdict"] for row in rows.values()} <= WORDS
    refused = {
        name: row["reason"] for name, row in rows.items() if row["verdict"] == "not applicable"
    }
    of_runs = {
        "narrow_heads_are_more_alike",
        "pruned_beats_from_scratch",
        "importance_settles_early",
    }
    assert {name for name, reason in refused.items() if "evidence.runs." in reason} == of_runs
    of_norms = {"high_norm_tokens_draw_attention", "high_norm_tokens_lose_their_place"}
    assert all(refused.values()) and set(refused) <= of_runs | of_norms | {"specialised_heads_stay"}
    assert re.match(
        rf"\d+ of {len(all_claims())} claims hold \(contradicted: \d+, .*not applicable: \d+\)\.",
        told[0],
    )
    assert re.match(r"Of those that hold, these hold for an untrained network, too: [a-z]", told[1])
    page = (folder / "report.html").read_text()
    assert (
        "Findings of the literature, judged on this network" in page
        and "entropy_falls_with_depth" in page
    )
    assert all(sentence in page for sentence in told)
    entry = Report(folder).results.results["claims"]
    assert (entry.kind, entry.drawn, entry.interval) == ("claims", "claims", ["low", "high"])
    (second := tmp_path / "second").mkdir()
    given = [f"evidence.runs.{name}={folder}" for name in ("wider", "pruned", "scratch")]
    asked = (
        "importance_agrees_between_data_sets,narrow_heads_are_more_alike,pruned_beats_from_scratch"
    )
    given += [
        f"claims=[{asked}]",
        "control=null",
        "+data@evidence.second=digits",
        "evidence.second.limit_test=40",
    ]
    command.run(settings(tmp_path, *given), second)
    rows = runs.rows(second / "tables" / "claims.csv")  # compared with itself
    assert [row["claim"] for row in rows] == asked.split(",")
    assert [float(row["effect"]) for row in rows] == pytest.approx([0.5, 0, 0]) and rows[2][
        "over"
    ] == "images"


@pytest.mark.parametrize("names", [["entropy"], ["sinks"], ["entropy", "cka"]])
def test_a_measure_that_is_left_out_and_needed_is_named_before_anything_is_read(tmp_path, names):
    """It was a KeyError, after minutes."""
    cfg = settings(tmp_path, *(f"~evidence.measure.{name}" for name in names))
    verb = "is" if len(names) == 1 else "are"
    with pytest.raises(
        UserError,
        match=rf"^measures: {', '.join(sorted(names))} {verb} left out, and \d+ claim",
    ) as error:
        command.run(cfg, tmp_path / "nowhere")
    assert "\n" not in str(error.value) and not (tmp_path / "images").exists()
    # the control: claims that do not need it are asked
    others = [name for name, of in all_claims().items() if not {*of.measures} & {*names}]
    refuse_left_out({name: all_claims()[name] for name in others}, cfg.evidence.measure)


@pytest.mark.parametrize("name", ["right", "gradient_rollout"])
@pytest.mark.parametrize("kept", [(), ("attention",)])
def test_a_map_that_is_left_out_makes_its_claim_not_applicable(monkeypatch, name, kept):
    parts = "mhprobe.lab.claims.parts.evidence"
    evidence = Evidence.__new__(Evidence)
    evidence.maps = {kind: SimpleNamespace() for kind in kept}
    evidence.counts = SimpleNamespace(maps=4)
    evidence.material = SimpleNamespace(kept=lambda about, find: find())
    monkeypatch.setattr(f"{parts}._refuse_features", lambda of: None)
    areas = torch.ones(4, len(kept), 4)
    monkeypatch.setattr(f"{parts}.areas_of", lambda *_, **__: areas)
    monkeypatch.setattr("mhprobe.ranks.together", lambda find: find())
    with pytest.raises(UserError, match=r"it needs maps.*were left out"):
        evidence.of_images(name)
    if kept:  # the control
        assert torch.equal(evidence.of_images(*kept), torch.ones(4))


def test_a_second_data_set_that_is_not_there_is_named_before_anything_is_measured(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Material, "columns", None)
    given = (
        "claims=[importance_agrees_between_data_sets]",
        "control=null",
        "+data@evidence.second=image_folder",
    )
    with pytest.raises(UserError, match=r"^evidence\.second\.\S*root: .*nowhere does not exist"):
        command.run(
            settings(tmp_path, *given, f"evidence.second.source.root={tmp_path / 'nowhere'}"),
            tmp_path,
        )


@pytest.mark.filterwarnings("ignore")
def test_claims_about_accuracy_do_not_apply_to_features(tmp_path, told):
    asked = "entropy_falls_with_depth,heads_of_a_block_are_alike,heads_have_class_roles,importance_predicts_cost"
    asked += (
        ",most_heads_can_go,one_head_is_enough,rollout_beats_raw_attention,compact_heat_is_right"
    )
    command.run(settings(tmp_path, f"claims=[{asked}]", "backbone.num_classes=0"), tmp_path)
    reasons = {row["claim"]: row["reason"] for row in runs.rows(tmp_path / "tables" / "claims.csv")}
    judged = {"entropy_falls_with_depth", "heads_of_a_block_are_alike"}
    assert {name for name, reason in reasons.items() if not reason} == judged
    assert all(
        re.search("gives features|labels", reason)
        for name, reason in reasons.items()
        if name not in judged
    )


@pytest.mark.filterwarnings("ignore")
def test_a_second_run_measures_nothing_again_and_asks_what_it_is_asked(tmp_path, monkeypatch, told):
    (folder := tmp_path / "run").mkdir()
    asked = "claims=[entropy_falls_with_depth,a_fifth_of_the_heads_goes]"
    command.run(settings(tmp_path, asked), folder)
    first = (folder / "tables" / "claims.csv").read_text()
    assert (
        "an untrained network guesses" not in first
        and "not shown to be better than a guess" in first
    )
    monkeypatch.setattr("mhprobe.framework.questions.material.measure_split", None)
    command.run(settings(tmp_path, asked), folder)
    assert (folder / "tables" / "claims.csv").read_text() == first
    assert told[0].startswith("0 of 2 claims hold") and told[0].endswith("not applicable: 1).")
    with pytest.raises(UserError, match="did you mean entropy_falls_with_depth"):
        command.run(settings(tmp_path, "claims=[entropy_falls]"), folder)


def found(effect, half, heads):
    return Estimate(
        effect, effect - half, effect + half, lambda *_: 0.1, lambda *_: 0.5, "heads", heads
    )


def verdict(word, effect=math.nan):
    estimate = None if math.isnan(effect) else found(effect, 0.02, 36)
    return Verdict(word, estimate, reason="" if estimate else "it has no class token.")


def made(folder, seen):
    """A run's folder with these verdicts."""
    claims = {name: all_claims()[name] for name in seen}
    report = Report(folder)
    rows = asking.verdict_rows(claims, seen, {name: verdict("holds", 0.3) for name in seen})
    report.add({"claims": asking.result_of_claims(rows)})
    (folder / "config").mkdir()
    (folder / "config" / "config.yaml").write_text(f"seed: 0\nname: {folder.name}\n")
    return folder


@pytest.fixture
def folders(tmp_path):
    first = {
        "entropy_falls_with_depth": verdict("holds", 0.4),
        "the_class_token_draws_attention": verdict("not applicable"),
        "importance_beats_random": verdict("cannot be told", 0.01),
    }
    second = {
        "entropy_falls_with_depth": verdict("contradicted", -0.3),
        "a_fifth_of_the_heads_goes": verdict("holds", 0.0),
    }
    return [made(tmp_path / name, seen) for name, seen in (("vit", first), ("swin", second))]


def test_compared_runs_give_the_matrix_of_claims_by_networks(folders):
    result = several(read_runs(folders))["claims"]
    rows = {
        row["claim"]: row
        for row in (
            dict(zip(result.table.columns, each, strict=True)) for each in result.table.rows
        )
    }
    names = [
        column for column in result.table.columns if column not in ("claim", "says", "holds_in")
    ]
    assert len(names) == 2
    assert [rows["entropy_falls_with_depth"][name] for name in names] == ["holds", "contradicted"]
    assert [rows["a_fifth_of_the_heads_goes"][name] for name in names] == ["", "holds"]
    assert rows["entropy_falls_with_depth"]["holds_in"] == 1
    signs = [text.get_text() for text in result.figure.axes[0].texts]
    assert sorted(signs) == sorted(["+", "\N{MINUS SIGN}", "/", "", "·", "", "", "+"])
    assert_nothing_is_clipped(result.figure)


def test_runs_without_claims_have_no_matrix():
    assert matrix({"vit": [], "swin": []}).empty


def test_the_forest_draws_each_effect_in_multiples_of_what_matters(folders):
    claims = {
        name: all_claims()[name]
        for name in ("entropy_falls_with_depth", "a_fifth_of_the_heads_goes")
    }
    seen = {
        "entropy_falls_with_depth": verdict("holds", 0.1),
        "a_fifth_of_the_heads_goes": verdict("holds", 0.9),
    }
    result = asking.result_of_claims(
        asking.verdict_rows(claims, seen, {"entropy_falls_with_depth": verdict("holds", 0.1)})
    )
    (axes,) = result.figure.axes
    dots = {
        line.get_marker(): line.get_xdata()[0]
        for line in axes.get_lines()
        if len(line.get_xdata()) == 1
    }
    assert dots[">"] == 4.0  # ninety times what matters is beyond the end
    ends = [each for bar in axes.collections for line in bar.get_segments() for each in line[:, 0]]
    assert max(ends) == 4.0
    assert dots["o"] == pytest.approx(0.1 / 0.05)
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "a fifth of the heads goes",
        "entropy falls with depth",
    ]
    assert_nothing_is_clipped(result.figure)
    learned = {row[0]: row[result.table.columns.index("learned")] for row in result.table.rows}
    assert learned == {"entropy_falls_with_depth": "no", "a_fifth_of_the_heads_goes": ""}


def test_a_line_says_the_number_or_why_there_is_none():
    claim = all_claims()["entropy_falls_with_depth"]
    assert asking.number(claim, found(0.0834, 0.0333, 72)) == (
        "0.0834 of maximal entropy (95 % 0.0501 to 0.117; matters from 0.05), of 72 heads"
    )
    assert asking.number(claim, UserError("no labels.")) == "not applicable, no labels."
    assert asking.number(claim, TooFewError("9 images.", 10)) == "cannot be told, 9 images."


def test_sentences_say_what_was_found_and_name_the_claims_in_words():
    claims = {
        name: all_claims()[name]
        for name in ("entropy_falls_with_depth", "a_fifth_of_the_heads_goes")
    }
    seen = dict.fromkeys(claims, verdict("holds", 1.0))
    others = "contradicted: 0, too small to matter: 0, cannot be told: 0, not applicable: 0"
    first = f"2 of 2 claims hold ({others})."
    rows = asking.verdict_rows(claims, seen, {"entropy_falls_with_depth": verdict("holds", 1.0)})
    also = "Of those that hold, these hold for an untrained network, too"
    alone = "Hold, and not for an untrained network"
    assert findings(rows) == [
        first,
        f"{alone}: a fifth of the heads goes.",
        f"{also}: entropy falls with depth.",
    ]
    rows = asking.verdict_rows(
        claims, seen, {"entropy_falls_with_depth": verdict("contradicted", 1.0)}
    )
    assert findings(rows)[1:] == [
        f"{alone}: entropy falls with depth; a fifth of the heads goes.",
        f"{also}: none.",
    ]
    without_twin = "There is no untrained twin to compare with."
    assert findings(asking.verdict_rows(claims, seen, {})) == [
        first,
        "They are: entropy falls with depth; a fifth of the heads goes.",
        without_twin,
    ]
    seen["entropy_falls_with_depth"] = verdict("contradicted", -1.0)
    assert (
        findings(asking.verdict_rows(claims, seen, {}))[2]
        == "Contradicted: entropy falls with depth."
    )
    assert findings([]) == []


def test_the_page_of_a_run_reads_its_claims(folders):
    assert {row["claim"] for row in read_run(folders[0]).rows("claims")} == {
        *("entropy_falls_with_depth", "the_class_token_draws_attention", "importance_beats_random"),
    }
