"""Several runs in one table: spread over seeds beside the interval over images, points of a sweep joined."""

from __future__ import annotations

import csv
import html
import json
import math
import re
import shutil
import statistics
import sys

import pytest
from PIL import Image
from scipy.stats import t

import mhprobe.compare
from drawn import assert_nothing_is_clipped
from mhprobe.errors import UserError
from mhprobe.pages.several import data_of_runs, head_by_head, several
from mhprobe.report.figures import runs as figures
from mhprobe.report.report import Report
from mhprobe.report.runs.folder import Folder
from mhprobe.report.runs.run import expand, read_runs
from pages.report_html.conftest import CURVES, layout, make_run
from results import add_rows


def seeded(folder, seed, accuracy, **settings):
    """A run's folder with this accuracy of 1,000 images."""
    make_run(folder, seed)
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(
        json.dumps({**metrics, "test/accuracy": accuracy, "test/images": 1000})
    )
    config = "\n".join(f"{key}: {value}" for key, value in {"seed": seed, **settings}.items())
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "config.yaml").write_text(config + "\n")
    return folder


def rows(result):
    return [dict(zip(result.table.columns, row, strict=True)) for row in result.table.rows]


@pytest.fixture
def sweep(tmp_path):
    """Two learning rates with three seeds each."""
    accuracies = {0.1: (0.70, 0.72, 0.77), 0.2: (0.60, 0.60, 0.60)}
    for number, (lr, seed) in enumerate((lr, seed) for lr in accuracies for seed in range(3)):
        seeded(tmp_path / "sweep" / str(number), seed, accuracies[lr][seed], lr=lr)
    return tmp_path / "sweep"


def test_two_runs_have_their_points_and_no_interval(sweep):
    """Student's interval of two runs reaches over the whole axis."""
    for seeds, diamonds, band in (("01", 0, ""), ("012", 1, ", band: 95 % over runs")):
        found = several(read_runs([sweep / seed for seed in seeds]))
        (axes,) = found["runs"].figure.axes
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        assert legend == ["a run, 95 % over images", "mean, 95 % over runs"][: 1 + diamonds]
        assert sum(line.get_marker() == "D" for line in axes.get_lines()) == diamonds
        figure = found["curves"].figure
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [
            f"mean of {len(seeds)} runs{band}"
        ]
        shaded = [each for panel in figure.axes for each in panel.collections if each.get_paths()]
        assert bool(shaded) == bool(band)
        assert all(panel.get_xlabel() == "heads masked" for panel in figure.axes)
        assert_nothing_is_clipped(figure)


def test_small_print_of_several_runs_names_their_data_and_images(sweep):
    assert tuple(map(str, data_of_runs(read_runs([sweep])))) == ("animals", "n = 1,000 test images")
    (sweep / "0" / "model.json").write_text(json.dumps({"data": "digits"}))
    file = sweep / "1" / "metrics.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "test/images": 360}))
    assert tuple(map(str, data_of_runs(read_runs([sweep])))) == (
        "digits, animals",
        "n = 360 to 1,000 test images",
    )


def test_seeds_become_a_group_with_students_interval(sweep):
    found = several(read_runs([sweep]))
    first, second = rows(found["groups"])
    values = (0.70, 0.72, 0.77)
    half = t.ppf(0.975, 2) * statistics.stdev(values) / math.sqrt(3)
    assert (first["group"], first["runs"]) == ("lr=0.1", 3)
    assert first["accuracy"] == pytest.approx(statistics.fmean(values))
    assert first["deviation"] == pytest.approx(statistics.stdev(values))
    assert first["high"] - first["accuracy"] == pytest.approx(half)
    assert (
        second["high"] == pytest.approx(second["low"]) == pytest.approx(0.6)
    )  # equal runs have no spread ...
    assert second["half_width_over_images"] == pytest.approx(
        0.0303, abs=2e-4
    )  # ... and images still have one
    assert [row["seed"] for row in rows(found["runs"])] == ["0", "1", "2"] * 2


def test_runs_that_differ_in_several_settings_are_a_grid(tmp_path, sweep):
    assert "grid" not in several(read_runs([sweep]))  # one setting is a column
    sizes = [(depth, heads, seed) for depth in (10, 2) for heads in (12, 3) for seed in (0, 1)][:-2]
    for number, (depth, heads, seed) in enumerate(sizes):
        accuracy = 0.5 + depth / 100 + heads / 1000 + seed / 10
        seeded(tmp_path / "sizes" / str(number), seed, accuracy, depth=depth, num_heads=heads)
    table = several(read_runs([tmp_path / "sizes"]))["grid"].table
    assert table.columns == ["depth", "num_heads=3", "num_heads=12"]  # as numbers go
    assert [row[0] for row in table.rows] == ["2", "10"]
    assert table.rows[0][1] == "" and table.rows[0][2] == pytest.approx(
        0.582
    )  # the mean of both seeds
    assert table.rows[1][1:] == pytest.approx([0.653, 0.662])
    assert [
        row[0]
        for row in several(read_runs([tmp_path / "sizes"]), over=["seed", "depth"])[
            "groups"
        ].table.rows
    ]
    assert "grid" not in several(read_runs([tmp_path / "sizes"]), over=["seed", "depth"])


def test_an_interval_of_accuracies_ends_where_accuracies_do(tmp_path):
    for number, accuracy in enumerate((0.9, 1.0)):
        seeded(tmp_path / "sweep" / str(number), number, accuracy, lr=0.1)
    (group,) = rows(several(read_runs([tmp_path / "sweep"]))["groups"])
    assert (
        0 <= group["low"] < 0.9 and group["high"] == 1.0
    )  # Student's t with one degree of freedom: +- .64


def test_settings_that_change_no_result_part_no_group(tmp_path):
    for seed, progress in enumerate((True, False)):
        seeded(
            tmp_path / "runs" / str(seed), seed, 0.5, progress=progress, logger=f"{{csv: {seed}}}"
        )
    (group,) = rows(several(read_runs([tmp_path / "runs"]))["groups"])
    assert group["runs"] == 2


def test_a_run_without_a_configuration_has_no_settings(tmp_path):
    for number in (0, 1):
        seeded(tmp_path / str(number), number, 0.5)
    (tmp_path / "0" / "config" / "config.yaml").unlink()
    table = several(read_runs([tmp_path / "0", tmp_path / "1"]))["runs"].table
    assert "" not in table.columns


def test_groups_are_drawn_by_the_sections_of_settings_whose_names_end_alike():
    groups = ["encoder.depth=1, decoder.depth=2", "encoder.depth=2, decoder.depth=1"]
    accuracies = [
        {"run": name, "group": name, "accuracy": 0.5, "low": 0.4, "high": 0.6} for name in groups
    ]
    (axes,) = figures.runs(accuracies, None).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == groups


def test_settings_that_ask_a_running_command_hide_no_others(tmp_path):
    """As ``name`` of a study does: its networks were one group, with a mean over both."""
    for number, weights in enumerate(("vit", "swin")):
        seeded(
            tmp_path / "runs" / str(number),
            0,
            0.7 + number / 10,
            name="${mhprobe.nobody:}",
            network=weights,
        )
    groups = rows(several(read_runs([tmp_path / "runs"]))["groups"])
    assert [row["group"] for row in groups] == ["network=vit", "network=swin"]


def test_other_settings_can_be_summed_over(sweep):
    (group,) = rows(several(read_runs([sweep]), over=["seed", "lr"])["groups"])
    assert (group["group"], group["runs"]) == ("all runs", 6)


def test_a_setting_that_no_run_has_is_not_summed_over(sweep):
    with pytest.raises(
        UserError, match=r"compare: over: no run has a setting sed; did you mean seed\?"
    ):
        several(read_runs([sweep]), over=["sed"])


def test_curves_have_the_mean_over_seeds(sweep):
    found = rows(several(read_runs([sweep]))["curves"])
    one = next(
        r
        for r in found
        if (r["group"], r["curve"], r["split"], r["heads_masked"]) == ("lr=0.1", "wise", "test", 3)
    )
    assert one["runs"] == 3 and one["accuracy"] == pytest.approx(0.6)


def test_a_curve_says_what_its_accuracy_is(sweep):
    assert {row["of"] for row in rows(several(read_runs([sweep]))["curves"])} == {"accuracy"}
    add_rows(Report(sweep / "0"), "masking_curves", CURVES, "curves", label="top-1 agreement")
    found = rows(several(read_runs([sweep]))["curves"])
    # a mean over seeds is of one score alone
    at = [
        r
        for r in found
        if (r["group"], r["curve"], r["split"], r["heads_masked"]) == ("lr=0.1", "wise", "test", 3)
    ]
    assert {row["of"]: row["runs"] for row in at} == {"accuracy": 2, "top-1 agreement": 1}


def test_points_of_a_sweep_over_steps_are_one_curve(tmp_path):
    for step in range(3):
        folder = seeded(tmp_path / "sweep" / str(step), 0, 0.7)
        (folder / "config" / "config.yaml").write_text(f"seed: 0\nmasking:\n  step: {step}\n")
        table = folder / "tables" / "masking_curves.csv"
        with table.open(newline="") as file:
            columns, *lines = list(csv.reader(file))
        kept = [line for line in lines if line[columns.index("step")] == str(step)]
        with table.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *kept])
    found = rows(several(read_runs([tmp_path / "sweep"]))["curves"])
    found = [row for row in found if (row["curve"], row["split"]) == ("wise", "test")]
    assert [(r["group"], r["heads_masked"], r["accuracy"], r["runs"]) for r in found] == [
        ("all runs", 0.0, 0.9, 1),
        ("all runs", 1.0, 0.895, 1),
        ("all runs", 2.0, 0.87, 1),
    ]


def typed(folder, *overrides):
    (folder / "config" / "overrides.yaml").write_text("".join(f"- {each}\n" for each in overrides))
    return folder


def test_runs_are_called_what_was_typed_for_them(tmp_path):
    """One word, as prune=order, changes many settings; none of those that nobody typed is in a name."""
    many = {f"setting_{number}": 1 for number in range(40)}
    for number, remove in enumerate((18, 36, 18, 36)):
        folder = seeded(
            tmp_path / "sweep" / str(number),
            number // 2,
            0.8 - number / 100,
            **{**many, "remove": remove},
        )
        typed(
            folder,
            "weights=w/a.safetensors",
            "prune=order",
            f"prune.remove={remove}",
            f"seed={number // 2}",
        )
    plain = typed(
        seeded(tmp_path / "plain", 0, 0.9), "weights=outputs/digits/model.safetensors", "seed=0"
    )
    swept = several(read_runs([tmp_path / "sweep"]))
    assert [row["run"] for row in rows(swept["runs"])] == [
        f"remove={remove}, seed={seed}" for seed in (0, 1) for remove in (18, 36)
    ]
    assert [(row["group"], row["runs"]) for row in rows(swept["groups"])] == [
        ("remove=18", 2),
        ("remove=36", 2),
    ]
    beside = several(read_runs([tmp_path / "sweep", plain]))
    assert [row["group"] for row in rows(beside["groups"])] == [
        "remove=18",
        "remove=36",
        "weights=digits",
    ]
    assert_nothing_is_clipped(beside["runs"].figure)
    # the control: two groups with the same words stay two, and have a number
    typed(
        tmp_path / "sweep" / "1",
        "weights=w/a.safetensors",
        "prune=order",
        "prune.remove=18",
        "seed=0",
    )
    three = read_runs([tmp_path / "sweep" / "0", tmp_path / "sweep" / "1", plain])
    names = [row["group"] for row in rows(several(three)["groups"])]
    assert names == ["weights=a (1)", "weights=a (2)", "weights=digits"]


def test_runs_of_the_same_words_are_called_by_their_folders(tmp_path):
    folders = [
        typed(seeded(tmp_path / "digits" / name, 0, 0.8), "seed=0")
        for name in ("monday", "tuesday")
    ]
    assert [row["run"] for row in rows(several(read_runs(folders))["runs"])] == [
        "digits/monday",
        "digits/tuesday",
    ]


def test_a_run_agrees_with_itself_about_every_head(tmp_path):
    run = seeded(tmp_path / "a", 0, 0.7)
    shutil.copytree(run, tmp_path / "b")
    found = rows(several(read_runs([run, tmp_path / "b"]))["agreement"])
    assert (
        found
        and {row["spearman"] for row in found} == {1.0}
        and {row["overlap"] for row in found} == {1.0}
    )


def test_pruned_networks_whose_speed_was_measured_are_drawn_against_time(tmp_path, sweep):
    assert "speed" not in several(read_runs([sweep]))  # the others were not pruned
    for number, (left, share) in enumerate([(0.5, 0.91), (0.75, 0.93)]):
        folder = seeded(tmp_path / "pruned" / str(number), 0, share, left=left)
        report = Report(folder, layout())
        stages = [("dense", 0.95, 1000), ("pruned", share, int(1000 * left))]
        columns = ("stage", "accuracy", "flops")
        add_rows(
            report, "pruning", [dict(zip(columns, row, strict=True)) for row in stages], "stages"
        )
        speeds = [("25 % removed", 64, 1.1), ("this mask", 1, 1.2), ("this mask", 64, 1 / left)]
        columns = ("removed", "batch", "speedup")
        add_rows(report, "speed", [dict(zip(columns, row, strict=True)) for row in speeds], "speed")
    result = several(read_runs([tmp_path / "pruned", sweep / "0"]))["speed"]
    measured = [(row["flops"], row["pruned"], row["dense"]) for row in rows(result)]
    assert measured == [(0.5, 0.91, 0.95), (0.75, 0.93, 0.95)]
    shares, times = result.figure.axes
    for axes in (shares, times):  # here time is as FLOPs predict
        points = {
            tuple(map(float, line.get_xydata()[0])) for line in axes.lines if len(line.get_xydata())
        }
        assert points == {(0.5, 91.0), (0.75, 93.0), (1.0, 95.0)}
    assert "batch 64" in times.get_xlabel()


def test_one_run_is_refused_and_a_sweeps_jobs_come_by_number(tmp_path, sweep):
    with pytest.raises(UserError, match="two or more runs, got 1"):
        several(read_runs([sweep / "0"]))
    for number in (2, 10):
        seeded(tmp_path / "many" / str(number), number, 0.5)
    assert [path.name for path in expand([tmp_path / "many", sweep / "3"])] == ["2", "10", "3"]


def test_the_command_reads_each_run_once(sweep, tmp_path, monkeypatch):
    opened, within = [], Folder.path

    def path(self, name, most):
        opened.append((self.root, name))
        return within(self, name, most)

    monkeypatch.setattr(Folder, "path", path)
    monkeypatch.setattr(sys, "argv", ["compare", str(sweep), "--out", str(tmp_path / "c")])
    mhprobe.compare.main()
    tables = [place for place in opened if place[1].startswith("tables/")]
    assert tables and len(tables) == len(set(tables))


def test_what_cannot_be_read_is_named(sweep, tmp_path, monkeypatch, capsys):
    (sweep / "0" / "tables" / "svcca.csv").write_text("head_a,head_b\n1\n")
    monkeypatch.setattr(sys, "argv", ["compare", str(sweep), "--out", str(tmp_path / "c")])
    mhprobe.compare.main()
    line = next(
        line for line in capsys.readouterr().out.splitlines() if "could not be read" in line
    )
    assert line.startswith("Of sweep/0 ") and line.count("svcca.csv") == 1
    assert line in html.unescape((tmp_path / "c" / "comparison.html").read_text())


def test_the_command_writes_everything(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", str(sweep), "--out", str(tmp_path / "c")])
    mhprobe.compare.main()
    for name in ("runs", "curves", "agreement"):
        assert (tmp_path / "c" / "tables" / f"{name}.csv").is_file()
        said = Image.open(tmp_path / "c" / "figures" / f"{name}.png").text
        assert (
            said["Source"] == f"python -m mhprobe.compare {sweep.name} --out c" and said["Comment"]
        )  # no folders
    assert (tmp_path / "c" / "comparison.html").is_file() and "lr=0.1" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "nothing"), str(sweep)])
    with pytest.raises(SystemExit, match="2"):
        mhprobe.compare.main()
    assert capsys.readouterr().err.count("\n") == 1


def test_two_runs_of_one_architecture_say_where_heads_are_compared(tmp_path, monkeypatch, capsys):
    """Not of three runs, of another architecture, of runs without weights, or of a run with itself."""
    widths = {"before": 96, "after": 96, "wide": 192}
    for number, (name, width) in enumerate(widths.items()):
        folder = seeded(tmp_path / name, number, 0.5)
        (folder / "model.safetensors").touch()
        about = {"backbone": {"name": "vit", "embed_dim": width, "patch_drop_rate": number / 4}}
        (folder / "model.json").write_text(json.dumps(about))
    bare = seeded(tmp_path / "bare", 4, 0.5)
    (bare / "model.safetensors").unlink()
    read = seeded(tmp_path / "read", 5, 0.5, weights=tmp_path / "wide" / "model.safetensors")
    for name in ("model.safetensors", "model.json"):
        (read / name).unlink()
    before, after, wide = (tmp_path / name for name in widths)

    def said(*folders):
        runs = read_runs(folders)
        return head_by_head(runs)

    command = f"mhprobe diff {before} {after} PHOTOS"
    assert command in "".join(said(before, after))
    assert f"{wide / 'model.safetensors'} PHOTOS" in "".join(said(before, read))  # equal heads
    for others in ((before, wide), (before, bare), (before, before), (before, after, read)):
        assert said(*others) == []
    monkeypatch.setattr(
        sys, "argv", ["compare", *map(str, (before, after)), "--out", str(tmp_path / "c")]
    )
    mhprobe.compare.main()
    assert capsys.readouterr().out.count(command) == 1
    assert command in html.unescape((tmp_path / "c" / "comparison.html").read_text())


def test_a_comparison_does_not_stand_among_the_tables_of_another(
    sweep, tmp_path, monkeypatch, capsys
):
    def compare(*words):
        monkeypatch.setattr(sys, "argv", ["compare", *map(str, words)])
        mhprobe.compare.main()

    here, first = tmp_path / "c", (sweep / "0", sweep / "1")
    compare(*first, "--out", here)
    before = {path: path.read_bytes() for path in here.rglob("*.csv")}
    compare(*first, "--out", here)  # once more
    for others in ((*first, sweep / "3"), (*first, "--over", "lr")):
        with pytest.raises(SystemExit, match="2"):
            compare(*others, "--out", here)
        line = capsys.readouterr().err
        assert re.search(
            r"c is that of 0, 1 \(digest \w{8}\), and results of 0, 1.* \(digest \w{8}\) would",
            line,
        )
    with pytest.raises(SystemExit, match="2"):
        compare(*first, "--out", sweep / "0")  # a run's own
    assert before and before == {path: path.read_bytes() for path in here.rglob("*.csv")}
