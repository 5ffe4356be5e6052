"""Labels follow the stated rules in their order, survivors are counted, and a sweep's runs come side by side."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

import runs
from mhprobe.errors import UserError
from mhprobe.io.tensors import write_outcomes
from mhprobe.lab.papers import sweep
from mhprobe.measures.parts.functions import LABELS, functions, labels
from mhprobe.report.figures import pruned
from mhprobe.report.report import Report, Result
from mhprobe.report.tables import Table, write_csv
from mhprobe.stats.survival import survivors
from mhprobe.studies import sweep as command

NAN = math.nan
COLUMNS = {
    #                            positional CLS  reg.  rare  object diff local glob win. mixed unkn
    "position.value": [0.9, 0.89, 0, 0, 0, 0, 0, 0, 0, 0, NAN],
    "token_kinds.cls": [0.9, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, NAN],
    "token_kinds.registers": [NAN, NAN, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, NAN],
    "rarity.value": [0.1, 0.1, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.19, NAN],
    "rarity.chance": [0.1] * 11,
    "object_attention.value": [0.1, 0.1, 0.1, 0.1, 0.75, 0.1, 0.1, 0.1, 0.1, 0.7, NAN],
    "object_attention.chance": [0.5] * 11,
    "entropy.share": [0.99, 0.99, 0.99, 0.99, 0.99, 0.95, 0.5, 0.5, 0.5, 0.5, NAN],
    "attention_distance.value": [1, 1, 1, 1, 1, 1, 5, 9, 9, 7, NAN],
    "attention_distance.uniform": [10] * 10 + [NAN],
    "attention_distance.whole": [10] * 8 + [40, 10, NAN],  # a window is a part of the image
}


def test_a_head_has_every_function_whose_rule_holds_and_one_label_at_most():
    """By hand: the first head is at one offset, on the class token, diffuse and local."""
    found = functions(COLUMNS, 11)
    assert found[0] == ("positional", "CLS", "diffuse", "local")
    assert found[3] == ("rare", "diffuse", "local") and found[4] == ("object", "diffuse", "local")
    assert found[7:] == [("global",), ("window",), ("mixed",), ("unknown",)]
    assert labels(COLUMNS, 11) == [names[0] for names in found]


def test_the_first_rule_that_holds_gives_the_label():
    assert tuple(labels(COLUMNS, 11)) == LABELS
    without = {key: value for key, value in COLUMNS.items() if not key.startswith("position")}
    assert labels(without, 11)[0] == "CLS"
    assert labels({}, 3) == ["unknown"] * 3
    assert labels({"token_kinds.cls": [0.3, 0.29]}, 2) == ["CLS", "mixed"]
    assert labels({"attention_distance.value": [1.0], "attention_distance.uniform": [0.0]}, 1) == [
        "unknown"
    ]


def test_survivors_are_counted_by_every_division():
    stages, labels = [("0",), ("0",), ("1",)], [("local", "rare"), ("CLS",), ("local",)]
    rows = survivors("a", [True, False, True], {"stage": stages, "label": labels})
    assert [(r.by, r.group, r.kept, r.of, r.heads) for r in rows] == [
        *(("stage", "0", 1, 2, 2), ("stage", "1", 1, 1, 2)),
        *(("label", "local", 2, 2, 2), ("label", "rare", 1, 1, 2), ("label", "CLS", 0, 1, 2)),
    ]


def make_run(folder: Path, weight: float, kept: list[int], accuracy: float) -> None:
    metrics = {
        "gates/kept": sum(kept),
        "gates/heads": len(kept),
        "gates/binary_accuracy": accuracy - 0.01,
        "test/accuracy": accuracy,
        "gates/binary_loss": 0.6,
        "test/loss": 0.5,
        "test/images": 100,
    }
    rows = [
        [head, f"blocks.{head // 2}.attn", 0, head // 2, head % 2, 1.0, 1.0, on]
        for head, on in enumerate(kept)
    ]
    columns = ["head", "site", "stage", "block", "index", "gate", "open", "kept"]
    Report(folder).add({"gates": Result(Table(columns, rows, "per_head"), metrics=metrics)})
    (folder / "model.json").write_text(
        json.dumps({"class_names": ["a", "b"], "made": {"data": "x"}})
    )
    (folder / "config").mkdir()
    (folder / "config" / "overrides.yaml").write_text(
        f"- +experiment=digits_vit\n- weights={folder.parent / 'whole.safetensors'}\n- "
        f"gates.penalty.weight={weight}\n"
    )


@pytest.fixture
def swept(tmp_path) -> Path:
    make_run(tmp_path / "0", 0.01, [1, 1, 1, 0], 0.9)
    make_run(tmp_path / "1", 0.1, [1, 0, 0, 0], 0.7)
    (tmp_path / "2").mkdir()  # a job that failed
    (tmp_path / "whole.json").write_text(json.dumps({"made": {"data": "x", "test/accuracy": 0.93}}))
    return tmp_path


def test_runs_come_side_by_side_with_what_tells_them_apart(swept):
    paths = sweep.write_sweep(swept)
    assert {path.name for path in paths} >= {
        "sweep.csv",
        "sweep.png",
        "survivors.csv",
        "survivors.png",
    }
    rows = runs.rows(swept / "tables" / "sweep.csv")
    assert [(row["run"], row["gates.penalty.weight"], row["kept"]) for row in rows] == [
        ("1", "0.1", "1"),
        ("0", "0.01", "3"),
    ]
    assert "weights" not in rows[0]  # all runs share it
    kept = {
        (row["run"], row["group"]): (row["kept"], row["of"])
        for row in runs.rows(swept / "tables" / "survivors.csv")
    }
    assert kept["0", "block 1"] == ("1", "2") and kept["1", "block 1"] == ("0", "2")


def test_the_order_of_a_tables_rows_is_of_no_matter(swept):
    sweep.write_sweep(swept)
    expected = runs.rows(swept / "tables" / "survivors.csv")
    path = swept / "1" / "tables" / "gates.csv"  # one head left, in block 0
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *reversed(rows)]) + "\n")
    sweep.write_sweep(swept)
    assert runs.rows(swept / "tables" / "survivors.csv") == expected


def test_its_figures_say_what_made_them(swept, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sweep", str(swept), "--style", "screen"])
    command.main()
    assert "sweep.png" in capsys.readouterr().out
    for name in ("sweep", "survivors"):
        said = Image.open(swept / "figures" / f"{name}.png").text
        assert said["Source"] == f"python -m mhprobe.studies.sweep {swept.name} --style screen"
        assert said["Software"].startswith("mhprobe ") and said["Comment"].startswith("commit ")


def test_the_axis_ends_where_runs_do_and_reaches_chance_only_where_one_comes_near():
    high = pruned.retained([(3, 0.8, 0.7), (24, 1.0, 1.0)], 100, 24, 0.95, 0.1).axes[0]
    low = pruned.retained([(3, 0.3, 0.2), (24, 1.0, 1.0)], 100, 24, 0.95, 0.1).axes[0]
    labels_of = [[line.get_label() for line in axes.get_lines()] for axes in (high, low)]
    assert ["chance" in found for found in labels_of] == [False, True]
    assert (
        50 < high.get_ylim()[0] < 61 and low.get_ylim()[0] < 0
    )  # 70 % of 100 images: 60.4 % at the least
    assert 100 <= high.get_ylim()[1] < 101, "no accuracy is above 100 %"
    assert all("whole model before" in found for found in labels_of)


def probed(folder: Path, distances: list[float], **more: str) -> Path:
    rows = [
        [head, "s", distance, 10.0, 10.0, *more.values()] for head, distance in enumerate(distances)
    ]
    columns = ["head", "site", "value", "uniform", "whole", *more]
    Report(folder).add({"attention_distance": Result(Table(columns, rows, "per_head"))})
    return folder


def test_labels_come_from_the_tables_of_a_probed_run(swept, tmp_path):
    (gates, _) = [run.gates for run in sweep.finished_runs(swept)]
    probe = probed(tmp_path / "probed", [1.0, 5.0, 9.5, 7.0])
    assert labels(sweep.probe_columns(probe, gates), 4) == ["local", "local", "global", "mixed"]
    sweep.write_sweep(swept, probe)
    found = {
        (r["run"], r["group"]): r["kept"]
        for r in runs.rows(swept / "tables" / "survivors.csv")
        if r["by"] == "label"
    }
    assert found["0", "local"] == "2" and found["1", "global"] == "0" and found["0", "mixed"] == "0"
    with pytest.raises(UserError, match="none of the tables"):
        sweep.probe_columns(swept / "0", gates)


def test_rare_patches_and_objects_are_functions_that_may_survive(swept, tmp_path):
    probe = probed(tmp_path / "probed", [1.0, 5.0, 9.5, 7.0])
    for table, values in (
        ("rarity", [0.3, 0.1, 0.1, 0.1]),
        ("object_attention", [0.1, 0.1, 0.2, 0.1]),
    ):
        rows = [[head, "s", value, 0.1] for head, value in enumerate(values)]
        Report(probe).add(
            {table: Result(Table(["head", "site", "value", "chance"], rows, "per_head"))}
        )
    sweep.write_sweep(swept, probe)
    found = [
        row
        for row in runs.rows(swept / "tables" / "survivors.csv")
        if row["by"] == "label" and row["run"] == "0"
    ]
    counted = {row["group"]: (row["kept"], row["of"]) for row in found}
    assert counted == {
        "rare": ("1", "1"),
        "local": ("2", "2"),
        "object": ("1", "1"),
        "global": ("1", "1"),
        "mixed": ("0", "1"),
    }


@pytest.mark.parametrize(("images", "whole"), [("the same", 0.75), ("others", None)])
def test_a_probed_run_of_the_same_images_says_how_good_the_whole_model_is(
    swept, tmp_path, monkeypatch, images, whole
):
    (tmp_path / "whole.json").unlink()
    probe = probed(tmp_path / "probed", [1.0, 5.0, 9.5, 7.0])
    write_outcomes(probe, torch.tensor([True, False, True, True]), torch.arange(4), images)
    for run in sweep.finished_runs(swept):
        right = torch.arange(100) < round(100 * run.metrics["test/accuracy"])
        write_outcomes(swept / run.name, right, torch.arange(100), "the same")
    drawn = []
    draw = pruned.retained
    monkeypatch.setattr(pruned, "retained", lambda *given: drawn.append(given[3]) or draw(*given))
    sweep.write_sweep(swept, probe)
    assert drawn == [whole]


def test_a_probe_of_another_model_gives_no_labels(swept, tmp_path):
    more_heads = probed(tmp_path / "larger", [1.0, 5.0, 9.5, 7.0, 2.0])
    with pytest.raises(
        UserError, match=r"gates\.csv.*larger.*expected 0 to 3, got '4'.*another model"
    ):
        sweep.write_sweep(swept, more_heads)
    for number in (0, 1):
        path = swept / str(number) / "tables" / "gates.csv"
        rows = runs.rows(path)
        write_csv(path, Table([*rows[0], "layout"], [[*row.values(), "0123abcd"] for row in rows]))
    other = probed(tmp_path / "other", [1.0, 5.0, 9.5, 7.0], layout="4567abcd")
    with pytest.raises(UserError, match=r"gates\.csv.*other.*another model.*4567abcd.*0123abcd"):
        sweep.write_sweep(swept, other)
    assert sweep.write_sweep(
        swept, probed(tmp_path / "same", [1.0, 5.0, 9.5, 7.0], layout="0123abcd")
    )


def test_runs_of_two_models_are_no_sweep(swept):
    make_run(swept / "3", 0.2, [1, 0, 0, 0, 1], 0.7)
    with pytest.raises(UserError, match=r"two models, . heads .* and . "):
        sweep.write_sweep(swept)


def test_a_folder_without_such_runs_and_a_damaged_one_are_refused(swept, tmp_path):
    with pytest.raises(UserError, match="no finished run"):
        sweep.write_sweep(tmp_path / "0")
    path = swept / "0" / "tables" / "gates.csv"
    text = path.read_text()
    for kept in ("yes", "0"):  # no number; no head is left
        path.write_text(text.replace(",1\n", f",{kept}\n"))
        with pytest.raises(
            UserError, match=r"gates\.csv, column kept: expected 0 or 1, and a head with 1"
        ):
            sweep.write_sweep(swept)
    (swept / "0" / "metrics.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        sweep.write_sweep(swept)


def test_a_strangers_runs_are_read_as_data(swept, tmp_path, monkeypatch):
    """No link is followed, and no path that a run names: the weights of the whole network are the caller's to name."""
    gates = swept / "0" / "tables" / "gates.csv"
    elsewhere = gates.rename(tmp_path / "elsewhere.csv")
    gates.symlink_to(elsewhere)
    with pytest.raises(
        UserError,
        match=r"sweep: .*0 is damaged \(tables/gates\.csv: a link, which is not followed\)",
    ):
        sweep.write_sweep(swept)
    gates.unlink(), elsewhere.rename(gates)
    beside, drawn = tmp_path / "whole.json", []
    monkeypatch.setattr(pruned, "retained", lambda *given: drawn.append(given[3]))
    sweep.write_sweep(swept), sweep.write_sweep(swept, whole=beside.with_suffix(".safetensors"))
    assert drawn == [None, 0.93]
    for text in (
        "[1]",
        '{"made": 3}',
        '{"made": {"data": "x", "test/accuracy": "a"}}',
        '{"made": {"data": "y"}}',
        "{",
    ):
        beside.write_text(text)
        with pytest.raises(UserError):
            sweep.write_sweep(swept, whole=beside.with_suffix(".safetensors"))
    beside.write_text('{"made": {"test/accuracy": 0.93}}')
    with pytest.raises(
        UserError, match="no test accuracy on the images"
    ):  # neither says which images
        sweep._whole(beside.with_suffix(".safetensors"), {})
    beside.unlink(), os.mkfifo(beside)
    with pytest.raises(UserError, match=r"not an ordinary file"):
        sweep.write_sweep(swept, whole=beside.with_suffix(".safetensors"))
    (swept / "3").symlink_to(swept / "1")
    assert [run.name for run in sweep.finished_runs(swept)] == ["1", "0"]
