"""A report writes what it is told into the run's folder, whole, and tells dashboards the same."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from curves import curve
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.report.measured import of_curves, of_masked_heads
from mhprobe.report.report import Dashboard, Report, Result
from results import add_measure

LAYOUT = HeadLayout(tuple(HeadSite(f"blocks.{i}.attn", 0, i, 3, 4) for i in range(2)))
CURVES = [curve("head_max", [0, 2, 4, 6], [0.9, 0.7, 0.5, 0.3])]


class Listener:
    """A dashboard that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def add_result(self, name, entry, result, png) -> None:
        if result.table is not None:
            self.heard.append(("table", f"{name}: {len(result.table.rows)} rows"))
        if result.curves:
            self.heard.append(("curves", ", ".join(curve.name for curve in result.curves)))
        if png is not None:
            assert png.read_bytes().startswith(b"\x89PNG") and entry.reading.endswith(".")
            self.heard.append(("figure", name))

    def add_metrics(self, metrics) -> None:
        self.heard.append(("metrics", ", ".join(metrics)))

    def finish(self) -> None:
        self.heard.append(("finish", ""))


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_part_of_a_study_is_refused_by_the_folder_that_was_named(tmp_path):
    whole = Report(tmp_path / "study" / "whole")
    whole.begin({"1": "one network"}, inside=tmp_path / "study")
    whole.add_metrics({"test/accuracy": 0.9})
    with pytest.raises(UserError, match=r"results: \S+study is that of") as refused:
        whole.begin({"2": "another"}, inside=tmp_path / "study")
    assert "whole" not in str(refused.value)


def test_a_run_that_is_stopped_amid_its_results_goes_on(tmp_path, monkeypatch):
    """What they are of is written first: a folder with numbers of nobody is refused as another's."""
    report = Report(tmp_path)
    report.begin({"1": "one network"})

    def stopped(*_):
        report.add_metrics({"test/accuracy": 0.5})
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        report.add({"accuracy": Result(metrics={"test/accuracy": 0.5})})
    assert names(tmp_path) == {"metrics.json", "results.json"}
    Report(tmp_path).begin({"1": "one network"})


def test_every_result_becomes_a_table_and_a_figure(tmp_path, capfd):
    listener = Listener()
    report = Report(tmp_path, LAYOUT, [object(), listener])
    made = [
        *add_measure(report, "gate_importance", "per_head", {"value": torch.rand(6)}, label="nats"),
        *add_measure(
            report, "gate_importance", "per_head", {"value": torch.rand(6)}, end="_epoch_004"
        ),
        *add_measure(report, "svcca", "pairwise", {"value": torch.rand(6, 6)}),
        *report.add(
            {"masking_curves": of_curves(CURVES, [], LAYOUT, chance=0.1)["masking_curves"]}
        ),
        *report.add_metrics({"test/accuracy": 0.9}),
    ]
    report.close()
    stems = ["gate_importance", "gate_importance_epoch_004", "svcca", "masking_curves"]
    expected = {"metrics.json", "results.json"} | {
        f"tables/{stem}.csv" for stem in [*stems, "svcca_blocks"]
    }
    expected |= {f"figures/{stem}.{kind}" for stem in stems for kind in ("png", "pdf")}
    assert names(tmp_path) == expected == {str(path.relative_to(tmp_path)) for path in made}
    assert listener.heard == [
        ("table", "gate_importance: 6 rows"),
        ("figure", "gate_importance"),
        ("table", "gate_importance_epoch_004: 6 rows"),
        ("figure", "gate_importance_epoch_004"),
        ("table", "svcca: 15 rows"),
        ("figure", "svcca"),
        ("table", "svcca_blocks: 3 rows"),
        ("table", "masking_curves: 4 rows"),
        ("curves", "head_max"),
        ("figure", "masking_curves"),
        ("metrics", "test/accuracy"),
        ("finish", ""),
    ]
    assert capfd.readouterr() == ("", "")


def test_only_dashboards_are_told():
    assert isinstance(Listener(), Dashboard) and not isinstance(object(), Dashboard)


def test_metrics_are_merged_and_a_later_number_wins(tmp_path):
    Report(tmp_path, LAYOUT).add_metrics({"a": 1, "b": 0.1})
    report = Report(tmp_path, LAYOUT)
    report.add_metrics({"b": 1 / 3, "c": math.nan})
    assert report.metrics == {"a": 1, "b": 1 / 3, "c": None}
    assert json.loads((tmp_path / "metrics.json").read_text()) == report.metrics


def test_damaged_metrics_are_named_not_overwritten(tmp_path):
    (tmp_path / "metrics.json").write_text('{"a": 1')
    with pytest.raises(UserError, match=r"metrics\.json is damaged"):
        Report(tmp_path, LAYOUT).add_metrics({"b": 2})
    assert (tmp_path / "metrics.json").read_text() == '{"a": 1'


def test_nothing_makes_no_files(tmp_path):
    assert of_curves([], [], LAYOUT, chance=0.1) == of_masked_heads([], None) == {}
    assert Report(tmp_path, LAYOUT).add({"nothing": Result()}) == []
    assert names(tmp_path) == set()


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    report = Report(tmp_path / "file" / "run", LAYOUT)
    with pytest.raises(UserError, match=r"cannot write .*run/") as error:
        add_measure(report, "gate_importance", "per_head", {"value": torch.rand(6)})
    assert "\n" not in str(error.value)
