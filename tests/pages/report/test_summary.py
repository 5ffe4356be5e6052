"""The end of a command: the result in words, the heads at both ends, and a link to the page."""

from __future__ import annotations

import io
import json

import torch
from rich.console import Console

from curves import curve
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.masking.parts.trace import totals
from mhprobe.pages.html import finish_report
from mhprobe.pages.looking import sentences
from mhprobe.report.measured import of_curves, verdicts_on_curves
from mhprobe.report.report import Report
from mhprobe.report.runs import words
from mhprobe.report.summary import show
from results import add_measure

LAYOUT = HeadLayout(tuple(HeadSite(f"blocks.{i}.attn", 0, i, 3, 4) for i in range(4)))
CURVES = [
    curve("head_[max]", [0, 2, 4, 6], [0.9, 0.895, 0.893, 0.3], split="validation"),
    curve("head_[max]", [0, 2, 4, 6], [0.9, 0.89, 0.5, 0.3], p=[1, 0.9, 0.001, 0.001]),
]


def written(folder, terminal: bool = False, accuracy: float = 0.9) -> str:
    value = torch.arange(12.0)
    report = Report(folder, LAYOUT)
    add_measure(
        report,
        "gate_importance",
        "per_head",
        {"value": value, "low": value - 0.5, "high": value + 0.5},
    )
    for name, result in of_curves(CURVES, totals(CURVES), LAYOUT, chance=0.1).items():
        report.add({name: result})
    report.add_metrics({"test/accuracy": accuracy, "test/images": 200})
    (folder / "model.json").write_text(
        json.dumps({"class_names": list("abcdefghij"), "data": "digits"})
    )
    finish_report(folder, "mask", LAYOUT)
    text = io.StringIO()
    show(folder, Console(file=text, force_terminal=terminal, width=100, highlight=False))
    return text.getvalue()


def test_it_says_accuracy_heads_curves_and_places(tmp_path):
    text = written(tmp_path)
    assert "Test accuracy is 90.0 % (95 % interval 85.1 to 93.4, 200 images of digits)." in text
    assert "Half of the heads (6 of 12) can go for " in text and "6 of 12 heads off" in text
    row = next(line for line in text.splitlines() if line.startswith("head_[max]"))
    assert " ".join(row.split()[1:3]) == "30.0 %"
    extremes = next(
        line
        for line in text.splitlines()
        if line.startswith("By gate importance the highest heads are ")
    )
    assert (
        "block 3, head 2: 11.0 (10.5 to 11.5)" in extremes
        and "block 0, head 0: 0.00 (-0.50 to 0.50)" in extremes
    )
    assert f"report: {tmp_path / 'report.html'}" in text.splitlines()
    assert "\n\n\n" not in text


def test_places_are_links_on_a_terminal(tmp_path):
    assert f";{(tmp_path / 'report.html').as_uri()}\x1b\\" in written(tmp_path, terminal=True)


def test_a_network_that_guesses_is_not_told_which_heads_can_go(tmp_path):
    """Of ten classes: 10 % of 200 images is guessing, and so is 13 %, whose interval begins at 9.0 %."""
    for accuracy in (0.1, 0.13):
        text = written(tmp_path / str(accuracy), accuracy=accuracy)
        assert (
            "whole network is not told apart from guessing, so this run does not say which heads "
            "can go" in text
        )
        assert "can go for" not in text and "heads off" not in text
        assert "could go" not in text and "Without " not in text
    assert "6 of 12 heads off" in written(
        tmp_path / "better", accuracy=0.2
    )  # its interval begins at 15.0 %


def test_the_log_of_a_network_that_guesses_says_so_once():
    tested = [curve("a", [0, 1, 2], [0.11, 0.1, 0.1], p=[1, 1, 1])]
    (line,) = verdicts_on_curves(totals(tested), [], tested, chance=0.1)
    assert "not told apart from guessing (10.0%)" in line
    (line,) = verdicts_on_curves(totals(tested), [], tested, chance=0.01)
    assert "heads are shown to cost less than one point of accuracy" in line


def test_heads_of_two_attentions_side_by_side_have_names_of_their_own_in_sentences_figures_and_pages():
    sites = [
        HeadSite(f"blocks.{block}.attns.{side}.attn", 0, block, 3, 4)
        for block in range(2)
        for side in range(2)
    ]
    layout = HeadLayout((*sites, HeadSite("blocks.2.attn", 0, 2, 3, 4)))
    rows = [{"site": site.name, "block": site.block, "index": head} for _, head, site in layout]
    for name in (
        words.head_name,
        lambda _, flat: layout.name_of(flat),
        lambda _, flat: sentences.name_of_head(layout, flat),
    ):
        names = [name(rows, flat).replace(",", "") for flat in range(layout.num_heads)]
        assert len({*names}) == layout.num_heads == 15
        assert names[4] == "blocks.0.attns.1.attn head 1" and names[14] == "block 2 head 2"
