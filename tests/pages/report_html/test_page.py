"""report.html: one file, safe with any name, true in its words."""

from __future__ import annotations

import json
import logging
import math
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mhprobe.backbones import layout_of
from mhprobe.errors import UserError
from mhprobe.framework.run.members import members
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.io.written import with_interval
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.pages.html import finish_report, finish_sweep, write_report
from mhprobe.pages.html import page as page_of
from mhprobe.pages.html.kept import Live
from mhprobe.pages.html.page import as_script, prune_command
from mhprobe.report import tables
from mhprobe.report.figures import kinds
from mhprobe.report.ledger import Entry, Ledger
from mhprobe.report.report import Report, Result
from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.run import expand, read_run
from mhprobe.report.tables import Table
from mhprobe.scoring.base import known_scores
from models import tiny_vit
from pages.report_html.conftest import CLASSES, CURVES, EVIL, layout, make_run, row
from results import add_measure, add_rows
from runs import composed

ROOT = Path(__file__).parents[3]
READERS = ROOT / "src" / "mhprobe" / "report" / "runs"
PAGES = ROOT / "src" / "mhprobe" / "pages" / "html"


def listed(folder: Path, entries: dict[str, Entry]) -> None:
    """Put into the ledger what nobody drew."""
    file = folder / "results.json"
    known = Ledger.model_validate_json(file.read_bytes()).results
    file.write_text(Ledger(version=2, results={**known, **entries}).model_dump_json())


class Page(HTMLParser):
    """Every element's attributes, and the text of scripts and of the rest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += data

    @property
    def data(self):
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def page(a_run):
    return Page(write_report(a_run).read_text(encoding="utf-8"))


def test_the_page_fetches_nothing(page):
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            address = attributes.get(name)
            assert not address or address.startswith(("data:", "#", "tables/", "figures/")), (
                tag,
                address,
            )
        assert tag not in ("iframe", "object", "embed", "base", "form")
    (policy,) = [
        a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert not [a for tag, a in page.elements if tag == "script" and "src" in a]


def test_names_from_data_stay_names(page):
    assert page.data["classes"][0]["names"] == CLASSES
    assert not [a for tag, a in page.elements if tag == "img" and a.get("src") == "x"]
    kinds = [a.get("type") for tag, a in page.elements if tag == "script"]
    assert kinds == ["application/json"] + [None] * 6, "a name has ended a script element"
    assert "alert(" not in page.text


def test_what_goes_into_a_script_cannot_leave_it():
    text = as_script({"name": EVIL + "<!-- \u2028\u2029 &"})
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text)["name"] == EVIL + "<!-- \u2028\u2029 &"


def test_numbers_that_json_lacks_are_nulls(tmp_path):
    report = Report(tmp_path / "run", layout())
    value = torch.arange(12.0)
    value[3], value[4] = torch.nan, torch.inf
    add_measure(report, "entropy", "per_head", {"value": value})
    data = Page(write_report(tmp_path / "run").read_text()).data
    assert data["measures"][0]["columns"]["value"][2:6] == [2, None, None, 5]


def test_the_result_is_chosen_on_validation_and_told_on_test(a_run):
    run = read_run(a_run)
    # the control: by its test curve "lucky" would have won
    assert (
        max(atlas.totals(run), key=lambda total: total["heads_within_1_point"])["curve"] == "lucky"
    )
    said = " ".join(words.result_in_words(run, atlas.heads_listed(run), atlas.measures(run)))
    # the curves end at 3 heads, below half
    assert said.startswith("3 of 12 heads can go for 30.0 points of test accuracy (29.0 to 32.0).")
    assert (
        "Without these 3 heads test accuracy is 60.0 % (58.0 to 62.0); with all heads it is 90.0 %"
        in said
    )
    best = "The order wise was the best of the searched ones with as many heads off on validation"
    assert best in said and "within one point" not in said
    assert "Test accuracy is 90.0 % (95 % interval 86.1 to 92.9, 300 images of animals)." in said
    assert "Guessing would give 20.0 %." in said


def test_a_choice_on_the_test_images_is_said_to_flatter(tmp_path):
    report = Report(tmp_path / "run", layout())
    rows = [
        {**r, "chosen_on": "test"} for r in CURVES if (r["curve"], r["split"]) == ("lucky", "test")
    ]
    add_rows(report, "masking_curves", rows, "curves")
    total = {
        "curve": "lucky",
        "split": "test",
        "unmasked": 0.9,
        "area_shared": 0.9,
        "heads_within_1_point": 3.0,
    }
    add_rows(report, "masking_totals", [total], "totals")
    run = read_run(tmp_path / "run")
    assert "which flatters" in " ".join(words.result_in_words(run, [], []))


def halved(folder: Path, validation: list[float], test: list[float], **change: object) -> list[str]:
    """The result of two orders and of random heads that end at 6 of 12 heads: the first two sentences."""
    report = Report(folder, layout())
    points = [
        row(curve, split, step, list(range(step * 2)), accuracy[index] if step == 3 else 0.9)
        for index, curve in enumerate(("greedy", "importance"))
        for split, accuracy in (("validation", validation), ("test", test))
        for step in range(4)
    ]
    mean = [
        row("random", "test", step, [0] * step * 2, 0.9 - 0.1 * step, "mean") for step in (0, 3)
    ]
    add_rows(
        report, "masking_curves", [{**point, **change} for point in [*points, *mean]], "curves"
    )
    add_rows(report, "masking_totals", [{"curve": "greedy", "split": "test"}], "totals")
    add_measure(report, "entropy", "per_head", {"value": torch.arange(12.0)})
    run = read_run(folder)
    return words.result_in_words(run, atlas.heads_listed(run), [])


def test_the_headline_is_what_half_of_the_heads_cost_beside_random_ones(tmp_path):
    """The order is chosen by validation images with so many heads off; no number of heads is found."""
    said = halved(tmp_path / "a", validation=[0.6, 0.8], test=[0.85, 0.7])
    assert said[0] == (
        "Half of the heads (6 of 12) can go for 20.0 points of test accuracy (19.0 to 22.0); "
        "6 random heads cost 30.0."
    )
    assert "The order importance was the best" in " ".join(said)
    # the control: other validation images choose the other order, whatever test images say
    other = halved(tmp_path / "b", validation=[0.8, 0.6], test=[0.85, 0.7])
    assert other[0].startswith("Half of the heads (6 of 12) can go for 5.0 points")


def test_how_many_heads_can_go_is_left_to_a_promise(tmp_path):
    """No number of heads is read from the curve: it would grow as images get fewer."""
    said = " ".join(halved(tmp_path / "a", [0.8, 0.6], [0.85, 0.7]))
    assert "prune.guarantee does, with at least 332 images that chose nothing." in said
    assert "first significantly lower" not in said and "within one point" not in said
    promised = {"points": 1, "confidence": 0.95, "steps": 2, "images": 500, "heads": 2}
    add_rows(Report(tmp_path / "a", layout()), "promise", [promised], "promise")
    run = read_run(tmp_path / "a")
    kept = " ".join(words.result_in_words(run, atlas.heads_listed(run), []))
    assert "No curve tells" not in kept and "2 of 12 heads can go with the promise" in kept


def test_a_gain_is_called_a_gain_and_scores_without_pairs_have_no_change(tmp_path):
    gains = {"difference": 0.012, "difference_low": -0.01, "difference_high": 0.034}
    said = halved(tmp_path / "a", [0.8, 0.6], [0.85, 0.7], **gains)
    assert said[0].startswith(
        "Half of the heads (6 of 12) can go and gain 1.2 points of test accuracy (-1.0 to 3.4); "
    )
    unpaired = dict.fromkeys(gains, "")
    assert halved(tmp_path / "b", [0.8, 0.6], [0.85, 0.7], **unpaired)[0] == (
        "With half of the heads (6 of 12) off test accuracy is 85.0 % (83.0 to 87.0)."
    )


def headline(folder: Path, steps: int, within: float, low: float, up: float = 1.0) -> list[str]:
    """Of a curve whose first step masks ``steps`` heads: what can go, and the head that is missed.

    low: of the interval of the head that is missed most; up: how far each interval reaches above
    its head's value.
    """
    report = Report(folder, layout())
    splits = ("validation", "test")
    points = [
        row("greedy", split, k, list(range(k * steps)), 0.9 - 0.2 * k)
        for split in splits
        for k in range(3)
    ]
    add_rows(report, "masking_curves", points, "curves")
    totals = [
        {"curve": "greedy", "split": split, "heads_within_1_point": within} for split in splits
    ]
    add_rows(report, "masking_totals", totals, "totals")
    rise = torch.arange(12.0).double()
    columns = {"value": rise, "low": rise - 11 + low, "high": rise + up}
    add_measure(report, "alone", "per_head", columns, masks=True)
    run = read_run(folder)
    return words.result_in_words(run, atlas.heads_listed(run), atlas.measures(run))[:2]


def test_the_head_that_is_missed_most_follows_the_headline(tmp_path):
    assert headline(tmp_path / "a", 1, 1.0, 0.5) == [
        "2 of 12 heads can go for 40.0 points of test accuracy (39.0 to 42.0).",
        "Block 2, head 3 is missed most (11 others may be missed as much).",
    ]
    # intervals that do not meet: heads are one apart
    assert headline(tmp_path / "d", 1, 1.0, 10.9, 0.5)[1] == "Block 2, head 3 is missed most."
    # control: a loss that may not rise at all is not missed
    assert "missed" not in " ".join(headline(tmp_path / "b", 1, 0.0, -0.5))


def test_a_step_of_several_heads_says_what_these_cost_together(tmp_path):
    first = headline(tmp_path, 4, 0.0, -0.5)[0]
    assert first == "4 of 12 heads can go for 20.0 points of test accuracy (19.0 to 22.0)."


def test_every_measure_stands_with_its_chance(a_run):
    run = read_run(a_run)
    glance = {
        line["name"]: line for line in words.glance(atlas.heads_listed(run), atlas.measures(run))
    }
    assert "; above that: 12" in glance["gate importance"]["chance"]
    assert glance["gate importance"]["high"] == "block 0, head 2: 3.0 (2.9 to 3.1)"
    assert glance["gate importance"]["about"].startswith("How much the loss of an image moves")
    assert glance["ablation delta"]["chance"] == ""


def beside(value: list[float], wide: float, **control: object) -> dict[str, object]:
    """A measure as the page has it, with an untrained network's heads or chance."""
    ends = {"low": [v - wide for v in value], "high": [v + wide for v in value]}
    nothing = {"twin": None, "chance": None, "reference": "chance"}
    return {"columns": {"value": value}, **ends, **nothing, **control}


def test_the_page_opens_with_the_measure_that_has_most_heads_beyond_its_control():
    value = [1.0, 2.0, 3.0, 4.0]
    sharp = beside(value, 0.1, twin=[1.2, 1.9])
    assert (
        words.beyond_control(sharp) == 3
    )  # the interval of 2.0 ends above 1.9, but begins at it or below
    wide = beside(value, 1.2, twin=[1.2, 1.9])
    assert words.beyond_control(wide) == 1
    assert words.beyond_control(beside(value, 0.1, chance=[0.5] * 4)) == 4
    even = beside(value, 0.1, chance=[9.0] * 4, reference="even attention")
    assert words.beyond_control(even) == 0  # even attention is no control
    assert words.opening([even, wide, sharp, sharp]) == 2  # the first of equals
    assert words.opening([]) == 0


def test_an_interval_that_touches_the_control_is_not_beyond_it():
    touching = beside([2.0, 0.0], 1.0, twin=[1.0, 1.0])
    assert words.beyond_control(touching) == 0
    assert words.beyond_control(beside([2.0, 0.0], 0.99, twin=[1.0, 1.0])) == 2


def test_four_kinds_of_figures_are_shown_and_a_caption_stands_once():
    kinds_of = ["agreement", "per_head", "per_head", "by_depth", "pairwise", "curves"]
    figures = [
        {"name": f"f{n}", "result": f"f{n}", "drawn": kind, "caption": f"How to read {kind}."}
        for n, kind in enumerate(kinds_of)
    ]
    shown = page_of._shown_first(figures, opens="f2")
    assert [figure["name"] for figure in shown] == ["f5", "f2", "f4", "f3", "f0", "f1"]
    assert [figure["read_as"] for figure in shown] == ["", "", "", "", "", "f2"]


def test_heads_above_chance_are_counted_where_a_test_says_so():
    """Of heads at chance half lie above it, and two of forty outside of their 95 % intervals: neither is a finding."""
    error, level = 0.1, 1.0
    value = level + error * torch.randn(
        40, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    value[:3] = level + 6 * error
    measure = {
        **{"name": "entropy", "about": "", "label": "entropy", "twin": None, "freedom": 999},
        **{"columns": {"value": value.tolist()}, "chance": [level] * 40, "reference": "chance"},
        **{"low": (value - 1.962 * error).tolist(), "high": (value + 1.962 * error).tolist()},
    }
    assert (
        int((value > level).sum()) > 15 and int(((value - level).abs() > 1.962 * error).sum()) > 3
    )
    heads = [{"block": 0, "index": number} for number in range(40)]
    (line,) = words.glance(heads, [measure])
    assert line["chance"] == "chance gives 1; 3 of 40 heads lie above it and 0 below (Holm, 5 %)"
    measure |= {"low": None, "high": None, "freedom": None}
    (line,) = words.glance(heads, [measure])
    assert line["chance"] == "chance gives 1"  # without an interval nothing is counted


def test_even_attention_is_a_reference_and_never_chance(tmp_path):
    """Even attention has the largest entropy, so that no head above it is no finding."""
    alone = Report(tmp_path, layout())
    value = torch.linspace(1.0, 2.0, 12)
    columns = {"value": value, "low": value - 0.1, "high": value + 0.1}
    columns |= {"standard_error": torch.full((12,), 0.05), "images": torch.full((12,), 100.0)}
    even = torch.full((12,), 2.83)
    add_measure(alone, "entropy", "per_head", {**columns, "uniform": even}, "entropy (nats)")
    add_measure(alone, "similarity", "per_head", {**columns, "null": even}, "similarity")
    page = finish_report(tmp_path, "probe", layout())
    run = read_run(tmp_path)
    lines = {
        line["name"]: line for line in words.glance(atlas.heads_listed(run), atlas.measures(run))
    }
    assert lines["entropy"]["chance"] == "even attention would give 2.83"
    assert lines["similarity"]["chance"].startswith("chance gives 2.83")
    assert [one["reference"] for one in atlas.measures(run)] == ["even attention", "chance"]
    assert "even attention would give 2.83" in page.read_text()


def test_all_points_of_curves_keep_their_heads(page):
    lines = {(line["curve"], line["split"]): line for line in page.data["lines"]}
    assert [point["masked"] for point in lines["wise", "test"]["points"]] == [
        "",
        "0",
        "0 1",
        "0 1 2",
    ]
    assert lines["random", "test"]["averaged"] and not lines["wise", "test"]["averaged"]
    assert [point["masked"] for point in page.data["repeats"]] == ["", "9", "9 10"]


def test_the_maps_of_heads_are_small_and_on_their_own_scale(page):
    *_, maps = page.data["maps"]
    assert maps["titles"] == [f"image {image}: {EVIL}, taken for cat" for image in (0, 5)]
    assert sorted(maps["heads"]) == ["10", "11", "8", "9"]  # of block 2
    for grids in maps["heads"].values():
        assert [(len(grid), len(grid[0])) for grid in grids] == [(14, 14)] * 2
        assert all("/" in "".join(grid) for grid in grids)  # the highest level


def test_attention_is_of_who_was_asked_and_shows_the_images(page):
    first, *_ = asked = page.data["maps"][:-1]
    assert [one["name"] for one in asked] == [
        f"attention of {who}"
        for who in ("the class token", "the registers (mean)", "the patch in the middle")
    ]
    assert len(first["heads"]) == 12 and all(len(grids) == 2 for grids in first["heads"].values())
    assert (
        all(url.startswith("data:image/png;base64,") for url in first["pictures"])
        and len(first["pictures"]) == 2
    )


def test_the_figures_of_a_page_and_its_live_one_are_made_once(tmp_path, monkeypatch):
    folder, made, embed = make_run(tmp_path / "run"), [], page_of.embedded_pictures
    monkeypatch.setattr(page_of, "kept_network", lambda name, run: Live({}, {}))
    monkeypatch.setattr(
        page_of, "embedded_pictures", lambda pictures: made.append(1) or embed(pictures)
    )
    write_report(folder)
    assert len(made) == 1 and (folder / "live.html").is_file()


def test_a_single_random_order_is_not_said_to_be_searched_for(tmp_path):
    report = Report(make_run(tmp_path / "run"), layout())
    once = [row("random", "test", k, list(range(k)), 0.9, 0) for k in range(3)]
    total = {
        "curve": "random",
        "split": "test",
        "unmasked": 0.9,
        "area_shared": 0.9,
        "heads_within_1_point": 2.0,
    }
    add_rows(report, "masking_curves", once, "curves")
    add_rows(report, "masking_totals", [total], "totals")
    run = read_run(tmp_path / "run")
    assert [line["averaged"] for line in atlas.lines(run)] == [True] and words.half(run, 12) is None
    assert "random" not in " ".join(words.result_in_words(run, atlas.heads_listed(run), []))


def test_damaged_attention_is_named_and_the_page_is_made(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "attention.safetensors").write_bytes(b"damaged")
    page = Page(write_report(folder).read_text())
    assert "attention.safetensors: " in page.text and len(page.data["maps"]) == 1


def test_a_sweep_ends_with_its_jobs_side_by_side(tmp_path):
    assert finish_sweep(tmp_path) is None
    make_run(tmp_path / "0")
    assert finish_sweep(tmp_path) is None  # one job is no comparison
    make_run(tmp_path / "1", seed=1)
    page = finish_sweep(tmp_path)
    assert page == tmp_path / "report.html" and "2 runs side by side" in page.read_text()
    (tmp_path / "tables").mkdir()  # of the sweeper
    (tmp_path / "multirun.yaml").write_text("")
    assert [run.name for run in expand([tmp_path])] == ["0", "1"]


def test_a_sweep_whose_page_cannot_be_made_does_not_fail(tmp_path, caplog):
    for job in "01":
        (tmp_path / job).mkdir()
        (tmp_path / job / "metrics.json").write_text("damaged")
    (tmp_path / "report.html").mkdir()
    assert finish_sweep(tmp_path) is None
    assert "python -m mhprobe.report" in caplog.text


def test_the_history_has_a_number_per_head_and_step(page):
    (history,) = page.data["history"]
    assert history["steps"] == [0, 10, 20, 30] and {
        len(values) for values in history["values"]
    } == {12}


def test_the_prune_command_names_the_runs_own_weights(a_run):
    command = prune_command(read_run(a_run))
    words = shlex.split(command["before"] + "3,7" + command["after"])
    assert words[:3] == ["python", "-m", "mhprobe.prune"]
    assert (
        f"weights={a_run.resolve() / 'model.safetensors'}" in words
        and "+experiment=digits_vit" in words
    )
    assert not [word for word in words if word.startswith("measure")]
    assert words[-1].endswith("=[3,7]")


def test_what_was_seen_during_training_does_not_stand_for_the_end(tmp_path):
    folder = make_run(tmp_path / "run")
    for end in ("epoch_005", "start", "step_000100"):
        add_measure(
            Report(folder, layout()),
            "svcca",
            "pairwise",
            {"value": torch.eye(12)},
            end=f"_{end}",
            during=end,
        )
    data = Page(write_report(folder).read_text()).data
    assert [pair["key"] for pair in data["pairs"]] == ["svcca"]
    assert "svcca_start" in {table["name"] for table in data["tables"]}


def test_the_prune_command_is_one_that_prune_takes(a_run):
    command = prune_command(read_run(a_run))
    given = shlex.split(command["before"] + "3,7" + command["after"])[3:]
    assert composed("prune", *given).prune.heads == [3, 7]


def test_the_prune_command_keeps_what_made_the_network_and_judged_it(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "model.safetensors").unlink()
    own = [
        "backbone.name=deit_tiny_patch16_224",
        "backbone.checkpoint=my.pth",
        "backbone.num_classes=0",
    ]
    for weights, overrides in (("some.safetensors", [own[2]]), (None, own)):
        config = {"weights": weights, "backbone": {"checkpoint": None if weights else "my.pth"}}
        (folder / "config" / "config.yaml").write_text(json.dumps(config))
        given = [
            *overrides,
            "score=knn",
            "masking=six_curves",
            *([f"weights={weights}"] if weights else []),
        ]
        (folder / "config" / "overrides.yaml").write_text(json.dumps(given))
        command = prune_command(read_run(folder))
        words = shlex.split(command["before"] + "3,7" + command["after"])[3:]
        assert words == [
            *overrides,
            "score=knn",
            *([f"weights={weights}"] if weights else []),
            *words[-2:],
        ]
        assert composed("prune", *words).backbone.num_classes == 0


@pytest.mark.parametrize("name", known_scores())
def test_a_page_calls_accuracy_what_the_score_measures(name, tmp_path):
    scored = known_scores()[name].scored
    folder = make_run(tmp_path / "run")
    report = Report(folder, layout())
    lost = {"loss": scored.lost} if scored.lost else {}
    add_rows(report, "masking_curves", CURVES, "curves", label=scored.right, columns=lost)
    run = read_run(folder)
    said = " ".join(words.result_in_words(run, atlas.heads_listed(run), []))
    assert f"3 of 12 heads can go for 30.0 points of test {scored.right} (29.0 to 32.0)." in said
    stage = {
        "stage": "dense",
        "accuracy": 0.9,
        "low": 0.8,
        "high": 0.95,
        "parameters": 7,
        "score": name,
    }
    stage |= {"difference": 0.0, "difference_low": -0.01, "difference_high": 0.01, "p": 1.0}
    change = {"difference": -0.05, "difference_low": -0.081, "difference_high": -0.02, "p": 0.0013}
    stages = [stage, {**stage, **change, "stage": "pruned", "accuracy": 0.85}]
    add_rows(report, "pruning", stages, "stages", label=scored.right)
    promised = {"points": 2, "confidence": 0.95, "heads": 2, "steps": 2, "images": 50}
    add_rows(report, "promise", [promised], "promise")
    run = read_run(folder)
    said = " ".join(words.result_in_words(run, atlas.heads_listed(run), []))
    assert f"Test {scored.right} goes from 90.0 % (80.0 to 95.0) to 85.0 %" in said
    assert (
        ", -5.0 points on the same images (95 % -8.1 to -2.0; McNemar's p = 0.0013), parameters "
        "from 7 to 7." in said
    )
    first = (
        f"Pruned test {scored.right} is 85.0 % (80.0 to 95.0), 5.0 points below the dense network"
    )
    assert said.startswith(f"{first} (2.0 to 8.1, paired).")
    assert "heads can go for" not in said  # that is of an order, and this run was asked to prune
    assert f"that new images lose at most 2 points of {scored.right} (50 calibration images" in said
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert (
        page.data["scored"] == scored.right
        and f"{scored.right[1:]} as heads are switched off" in page.text
    )
    # guessing has a chance of a label alone, and only a cross-entropy is in nats
    assert (page.data["chance"] is not None) == (name == "labels")
    assert page.data["lost"] == ([scored.lost, ""] if scored.lost else ["loss", "nats"])


@pytest.mark.parametrize(
    ("gone", "going", "none"),
    [
        ({"heads": 2}, "2 of 12 heads can go", "No head can go"),
        ({"neurons": 5}, "5 neurons can go", "No neuron can go"),
        (
            {"heads": 0, "neurons": 5},
            "0 of 12 heads and 5 neurons can go",
            "No head or neuron can go",
        ),
    ],
)
def test_a_promise_names_the_units_that_can_go(tmp_path, gone, going, none):
    for steps, says in ((2, going), (0, none)):
        folder = make_run(tmp_path / str(steps))
        promised = {"points": 2, "confidence": 0.95, "steps": steps, "images": 50, **gone}
        add_rows(Report(folder, layout()), "promise", [promised], "promise")
        run = read_run(folder)
        assert [
            line
            for line in words.result_in_words(run, atlas.heads_listed(run), [])
            if line.startswith(f"{says} with the promise")
        ]


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_figure_says_how_to_read_it(kind):
    text = Result(drawn=kind).how_to_read
    assert text.endswith(".") and len(text) > 60


# the figure, which of two heads is the more alike, and the list of the page that holds the measure
KINDS = {
    "per_head": ("A square per head", "measures"),
    "pairwise": ("How much", "pairs"),
    "pairwise_layers": ("How", None),
}


@pytest.mark.parametrize("alike", ["largest", "smallest"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_name_says_what_a_measure_is(kind, alike, tmp_path):
    """The name is made of those of two kinds of figures and of two measures, one of which is a distance."""
    heads, name = layout(), "hamming_spectrum_patching"
    size = {"per_head": (12,), "pairwise": (12, 12), "pairwise_layers": (3, 3)}[kind]
    value = torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    report = Report(tmp_path / "run", heads)
    columns = {"value": value, "chance": torch.tensor(0.5)}
    about = {"alike": alike, "larger": "the heads differ more", "unit": "bits"}
    add_measure(report, name, kind, columns, "bits that differ (bits)", **about)
    add_measure(
        report, "distance", "pairwise", {"value": torch.eye(12)}, "likeness"
    )  # the control: no distance
    entry = report.results.results[name]
    own = kinds()[kind].caption
    assert (entry.kind, entry.caption, entry.drawn) == (kind, own, kind)
    assert (entry.label, entry.unit, entry.larger) == (
        "bits that differ (bits)",
        "bits",
        "the heads differ more",
    )
    page = Page(write_report(tmp_path / "run").read_text())
    assert own.split(".")[0] in page.text
    for other in ("spectrum", "patching"):
        assert kinds()[other].caption.split(".")[0] not in page.text
    nearest = {pair["key"]: pair["nearest"] for pair in page.data["pairs"]}
    assert nearest == {"distance": "largest"} | ({name: alike} if kind == "pairwise" else {})
    assert [measure["key"] for measure in page.data["measures"]] == (
        [name] if kind == "per_head" else []
    )


@pytest.mark.parametrize(
    "name", ["circuit_spectrum", "activation_patching", "attribution_patching"]
)
def test_measures_called_as_a_figure_have_captions_of_their_own(name, tmp_path):
    """All three showed the caption of another figure, whose name theirs ends with."""
    report = Report(tmp_path, layout())
    add_measure(report, name, "per_head", {"value": torch.rand(12)})
    assert report.results.results[name].caption.startswith(
        "A square per head, blocks from input to output."
    )


def test_readers_and_pages_look_at_no_name():
    """What a result is, is in its entry: no part of a name, no prefix, no list of names of results."""
    for file in (*READERS.rglob("*.py"), *PAGES.rglob("*.py"), *PAGES.glob("*.js")):
        text = file.read_text()
        found = re.findall(
            r"(tables|labels)\.get\(|(name|key|column)\.(ends|starts)with|in (name|key)\b|=> key ===",
            text,
        )
        found += re.findall(
            r"[\"'](?:low|high|null|uniform|standard_error|random_init)[\"'] in |NOT_A_VALUE", text
        )
        assert not found, (file.name, found)
    every = set(members("measure")) - {"position", "confidence"}  # words of other things, too
    assert {"svcca", "entropy"} <= every
    for file in (*READERS.rglob("*.py"), *PAGES.rglob("*.py"), *PAGES.glob("*.js")):
        assert not [name for name in every if re.search(rf"[\"']{name}[\"']", file.read_text())], (
            file.name
        )


@pytest.mark.usefixtures("whole_pictures")
def test_a_large_run_stays_under_8_megabytes(tmp_path):
    heads = HeadLayout(tuple(HeadSite(f"blocks.{b}.attn", 0, b, 12, 64) for b in range(12)))
    folder = tmp_path / "large"
    report = Report(folder, heads)
    noise = np.random.default_rng(0)
    (folder / "figures").mkdir(parents=True)
    drawn = {}
    for number in range(24):  # noise is what no compression makes smaller
        pixels = noise.integers(0, 255, (400, 400, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "figures" / f"f{number:02}.png")
        drawn[f"f{number:02}"] = Entry(
            kind="figure", title=f"f{number:02}", figure=f"figures/f{number:02}.png"
        )
    value = torch.rand(144, 144, dtype=torch.float64)
    from mhprobe.report import tables

    for name in ("svcca", "cka", "cca", "pwcca", "procrustes", "js_distance"):
        columns = {f"c{i}": value + i for i in range(6)}
        report.add({name: Result(tables.pairwise(heads, {"value": value + value.T, **columns}))})
    for name in range(20):
        table = tables.per_head(heads, {"value": value[0], "low": value[1], "high": value[2]})
        report.add({f"m{name}": Result(table)})
    order = list(range(144))
    rows = [row("c", s, k, order[:k], 0.5) for s in ("validation", "test") for k in order]
    add_rows(report, "masking_curves", rows, "curves")
    listed(folder, drawn)
    path = write_report(folder)
    assert path.stat().st_size < 8e6
    page = Page(path.read_text())
    assert len(page.data["pairs"]) == 6 and len(page.data["measures"]) == 20
    assert (
        "There was no room for this figure" in page.text and "Too large for this page" in page.text
    )


def test_a_damaged_table_is_named_and_the_others_are_shown(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "tables" / "svcca.csv").write_text("head_a,head_b,value\n1,2\n")
    (folder / "metrics.json").write_text("{")
    page = Page(write_report(folder).read_text())
    assert (
        "tables/svcca.csv, row 1: 2 fields, expected 3" in page.text and "metrics.json" in page.text
    )
    assert len(page.data["measures"]) == 2


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no metrics"):
        write_report(tmp_path)


def test_a_page_that_cannot_be_made_does_not_fail_the_run(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    assert finish_report(tmp_path / "file" / "nowhere", "train", layout()) is None
    assert "python -m mhprobe.report" in caplog.text


def test_a_finished_run_says_what_was_run(tmp_path):
    folder = make_run(tmp_path / "run")
    page = Page(finish_report(folder, "train", layout()).read_text())
    assert "python -m mhprobe.train +experiment=digits_vit 'measure=[gate_importance]'" in page.text
    assert f"torch {torch.__version__.partition('+')[0]}" in page.text and "cores" in page.text
    again = Page(write_report(folder).read_text())
    assert (
        "python -m mhprobe.train" in again.text
    )  # kept in the folder, whoever makes the page again


def test_a_run_without_tables_of_heads_knows_them_from_its_facts(tmp_path):
    report = Report(tmp_path / "run", layout())
    add_rows(report, "masking_curves", CURVES, "curves")
    assert Page(write_report(tmp_path / "run").read_text()).data["heads"] == []
    data = Page(finish_report(tmp_path / "run", "mask", layout()).read_text()).data
    assert len(data["heads"]) == 12 and data["heads"][5] == {
        **{"id": 5, "site": "blocks.1.attn", "stage": 0, "block": 1, "index": 1}
    }


def test_the_command_makes_the_page_again(a_run):
    command = [sys.executable, "-m", "mhprobe.report"]
    done = subprocess.run([*command, str(a_run)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(a_run.resolve() / "report.html")
    wrong = subprocess.run([*command, str(a_run / "tables")], capture_output=True, text=True)
    assert (
        wrong.returncode == 2
        and wrong.stderr.startswith("mhprobe: report: ")
        and wrong.stderr.count("\n") == 1
    )


def test_the_folder_of_a_sweep_stands_for_its_jobs(tmp_path, a_run):
    for job in ("0", "10", "2"):
        (tmp_path / "sweep" / job).mkdir(parents=True)
        (tmp_path / "sweep" / job / "metrics.json").write_text("{}")
    (tmp_path / "sweep" / "3").mkdir()  # it failed
    assert [run.name for run in expand([tmp_path / "sweep"])] == ["0", "2", "10"]
    assert expand([a_run, tmp_path / "nothing"]) == [a_run, tmp_path / "nothing"]


@pytest.mark.usefixtures("whole_pictures")
def test_a_run_of_144_heads_with_many_figures_stays_below_8_mb(tmp_path):
    folder = make_run(tmp_path / "large", heads=layout(12, 12))
    noise, report, drawn = np.random.default_rng(0), Report(folder), {}
    for number in range(12):  # half a megabyte each, as no figure is
        pixels = noise.integers(0, 255, (400, 430, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "figures" / f"noise_{number}.png")
        drawn[f"noise_{number}"] = Entry(
            kind="figure", title=f"noise {number}", figure=f"figures/noise_{number}.png"
        )
        pairs = [[a, b, 0.1 * a + number, 0.5] for a in range(144) for b in range(a)]
        report.add(
            {
                f"pairs_{number}": Result(
                    Table(["head_a", "head_b", "value", "null"], pairs, "pairwise")
                )
            }
        )
    listed(folder, drawn)
    size = write_report(folder).stat().st_size
    assert 3_000_000 < size < 8_000_000  # it is full, and the rest is named
    text = (folder / "report.html").read_text()
    assert "noise 11" in text or "noise_11" in text


def test_when_and_how_long_is_said_in_plain_units(tmp_path):
    folder = make_run(tmp_path / "run")
    for seconds, said in ((135, "2 min 15 s, "), (7205, "2 h 5 s, "), (0, "0 s, "), (None, "")):
        facts = {"finished": "2026-11-22T06:38:17+02:00", "seconds": seconds}
        (folder / "run.json").write_text(json.dumps(facts))
        assert (
            dict(page_of.facts_shown(read_run(folder)))["Time"]
            == f"{said}until 2026-11-22 04:38 UTC"
        )


def test_speed_and_faithful_maps_are_said_in_words(tmp_path):
    rows = [
        {
            "removed": removed,
            "device": "a CPU",
            "batch": batch,
            "speedup": 1.25,
            "speedup_low": low,
            "speedup_high": high,
        }
        | {"predicted": 1.5}
        for removed in ("this mask", "50 % removed")
        for batch, low, high in ((1, 1.0, 1.1), (16, 1.2, 1.3))
    ]
    report = Report(tmp_path, layout())
    add_rows(report, "speed", rows, "speed")
    areas = {
        "deletion": 0.25,
        "insertion": 0.5,
        "random_deletion": 0.375,
        "random_insertion": 0.375,
    }
    judged = [
        {"image": image, "label": "a", "predicted": "a", "kind": "rollout", **areas}
        for image in (0, 1)
    ]
    add_rows(report, "maps", judged, "maps")
    said = words.result_in_words(read_run(tmp_path), [], [])
    assert said == [
        "rollout: deletion 0.25 (random orders 0.38; lower is better), insertion 0.50 (random "
        "orders 0.38; higher is "
        "better), mean over 2 maps.",
        "At batch 16 the pruned network is 1.25 times as fast as the dense one (1.20 to 1.30 over "
        "rounds) on a CPU; "
        "its FLOPs predict 1.50.",
    ]
    unsure = [row | {"speedup_low": -np.inf, "speedup_high": np.inf} for row in rows]
    add_rows(report, "speed", unsure, "speed")
    assert (
        "dense one (too few rounds for an interval) on a CPU"
        in words.result_in_words(read_run(tmp_path), [], [])[1]
    )


def test_references_that_are_one_number_leave_the_menu_and_stand_in_the_legend(tmp_path):
    report = Report(tmp_path, layout())
    columns = {
        "value": torch.arange(12.0),
        "share": torch.arange(12.0) / 12,
        "whole": torch.full((12,), 117.25),
    }
    add_measure(report, "entropy", "per_head", columns)
    (measure,) = atlas.measures(read_run(tmp_path))
    assert (list(measure["columns"]), measure["constants"]) == (
        ["value", "share"],
        {"whole": 117.25},
    )


def test_neurons_are_strips_of_a_block_beside_the_squares_of_its_heads(tmp_path):
    both = layout_of(tiny_vit(), {"head", "neuron"})  # 2 blocks of 3 heads and 96 neurons
    value = torch.randperm(both.num_heads, generator=torch.Generator().manual_seed(0)).double()
    report = Report(tmp_path, both)
    report.add({"fisher": Result(tables.per_head(both, {"value": value}), label="fisher")})
    run = read_run(tmp_path)
    (measure,) = atlas.measures(run)
    assert len(atlas.heads_listed(run)) == 6 and measure["columns"]["value"] == value[:6].tolist()
    for block, strip in enumerate(measure["neurons"]):
        own = value[both.span(2 + block)]
        assert (strip["block"], strip["count"], len(strip["bins"])) == (block, 96, 64)
        assert strip["lowest"] == [int(own.argmin()), own.min()] and strip["highest"] == [
            int(own.argmax()),
            own.max(),
        ]
        expected = own.sort().values
        assert strip["bins"][0] == expected[:2].mean() and strip["bins"][-1] == expected[-1:].mean()
    assert 'id="neurons"' in write_report(tmp_path).read_text()


def test_a_table_without_a_column_of_values_has_no_strips(tmp_path):
    for units in ({"head"}, {"head", "neuron"}):  # as that of learned gates
        both = layout_of(tiny_vit(), units)
        table = tables.per_head(both, {"gate": torch.rand(both.num_heads, dtype=torch.float64)})
        assert atlas.strips(table) == []


def test_numbers_are_rounded_as_people_write_them(tmp_path):
    report = Report(tmp_path, layout())
    value = torch.linspace(103, 117.3, 12)
    for name, half in (("attention_distance", 10), ("entropy", 0.1), ("confidence", 0)):
        add_measure(
            report, name, "per_head", {"value": value, "low": value - half, "high": value + half}
        )
    run = read_run(tmp_path)
    wide, narrow, none = words.glance(atlas.heads_listed(run), atlas.measures(run))
    assert wide["high"].endswith(": 120 (110 to 130)") and wide["low"].endswith(": 100 (93 to 110)")
    # an interval that is narrower than two digits show: once "120 (120 to 120)"
    assert narrow["high"].endswith(": 117.3 (117.2 to 117.4)") and narrow["low"].endswith(
        ": 103.0 (102.9 to 103.1)"
    )
    assert none["high"].endswith(": 120") and none["low"].endswith(": 100")


def test_an_interval_is_not_written_wider_than_it_is(tmp_path):
    # two digits tell these ends apart, but "3.5 (3.5 to 3.6)" would be three times as wide
    report = Report(tmp_path, layout())
    ends = {"value": 3.5447, "low": 3.5274, "high": 3.5621}
    spread = torch.linspace(0, 11, 12)
    add_measure(report, "entropy", "per_head", {name: end + spread for name, end in ends.items()})
    run = read_run(tmp_path)
    (entropy,) = words.glance(atlas.heads_listed(run), atlas.measures(run))
    assert entropy["low"].endswith(": 3.54 (3.53 to 3.56)") and entropy["high"].endswith(
        ": 14.54 (14.53 to 14.56)"
    )


def test_rounding_is_no_interval():
    """A value that all images share, as the entropy of even attention, once had 17 digits, and so had its ends."""
    assert (
        with_interval(0.3, 0.3, 0.1 + 0.2) == "0.3"
        and with_interval(0.7, 0.7 - 2e-16, 0.7 + 2e-16) == "0.7"
    )


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("heads_masked", "7", "column masked names 2, heads_masked says 7"),
        ("accuracy", "1.798", "accuracy is 1.798"),
    ],
)
def test_a_curve_that_contradicts_itself_is_not_shown(tmp_path, column, value, reason):
    """The same run unchanged is read whole."""
    path = make_run(tmp_path / "run") / "tables" / "masking_curves.csv"
    assert not read_run(tmp_path / "run").unread
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    at, masked = header.index(column), header.index("masked")
    next(cells for cells in rows if len(cells[masked].split()) == 2)[at] = value
    path.write_text("\n".join(",".join(cells) for cells in [header, *rows]) + "\n")
    run = read_run(tmp_path / "run")
    assert not run.rows("curves") and any(reason in problem for problem in run.unread)


def test_a_head_is_drawn_by_class_but_not_its_p_nor_what_all_heads_share(tmp_path):
    """A bar of p = 1 was the longest; the ledger called it nats of loss."""
    drop = torch.linspace(-0.5, 0.5, 24, dtype=torch.float64).view(-1, 2)
    columns = {
        "value": drop[:, 0],
        "by_class": drop,
        "class_p_holm": drop.abs(),
        "class_accuracy": drop * 0 + 0.9,
    }
    heads = HeadLayout((HeadSite("blocks.0.attn", 0, 0, num_heads=12, head_dim=8),))
    axes = {name: ["a", "b"] for name in ("by_class", "class_p_holm", "class_accuracy")}
    report = Report(tmp_path, heads)
    add_measure(
        report,
        "ablation_delta",
        "per_head",
        columns,
        "rise of the loss (nats)",
        axes=axes,
        along=AblationDelta.along,
        masks=True,
    )
    report.add_metrics({"test/accuracy": 0.9, "test/images": 300})
    entries = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (
        entries["ablation_delta"]["label"] == "rise of the loss (nats)"
        and entries["ablation_delta"]["masks"]
    )
    assert not any({"unit", "masks"} & set(entries[f"ablation_delta_{name}"]) for name in axes)
    of_axes = [entries[f"ablation_delta_{name}"] for name in axes]
    said = [(entry["label"], entry["larger"]) for entry in of_axes]
    assert said == [AblationDelta.along[name] for name in axes]
    assert [larger.startswith("nothing: ") for _, larger in said] == [False, True, False]
    write_report(tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert [shown["name"] for shown in page.data["classes"]] == ["ablation delta by class"]


def test_the_page_of_claims_names_them_in_words_and_folds_what_cannot_be_told(tmp_path):
    report = Report(tmp_path, layout())
    numbers = {"effect": 0.25, "low": 0.2, "high": 0.3, "matters": 0.1, "count": 12}
    about = {"shape": "more", "unit": "of a share", "over": "heads", "untrained": "", "needed": ""}
    known = {"learned": "", "reason": "", "source": "Somebody 2020"}
    rows = [
        {"claim": "a", "says": "Heads are alike.", "verdict": "holds", **numbers, **about, **known},
        {"claim": "b", "says": "Heads are wide.", "verdict": "cannot be told"}
        | (numbers | about | known | {"needed": 40}),
        {"claim": "c", "says": "Heads go.", "verdict": "not applicable"}
        | (dict.fromkeys(numbers, math.nan) | about | known | {"reason": "it has one head."}),
    ]
    add_rows(report, "claims", rows, "claims")
    page = finish_report(tmp_path, "claims", layout()).read_text()
    section = page.partition('<section id="claims"')[2].partition("</section>")[0]
    open_part, *folded = section.split("<details")
    assert "Heads are alike." in open_part and "0.25 (0.2 to 0.3; matters from 0.1)" in open_part
    assert [("Heads are wide." in part, "Heads go." in part) for part in folded] == [
        (True, False),
        (False, True),
    ]
    assert "40 heads would tell" in folded[0] and "it has one head." in folded[1]
