"""The bench: every part shrunk to seconds, what a part that fails costs, and how two runs compare."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

import runs

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

bench = importlib.import_module("benchmarks.__main__")
record = importlib.import_module("benchmarks.harness.record")
timing = importlib.import_module("benchmarks.harness.timing")


@pytest.mark.slow
def test_every_part_runs_shrunk_on_what_the_repository_holds(tmp_path):
    out = tmp_path / "bench.json"
    told = ["--size", "tiny", "--out", str(out), "--cache", str(tmp_path / "cache")]
    done = runs.module("benchmarks", *told, cwd=ROOT)
    assert done.code == 0, done.out + done.err
    conditions, rows = record.load(out)
    assert sorted(rows) == bench.parts() and all(rows.values())
    assert {"commit", "torch", "threads", "processor", "load", "size"} <= set(conditions)
    assert set(json.loads(out.read_text())["seconds"]) == set(rows)
    for row in (row for found in rows.values() for row in found):
        assert row.what in done.out and row.low <= row.high and row.rounds >= 1
    names = [(part, row.what) for part in rows for row in rows[part]]
    assert len(set(names)) == len(names)  # or two runs could not be compared


def run_parts(monkeypatch, tmp_path, parts, *arguments):
    """The bench with these parts in place of the real ones."""
    modules = {f"benchmarks.{name}": part for name, part in parts.items()}
    monkeypatch.setattr(bench, "parts", lambda: sorted(parts))
    monkeypatch.setattr(bench.importlib, "import_module", lambda name: modules[name])
    out = tmp_path / "bench.json"
    return bench.main(["--out", str(out), *map(str, arguments)]), out


def part(*rows, fails=False):
    class Part:
        @staticmethod
        def run(size):
            yield from rows
            if fails:
                raise RuntimeError("no data here")

    return Part


ROW = timing.Ratio("naive / ours", 2.0, 1.9, 2.1, 5, ">= 1.5")


def test_a_part_that_fails_costs_its_own_rows_only(monkeypatch, tmp_path, capsys):
    code, out = run_parts(monkeypatch, tmp_path, {"a": part(ROW, fails=True), "b": part(ROW)})
    document = json.loads(out.read_text())
    assert code == 1 and document["failed"] == {"a": "RuntimeError: no data here"}
    assert [len(document["rows"][name]) for name in "ab"] == [
        1,
        1,
    ]  # also what the failed part had measured
    assert "a failed: RuntimeError: no data here" in capsys.readouterr().out


def test_a_killed_run_leaves_the_parts_that_were_done(monkeypatch, tmp_path):
    class Killed:
        @staticmethod
        def run(size):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parts(monkeypatch, tmp_path, {"a": part(ROW), "b": Killed})
    assert json.loads((tmp_path / "bench.json").read_text())["rows"]["a"][0]["ratio"] == 2.0


@pytest.mark.parametrize(
    ("limit", "low", "high", "worse"),
    [
        (">= 1.5", 1.2, 1.8, True),
        (">= 1.5", 1.2, 1.95, False),  # the quartiles overlap
        (">= 1.5", 2.4, 2.6, False),  # better
        ("<= 3", 2.4, 2.6, True),
        ("<= 3", 1.2, 1.8, False),
        ("", 0.1, 0.2, False),  # no aim, no direction
    ],
)
def test_a_row_is_worse_when_it_went_the_wrong_way_beyond_both_spreads(
    monkeypatch, tmp_path, capsys, limit, low, high, worse
):
    old = dataclasses.replace(ROW, limit=limit)
    now = dataclasses.replace(old, ratio=(low + high) / 2, low=low, high=high)
    _, before = run_parts(monkeypatch, tmp_path, {"a": part(old)})
    before = before.rename(tmp_path / "before.json")
    code, _ = run_parts(monkeypatch, tmp_path, {"a": part(now)}, "--against", before)
    said = capsys.readouterr().out
    assert code == 0 and ("WORSE" in said) is worse
    assert f"{now.ratio / 2:.3g} x what it was (2)" in said and f"{int(worse)} got worse" in said


def test_a_row_that_is_not_measured_any_more_is_named(monkeypatch, tmp_path, capsys):
    _, before = run_parts(
        monkeypatch, tmp_path, {"a": part(ROW, dataclasses.replace(ROW, what="gone"))}
    )
    before = before.rename(tmp_path / "before.json")
    run_parts(monkeypatch, tmp_path, {"a": part(ROW)}, "--against", before)
    assert "not measured now: gone" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "{", '{"rows": 1}'])
def test_an_earlier_run_that_cannot_be_read_is_refused_before_anything_is_measured(
    monkeypatch, tmp_path, capsys, text
):
    file = tmp_path / "old.json"
    if text is not None:
        file.write_text(text)
    code, out = run_parts(monkeypatch, tmp_path, {"a": part(ROW)}, "--against", file)
    assert code == 2 and not out.exists()
    assert capsys.readouterr().err.startswith("benchmarks: --against: ")


def test_an_aim_is_missed_only_outside_the_spread():
    assert not ROW.missed
    assert (
        not dataclasses.replace(ROW, limit=">= 2.05").missed
        and dataclasses.replace(ROW, limit=">= 2.2").missed
    )
    assert (
        dataclasses.replace(ROW, limit="<= 1.8").missed
        and not dataclasses.replace(ROW, limit="").missed
    )


def test_sides_are_timed_in_turn():
    calls = []
    row = timing.compare("x", lambda: calls.append("a"), lambda: calls.append("b"), rounds=4)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab" + "ba" and row.rounds == 4  # a warm-up first


def test_the_figure_of_diff_has_a_panel_per_number_and_a_curve_per_precision():
    from benchmarks.diff import summary

    numbers = {"area under the ROC curve": (0.9, 1.0), "flagged": (0.5, 1.0)}
    rows = [
        {"of": of, "noise": noise, "number": number, "value": value, "low": value, "high": 1}
        for of in ("float32", "bfloat16")
        for number, values in numbers.items()
        for noise, value in zip(("0.01", "0.1"), values, strict=True)
    ]
    drawn = [
        [line.get_ydata().tolist() for line in axes.lines]
        for axes in summary.sensitivity(rows).axes
    ]
    assert drawn == [2 * [list(values)] for values in numbers.values()]
