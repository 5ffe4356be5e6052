"""Runs side by side: differences with intervals, and which heads changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.pages.html import write_comparison
from mhprobe.pages.html.compare import difference
from mhprobe.report import __main__ as command
from mhprobe.report.measured import Figures, of_measure
from mhprobe.report.report import Report, Result
from mhprobe.report.runs.run import read_runs
from mhprobe.report.tables import Table
from mhprobe.stats.significance import wilson
from pages.report_html.conftest import CURVES
from pages.report_html.test_page import Page
from results import add_rows, measure


def test_the_interval_of_a_difference_is_newcombes():
    """His example (1998, table II): 56 of 70 against 48 of 80 by method 10 is 0.0524 to 0.3339."""
    a, b = (
        (k / n, *(x.item() for x in wilson(torch.tensor(k), torch.tensor(n))))
        for k, n in ((48, 80), (56, 70))
    )
    assert difference(a, b) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_the_report_of_a_sweep_compares_its_jobs(a_run, other_run, tmp_path, monkeypatch, capsys):
    for number, run in enumerate((a_run, other_run)):
        shutil.copytree(run, tmp_path / str(number))
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path)])
    command.main()
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert len(Page((tmp_path / "report.html").read_text()).data["runs"]) == 2
    monkeypatch.setattr(
        "sys.argv", ["report", str(a_run), str(other_run)]
    )  # that is mhprobe.compare
    with pytest.raises(SystemExit, match="2"):
        command.main()


def test_heads_that_changed_are_found(a_run, other_run, tmp_path):
    page = Page(write_comparison(read_runs([a_run, other_run]), tmp_path / "c.html").read_text())
    tables = {
        t["name"]: [dict(zip(t["columns"], r, strict=True)) for r in t["rows"]]
        for t in page.data["tables"]
    }
    rows = [r for r in tables["heads that changed"] if r["measure"] == "gate_importance"]
    assert len(rows) == 12
    same = next(r for r in rows if r["head"] == 2)  # 3.0 in both
    assert same["difference"] == 0 and same["changed"] == 0 and same["rank_moved"] == 0
    assert any(r["changed"] for r in rows)
    for r in rows:
        assert r["difference"] == pytest.approx(r["this"] - r["first"], abs=1e-4)
        assert r["high"] - r["difference"] == pytest.approx(0.1 * 2**0.5, abs=1e-4)
    assert {r["setting"] for r in tables["settings that differ"]} == {"seed"}
    assert "+0.0 points" in page.text and "not told apart from 0" in page.text


def test_curves_of_two_scores_are_not_held_against_each_other(a_run, other_run, tmp_path):
    shutil.copytree(other_run, tmp_path / "other")
    at_once = "accuracy at as many heads masked"
    page = Page(
        write_comparison(read_runs([a_run, tmp_path / "other"]), tmp_path / "c.html").read_text()
    )
    assert at_once in {each["name"] for each in page.data["tables"]}
    add_rows(
        Report(tmp_path / "other"), "masking_curves", CURVES, "curves", label="top-1 agreement"
    )
    page = Page(
        write_comparison(read_runs([a_run, tmp_path / "other"]), tmp_path / "c.html").read_text()
    )
    assert not [
        each["name"]
        for each in page.data["tables"]
        if each["name"].endswith("at as many heads masked")
    ]
    assert "Accuracy or top-1 agreement as heads are switched off" in page.text


def test_a_run_against_itself_has_not_changed(a_run, tmp_path):
    page = Page(write_comparison(read_runs([a_run, a_run]), tmp_path / "c.html").read_text())
    names = {table["name"]: table for table in page.data["tables"]}
    at = names["heads that changed"]["columns"].index("difference")
    assert {row[at] for row in names["heads that changed"]["rows"]} == {0}
    assert "settings that differ" not in names
    assert len(set(page.data["runs"])) == 2


def test_one_run_is_no_comparison(a_run, tmp_path):
    with pytest.raises(UserError, match="two or more"):
        write_comparison(read_runs([a_run]), tmp_path / "c.html")


def run_of_heads(folder: Path, values: Tensor, weights: str = "null") -> Path:
    """A run that measured 200 heads, each with a standard error of .1."""
    heads = HeadLayout(tuple(HeadSite(f"b{block}.attn", 0, block, 20, 4) for block in range(10)))
    columns = {
        "value": values,
        "low": values - 0.1962,
        "high": values + 0.1962,
        "images": torch.tensor(1000),
    }
    described = measure("per_head", layout=heads)
    Report(folder, heads).add(of_measure("entropy", described, columns, figures=Figures(kinds={})))
    (folder / "config").mkdir()
    (folder / "config" / "config.yaml").write_text(f"weights: {weights}\n")
    return folder


def test_heads_that_went_are_listed_also_where_neurons_went(tmp_path):
    columns, kinds = (
        ["head", "site", "stage", "block", "index", "kind", "kept"],
        ("head", "head", "neuron"),
    )
    for name, kept in (("a", (1, 0, 1)), ("b", (1, 1, 0))):
        rows = [[unit, "s", 0, 0, unit, kinds[unit], on] for unit, on in enumerate(kept)]
        Report(tmp_path / name).add(
            {"pruned": Result(Table(columns, rows, "per_head"), decides="removed")}
        )
    page = Page(
        write_comparison(
            read_runs([tmp_path / "a", tmp_path / "b"]), tmp_path / "c.html"
        ).read_text()
    )
    (table,) = (table for table in page.data["tables"] if table["name"] == "heads that went")
    assert table["rows"] == [[1, 0, 1, 0, 1]]


def test_heads_that_differ_by_chance_are_not_counted_as_changed(tmp_path):
    first, second = (
        0.1 * torch.randn(200, generator=torch.Generator().manual_seed(s)).double() for s in (1, 2)
    )
    assert int(((second - first).abs() > 0.1962 * 2**0.5).sum()) > 4  # as one in twenty does
    second[7] = first[7] + 1
    runs = [run_of_heads(tmp_path / name, values) for name, values in (("a", first), ("b", second))]
    page = Page(write_comparison(read_runs(runs), tmp_path / "c.html").read_text())
    assert "1 of 200 heads of" in page.text and "Holm over heads, 5 %" in page.text
    assert "would by chance" not in page.text


def test_heads_of_networks_trained_apart_are_said_to_share_numbers_only(tmp_path):
    of = {"a": "w.pt", "b": "v.pt", "c": "w.pt"}
    values = torch.zeros(200, dtype=torch.float64)
    a, b, c = (run_of_heads(tmp_path / name, values, weights) for name, weights in of.items())
    page = Page(write_comparison(read_runs([a, b, c]), tmp_path / "page.html").read_text())
    assert "matched by their numbers" in page.text
    same = Page(write_comparison(read_runs([a, c]), tmp_path / "same.html").read_text())
    assert "matched by their numbers" not in same.text
