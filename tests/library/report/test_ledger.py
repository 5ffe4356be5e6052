"""The ledger says of each result what it is; its schema is in the docs; what is damaged is refused."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch
from hydra.utils import get_class

from mhprobe.errors import UserError
from mhprobe.framework.run.members import members
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.report.figures import kinds
from mhprobe.report.ledger import Entry, Ledger
from mhprobe.report.report import Report, Result, Sample
from mhprobe.report.tables import Table
from results import add_measure

ROOT = Path(__file__).parents[3]
LAYOUT = HeadLayout(tuple(HeadSite(f"blocks.{i}.attn", 0, i, 3, 4) for i in range(2)))


def class_of(name: str) -> type:
    return get_class(members("measure")[name]["_target_"])


def test_the_schema_in_the_docs_is_that_of_the_code():
    """Written by pydantic itself, and by nobody's hand."""
    schema = json.dumps(Ledger.model_json_schema(), indent=2) + "\n"
    assert (ROOT / "docs" / "results.schema.json").read_text() == schema


@pytest.mark.parametrize("name", members("measure"))
def test_every_measure_says_what_a_larger_value_means_and_its_unit(name):
    measure = class_of(name)
    assert len(measure.larger) > 10 and not measure.larger.endswith(".")
    label = vars(measure).get("label", "")
    if label.endswith(")"):  # a unit at the end of the label is the unit
        assert measure.unit and f"({measure.unit}" in label, label


def test_an_entry_says_all_that_a_reader_needs(tmp_path):
    report = Report(tmp_path, LAYOUT)
    report.images = Sample(200, "test")
    value = torch.arange(6.0)
    columns = {"value": value, "low": value - 1, "high": value + 1, "null": value * 0}
    about = {
        "unit": "nats",
        "larger": "it matters more",
        "masks": True,
        "about": "What it measures.",
    }
    add_measure(
        report, "worth", "per_head", columns, "worth (nats)", control={"value": value / 9}, **about
    )
    add_measure(report, "worth", "per_head", {"value": value}, end="_epoch_004", during="epoch 4")
    entries = json.loads((tmp_path / "results.json").read_text())["results"]
    caption = kinds()["per_head"].caption
    assert entries["worth"] == {
        **{
            "kind": "per_head",
            "title": "worth",
            "about": "What it measures.",
            "label": "worth (nats)",
        },
        **{
            "unit": "nats",
            "larger": "it matters more",
            "interval": ["low", "high"],
            "chance": "null",
        },
        **{
            "control": "random_init",
            "masks": True,
            "split": "test",
            "images": 200,
            "drawn": "per_head",
        },
        **{"caption": caption, "table": "tables/worth.csv", "figure": "figures/worth.png"},
    }
    assert entries["worth_random_init"]["control_of"] == "worth"
    assert entries["worth_epoch_004"]["during"] == "epoch 4"
    for entry in entries.values():  # its files are there
        assert all((tmp_path / entry[key]).is_file() for key in ("table", "figure") if key in entry)


def test_a_result_of_no_images_says_so_and_metrics_are_named(tmp_path):
    report = Report(tmp_path, LAYOUT)
    report.images = Sample(200, "test")
    report.add({"gates": Result(Table(["a"], [[1]]), metrics={"gates/kept": 3}, of=Sample())})
    entry = report.results.results["gates"]
    assert (entry.images, entry.split, entry.metrics) == (None, "", ["gates/kept"])


def test_a_later_result_keeps_the_others_and_damage_is_not_overwritten(tmp_path):
    Report(tmp_path, LAYOUT).add({"one": Result(Table(["a"], [[1]]))})
    Report(tmp_path, LAYOUT).add({"two": Result(Table(["a"], [[2]]))})
    file = tmp_path / "results.json"
    assert list(Ledger.model_validate_json(file.read_bytes()).results) == ["one", "two"]
    file.write_text(file.read_text()[:-3])
    with pytest.raises(UserError, match=r"results\.json is damaged"):
        Report(tmp_path, LAYOUT).add({"three": Result(Table(["a"], [[3]]))})


@pytest.mark.parametrize(
    "file", ["tables/../../x.csv", "/etc/passwd", "../x", "tables/a/b.csv", "other/x.csv"]
)
def test_an_entry_names_files_of_its_two_folders_alone(file):
    with pytest.raises(ValueError, match="pattern"):
        Entry(kind="table", title="x", table=file)
    Entry(kind="table", title="x", table="tables/x.csv")  # the control


def figures_without_kind(source: str) -> list[int]:
    """Lines that make a Result with a figure, and do not say which kind of figure drew it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Result":
            names = {keyword.arg for keyword in node.keywords}
            if (len(node.args) > 1 or "figure" in names) and "drawn" not in names:
                found.append(node.lineno)
    return found


def test_who_draws_a_figure_says_its_kind():
    """Panels of a paper's figure alone have the paper's caption."""
    package = ROOT / "src" / "mhprobe"
    files = [path for path in package.rglob("*.py") if "panels" not in path.parts]
    wrong = {
        str(path.relative_to(package)): lines
        for path in files
        if (lines := figures_without_kind(path.read_text()))
    }
    assert wrong == {}
    assert figures_without_kind("Result(table, figure)\nResult(figure=figure)\nResult(table)") == [
        1,
        2,
    ]
    assert len(kinds()) > 50
