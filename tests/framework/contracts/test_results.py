"""Every table that a command writes says in results.json how to read it: label, direction, interval, chance."""

from __future__ import annotations

import ast
import csv
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

import runs
from mhprobe.pages.several import several
from mhprobe.report.report import Report
from mhprobe.report.runs.run import read_runs
from pages.report_html.conftest import make_run

SOURCE = Path(__file__).parents[3] / "src"
ENDS = r"(.+_)?(low|high)"
BESIDE = r"(null|chance|uniform|random)(_.+)?|(.+_)?(null|chance|random_init|untrained)"
FEW = ("masking=none", "data.limit_test=40", "data.limit_val=23")
ASKED = {  # one command of each kind, done in seconds
    "probe": (*FEW, "measure=[gate_importance,entropy,svcca]", "probe.control=random_init"),
    "mask": ("search=fast", "masking.steps=2", "+masking/join=redundant_or_inert"),
    "prune": ("prune=order", "prune.remove=2", "prune.images=60"),
    "maps": (*FEW, "maps=[rollout]", "images=[0,1]"),
    "study": (
        "+paper=byun_kim",
        "control=null",
        "figures=[table_1,figure_6,figure_6_noise,figure_6_phase]",
        *FEW[1:],
    ),
}


def unsaid(folder: Path) -> list[str]:
    """What the entries of a run leave out of its tables."""
    found = []
    for name, entry in json.loads((folder / "results.json").read_text())["results"].items():
        if "table" not in entry:
            continue
        with (folder / entry["table"]).open(newline="") as file:
            columns = next(csv.reader(file))
        found += [f"{name}: no {key}" for key in ("label", "larger") if not entry.get(key)]
        if entry["kind"].endswith("_along"):  # data have named its columns
            continue
        said = {
            *entry.get("interval", []),
            entry.get("chance"),
            entry.get("control"),
            *entry.get("roles", {}),
        }
        found += [
            f"{name}: {c}" for c in columns if re.fullmatch(f"{ENDS}|{BESIDE}", c) and c not in said
        ]
        ends = [c for c in columns if re.fullmatch(ENDS, c) and not re.fullmatch(BESIDE, c)]
        if ends and len(entry.get("interval", [])) != 2:
            found.append(f"{name}: no interval, but {ends}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", ASKED)
def test_tables_of_a_run_say_how_to_read_them(command, tmp_path, trained):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    module = import_module("mhprobe.maps.__main__" if command == "maps" else f"mhprobe.{command}")
    module.run(runs.config(command, tmp_path, weights, *ASKED[command]), tmp_path / "run")
    assert unsaid(tmp_path / "run") == []


def test_tables_of_a_comparison_say_how_to_read_them(tmp_path):
    report = Report(tmp_path / "both")
    report.add(
        several(read_runs([make_run(tmp_path / name, seed) for seed, name in enumerate("ab")]))
    )
    assert len(report.results.results) > 2 and unsaid(tmp_path / "both") == []


def silent(source: str) -> list[int]:
    """Lines that make a Result with a table, in a function that never says what its values are."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        inside = list(ast.walk(function))
        says = [n for n in inside if isinstance(n, ast.Attribute) and n.attr == "saying"]
        says += [n for n in inside if isinstance(n, ast.keyword) and n.arg == "larger"]
        says += [n for n in inside if isinstance(n, ast.Name) and n.id == "_described"]
        made = [
            n for n in inside if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Result"
        ]
        tables = [n for n in made if n.args or any(k.arg == "table" for k in n.keywords)]
        found += [] if len(says) >= len(tables) else [node.lineno for node in tables]
    return found


def test_who_makes_a_table_says_what_its_values_are_and_what_a_larger_one_means():
    wrong = {
        path.name: lines for path in SOURCE.rglob("*.py") if (lines := silent(path.read_text()))
    }
    assert wrong == {}
    assert silent("def f():\n    return Result(table, figure)") == [2]
    assert not silent('def f():\n    return Result(table).saying("accuracy", "a better network")')
