"""PruneBench: methods at equal FLOPs, cell by cell, beside another package; which differences are real."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import html
import json
import math
import re
import shutil
import threading
from types import SimpleNamespace

import pytest
import torch

import mhprobe
import mhprobe.prunebench
import runs
from mhprobe.backbones import layout_of
from mhprobe.heads import KINDS
from mhprobe.lab.prunebench import bench, cells, peer
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.turns import Turns
from mhprobe.pages.benches import ranked
from mhprobe.pages.html import write_comparison
from mhprobe.pages.several import groups_in_words, several
from mhprobe.report.figures.pruned import pareto
from mhprobe.report.result import Sample
from mhprobe.report.runs.run import read_run, read_runs
from mhprobe.report.runs.words import best_methods
from mhprobe.scoring import knn_train
from mhprobe.stats import ranking as ranks
from mhprobe.stats.ranking import Cell, ranking
from mhprobe.surgery import export
from models import images_for, make_loud, tiny_vit
from pruned import logits, shown

start = knn_train.KNNTrain.__init__
IMAGES = SimpleNamespace(fingerprint="images", images_of=lambda *splits: " ".join(splits))
FEW = ("prune.images=24", "prune.speed=false", "budgets=[0.6]")


def config(folder, *overrides):
    return runs.config("prunebench", folder, f"cells={folder / 'cells'}", *FEW, *overrides)


def ran(cfg, folder):
    mhprobe.prunebench.run(cfg, folder)
    return runs.rows(folder / "tables" / "prunebench.csv")


def test_a_bench_goes_on_where_it_stopped_and_says_what_is_missing(
    trained, tmp_path, monkeypatch, capsys, caplog
):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    typed = tmp_path / "run" / "config" / "overrides.yaml"
    typed.parent.mkdir(parents=True)
    typed.write_text(f"- {weights}\n- methods=[random,fisher]\n- prune.images=24\n")
    typed.with_name("config.yaml").write_text("prune: {select_on: train}\n")
    rows = ran(
        config(tmp_path, weights, "methods=[random,fisher]", "seeds=[0,1]"), tmp_path / "run"
    )
    done = [row for row in rows if not row["note"]]
    assert {(row["method"], row["seed"]) for row in done} == {
        (m, s) for m in ("random", "fisher") for s in "01"
    }
    for row in done:
        assert (
            0.3 < float(row["flops"]) <= 0.6
            and row["images"] == "101"
            and float(row["minutes"]) > 0
        )
        assert float(row["difference"]) == pytest.approx(
            float(row["repaired"]) - float(row["dense"])
        )
    missing = [row for row in rows if row["note"]]
    # the same settings: the same cell
    command = f"not run: python -m mhprobe.prunebench {weights} prune.images=24 "
    assert missing and all(row["note"].startswith(command) for row in missing)
    assert "'methods=[magnitude]' 'budgets=[0.6]' 'seeds=[1]'" in {
        row["note"].removeprefix(command) for row in missing
    }
    ranked = runs.rows(tmp_path / "run" / "tables" / "prunebench_ranking.csv")
    assert {row["method"] for row in ranked} == {"random", "fisher"} and all(
        row["seeds"] == "2" for row in ranked
    )
    page, (best, other) = (tmp_path / "run" / "report.html").read_text(), ranked
    worse = other["method"] if float(other["p_holm"]) < 0.05 else "none"
    sentence = (
        f"At 60 % of the FLOPs {best['method']} is the best of 2 methods, with an accuracy of "
    )
    ending = f"; repaired, seeds: 2). Significantly worse: {worse}."
    assert re.search(
        rf"{sentence}[\d.]+ % \(dense [\d.]+ %{re.escape(ending)}", capsys.readouterr().out
    )
    assert ending in page and "No accuracy was measured" not in page
    assert "was chosen on training images unless it says otherwise" in page

    def never(cell, *_, **__):
        asked.append(str(cell))
        raise ValueError("its\nown mistake")

    asked: list[str] = []
    monkeypatch.setattr(cells, "run_cell", never)
    again = ran(
        config(tmp_path, weights, "methods=[random,magnitude]", "seeds=[0,1]"), tmp_path / "run"
    )
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [
        f"magnitude_0.6_{seed}: ValueError: its own mistake" for seed in (0, 1)
    ]  # a run prints these
    assert asked == ["magnitude_0.6_0", "magnitude_0.6_1"]  # what is there is not run again ...
    assert [row for row in again if row["method"] in ("random", "fisher")] == done
    assert {row["note"] for row in again if row["method"] == "magnitude"} == {
        "ValueError: its own mistake"
    }
    others = {
        "magnitude_0.6_0": "seed=0",
        "random_0.6_0": "score=kl",
        "random_0.6_1": "prune.speed=true",
    }
    for cell, other in {**others, "fisher_0.6_0": "prune.images=25"}.items():
        asked.clear()
        method, _, seed = cell.split("_")
        empty = pytest.raises(
            mhprobe.UserError,
            match=r"^prunebench: no cell has a result.* ValueError: its own mistake$",
        )
        with (
            empty if other != "seed=0" else contextlib.nullcontext()
        ):  # which leaves the cells of other methods
            ran(
                config(tmp_path, weights, f"methods=[{method}]", f"seeds=[{seed}]", other),
                tmp_path / "run",
            )
        assert asked == [cell], (
            other
        )  # ... but what failed, and what other settings make other numbers of
    asked.clear()
    monkeypatch.setattr(cells, "our_digest", lambda: "edited")
    with pytest.raises(mhprobe.UserError, match="no cell has a result"):
        ran(config(tmp_path, weights, "methods=[fisher]", "seeds=[1]"), tmp_path / "run")
    assert asked == ["fisher_0.6_1"]  # and what other code made


@pytest.mark.parametrize("speed", ["true", "false"])
def test_times_of_another_machine_are_not_those_of_this_one(tmp_path, monkeypatch, speed):
    model = SimpleNamespace(
        description={"backbone": {}}, backbone=torch.nn.Identity(), device=torch.device("cpu")
    )
    material = SimpleNamespace(model=model, layout=None, data=IMAGES)
    cfg = config(tmp_path, f"prune.speed={speed}")
    here = cells.Cells(cfg, material).files
    assert here == cells.Cells(cfg, material).files
    monkeypatch.setattr("mhprobe.surgery.costs.processor", lambda: "another processor")
    assert (here == cells.Cells(cfg, material).files) == (speed == "false")


@pytest.mark.parametrize("epochs", [0, 1])
def test_tuning_in_another_precision_makes_cells_of_its_own(tmp_path, epochs, monkeypatch):
    """A bench tuned in bfloat16 once showed the numbers of one that was tuned in float32."""
    model = SimpleNamespace(
        description={"backbone": {}}, backbone=torch.nn.Identity(), device=torch.device("cpu")
    )
    material = SimpleNamespace(model=model, layout=None, data=IMAGES)
    tuned = (f"prune.tune_epochs={epochs}", "optim.teacher=null")
    plain, changed = (
        cells.Cells(config(tmp_path, *tuned, *more), material).files
        for more in ((), ("trainer.precision=bf16-mixed",))
    )
    assert (plain == changed) == (epochs == 0)
    chosen = cells.Cells(config(tmp_path, *tuned, "prune.precision=bf16-mixed"), material).files
    assert chosen != plain  # and so does choosing in another precision, whatever tunes
    for faster, expected in (
        (False, plain),
        (True, changed),
    ):  # "auto" is what this machine makes of it
        monkeypatch.setattr(
            torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda faster=faster: faster
        )
        auto = config(tmp_path, *tuned, "trainer.precision=auto", "trainer.accelerator=cpu")
        assert cells.Cells(auto, material).files == expected


@pytest.mark.parametrize("fails", [False, True])
def test_jobs_that_start_together_share_out_the_cells_and_take_over_from_one_that_was_killed(
    tmp_path, monkeypatch, caplog, fails
):
    """Each once ran them all; then one waited for the other without a word, and did again what had failed there."""
    model = SimpleNamespace(
        description={"backbone": {}}, backbone=torch.nn.Identity(), device=torch.device("cpu")
    )
    material = SimpleNamespace(model=model, layout=None, data=IMAGES)
    cfg = config(tmp_path, "methods=[random,fisher]", "seeds=[0,1]")
    ran, theirs = [], []

    def watched(cell, *_, **__):
        ran.append(cell)
        if (
            len(ran) == 1
        ):  # while this job is at its first cell, another one runs the others, and waits for it
            other.start()
            runs.wait(
                lambda: "waiting for" in caplog.text
            )  # it has ended all others: not only begun the last
            if fails:
                raise RuntimeError("not this one")
        return {"repaired": 0.5}, {"repaired": torch.ones(2, dtype=torch.bool)}, None

    monkeypatch.setattr(cells, "run_cell", watched)
    monkeypatch.setattr(cells.pruning, "judge_of", lambda *_: None)
    job = cells.Cells(cfg, material)
    other = threading.Thread(
        target=lambda: theirs.append(cells.Cells(cfg, material).run()), daemon=True
    )
    claim = next(iter(job.files.values())).with_suffix(".lock")
    claim.parent.mkdir(parents=True)
    claim.touch()  # of a job that was killed
    ours = job.run()
    other.join(60)
    for there in (ours, *theirs):
        assert sum(kept is not None for kept in there.values()) == 4
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"other jobs run what is left; waiting for {ran[0]}",
        *([f"{ran[0]}: RuntimeError: not this one"] * fails),
    ]
    assert (
        len(theirs) == 1 and len(set(ran)) == len(ran) == 4 and not [*claim.parent.glob("*.lock")]
    )


def test_jobs_with_other_settings_that_share_a_folder_keep_each_others_cells(trained, tmp_path):
    """A sweep over tuning once ended with tables of cells that were "not run": each job had replaced the other's."""
    options = (
        f"weights={trained.folder / 'model.safetensors'}",
        "methods=[magnitude]",
        "seeds=[0]",
    )
    shown_work = []
    for images in (24, 25, 24):
        folder = tmp_path / "run"
        row = next(
            row
            for row in ran(config(tmp_path, *options, f"prune.images={images}"), folder)
            if not row["note"]
        )
        shown_work.append((images, row["minutes"]))
    assert (
        shown_work[0] == shown_work[2] != shown_work[1]
        and len([*(tmp_path / "cells").iterdir()]) == 2
    )


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ("budgets=[1.5]", "budgets: expected shares"),
        ("methods=[best]", "methods: expected some"),
        ("methods=[]", "methods: expected one at the least"),
        (
            "prune.onnx=true",
            "prune.onnx: cells are timed with ONNX Runtime, expected prune.speed=true",
        ),
        ("seeds=[]", "seeds: expected one at the least"),
        ("seeds=[0,1,0]", r"seeds: expected one at the least, and each once, got \[0, 1, 0\]"),
        ("methods=[fisher,fisher]", "methods: expected one at the least, and each once"),
        ("prune.rounds=3", r"prune\.rounds: all cells have 1, got 3"),
        ("prune.elastic=true", r"prune\.elastic: all cells have false, got True"),
        ("+prune.min_heads_per_layer=1", r"prune\.min_heads_per_layer: all cells have 0, got 1"),
        (
            "prune=order",
            r"prune\.order: all cells have none, got {'_target_'.*; use mhprobe\.prune\.$",
        ),
    ],
)
def test_what_no_cell_can_follow_is_refused(tmp_path, option, match):
    with pytest.raises(mhprobe.UserError, match=match):
        mhprobe.prunebench.run(config(tmp_path, option), tmp_path / "run")


def test_a_budget_out_of_reach_is_said_without_the_name_of_an_exception(trained, tmp_path):
    cfg = config(
        tmp_path, f"weights={trained.folder / 'model.safetensors'}", "methods=[random]", "seeds=[0]"
    )
    cfg = cfg.but(budgets=[0.01])
    with pytest.raises(
        mhprobe.UserError, match=r"the first failed: prune\.target: flops=0\.01 can't be met"
    ):
        mhprobe.prunebench.run(cfg, tmp_path / "run")


def test_features_are_judged_by_neighbours_among_all_images_that_are_not_tested(
    trained, tmp_path, monkeypatch
):
    banks = []
    monkeypatch.setattr(
        knn_train.KNNTrain, "__init__", lambda self, *bank: banks.append(bank) or start(self, *bank)
    )
    features = ("backbone.num_classes=0", "score=knn_train", "methods=[magnitude]", "seeds=[0]")
    cfg = config(tmp_path, f"weights={trained.folder / 'model.safetensors'}", *features)
    (row,) = [row for row in ran(cfg, tmp_path / "run") if row["method"] == "magnitude"]
    assert row["note"] == "" and 0 <= float(row["repaired"]) <= 1 and row["images"] == "101"
    assert {len(bank[0]) for bank in banks if bank} == {96 + 51}  # training and validation images


def test_a_seed_draws_what_a_method_draws_and_its_images(trained, tmp_path, monkeypatch):
    chosen, prune = [], bench.prune

    def watched(model, judge, source, *how, **options):
        pruned = prune(model, judge, source, *how, **options)
        chosen.append((pruned.gone, source.order.seed, judge.selection.chosen.tolist()))
        return pruned

    monkeypatch.setattr(bench, "prune", watched)
    cfg = config(
        tmp_path,
        f"weights={trained.folder / 'model.safetensors'}",
        "methods=[random]",
        "seeds=[3,4]",
    )
    ran(cfg, tmp_path / "run")
    (one, first, images), (other, second, others) = chosen
    assert (first, second) == (3, 4) and not torch.equal(one, other) and images != others


def test_a_seed_reaches_the_search_inside_an_order(monkeypatch):
    """Its race once looked at the same images in the cells of every seed."""
    methods = []

    def watched(model, judge, source, *_, **__):
        methods.append(source.order)
        raise StopIteration

    monkeypatch.setattr(bench, "prune", watched)
    model, _, judge = shown(KINDS)
    plain = Turns(turns=3, multiple=2)
    for seed in (0, 5):
        with pytest.raises(StopIteration):
            bench.run_cell(Cell("turns", 0.6, seed), plain, model, judge)
    first, other = methods
    assert first == plain and other.search.single.then == Racing(seed=5)
    assert dataclasses.replace(other, search=plain.search) == plain  # nothing else is another


class Last:
    """A method of somebody else's, of a plain class: it takes what is at the end, a share of all units."""

    def __init__(self, left):
        self.left = left

    def choose(self, model, judge, target):
        layout = layout_of(model)
        return torch.arange(layout.num_heads) >= layout.num_heads * self.left


def test_budgets_that_differ_in_their_seventh_digit_are_two_cells_and_the_command_names_each():
    near = [Cell("random", 0.3333333, 0), Cell("random", 0.333333, 0)]
    assert len({*map(str, near)}) == 2
    rows = cells.results("bench", dict.fromkeys(near))[cells.TABLE].table.dicts()
    assert [row["note"].split()[-2] for row in rows] == [
        "'budgets=[0.3333333]'",
        "'budgets=[0.333333]'",
    ]


def test_one_method_is_not_several():
    row = {
        "budget": 0.5,
        "method": "fisher",
        "dense": 0.9,
        "accuracy": 0.8,
        "stage": "repaired",
        "seeds": 1,
    }
    (line,) = best_methods([row])
    assert line.endswith("fisher has an accuracy of 80.0 % (dense 90.0 %; repaired, seeds: 1).")


def test_any_class_that_chooses_is_a_method():
    model, layout, judge = shown({"head", "neuron"})
    row, right, _ = bench.run_cell(Cell("last", 0.6, 3), Last(0.2), model, judge)
    assert (
        row["heads"] + row["neurons"] == math.ceil(0.2 * layout.num_heads) and row["flops"] <= 0.6
    )
    assert row["pruned"] == pytest.approx(right["pruned"].double().mean().item())


@pytest.mark.parametrize(
    ("choose", "match"),
    [
        (
            Last(0.6).choose,
            r"^SimpleNamespace: choose: expected at most {'flops': 0.6} to be left, got flops=0\.\d+\.$",
        ),
        (
            lambda *_: [0, 1],
            r"^SimpleNamespace: choose: expected a mask, \(\d+,\) bool, got \[0, 1\]\.$",
        ),
        (
            lambda *_: torch.ones(3, dtype=torch.bool),
            r"expected a mask, \(\d+,\) bool, got tensor\(\[True, True",
        ),
        (None, r"^SimpleNamespace: choose: expected a mask, \(\d+,\) bool, got None\.$"),
    ],
)
def test_a_method_that_misses_its_budget_has_no_place_among_equals(choose, match):
    """It was once the best at .3 of the FLOPs, of which it left .69."""
    model, _, judge = shown(KINDS)
    with pytest.raises(mhprobe.UserError, match=match):
        bench.run_cell(
            Cell("last", 0.6, 0),
            SimpleNamespace(**({"choose": choose} if choose else {})),
            model,
            judge,
        )


def test_the_ranking_tests_pairs_on_the_same_images_and_corrects_over_all_of_them(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    hard_N = torch.randn(2000, generator=generator)
    skill = {"good": 1.0, "equal": 1.0, "bad": 0.2}
    run = [Cell(name, 0.5, seed) for name in skill for seed in range(3)]
    right = {
        cell: {"repaired": hard_N + torch.randn(2000, generator=generator) < skill[cell.method]}
        for cell in run
    }
    found = {row["method"]: row for row in ranking(right)}
    first, second, last = found.values()
    assert {first["method"], second["method"]} == {"good", "equal"} and last["method"] == "bad"
    assert last["real"] and not second["real"] and "p" not in first
    # three pairs: the smallest p times three, whichever pair it is of
    pairs = [("good", "equal"), ("good", "bad"), ("equal", "bad")]
    flags = {
        name: torch.stack([right[Cell(name, 0.5, s)]["repaired"] for s in range(3)]).double()
        for name in skill
    }
    p = torch.tensor([ranks.crossed(flags[a] - flags[b]).p for a, b in pairs], dtype=torch.float64)
    assert last["p_holm"] == pytest.approx(
        ranks.holm(p)[pairs.index((first["method"], "bad"))].item()
    )
    assert last["to_best"] == pytest.approx(last["accuracy"] - first["accuracy"])
    # a seed that one method lacks counts for none, and the others' notes say so
    out = "left out: seed 2"
    partly = ranking({cell: right[cell] for cell in run[:-1]})
    assert {row["seeds"] for row in partly} == {2}
    assert {row["method"]: row["note"] for row in partly} == {"good": out, "equal": out, "bad": ""}
    # .03 is no difference among three pairs
    crossed = ranks.crossed
    monkeypatch.setattr(ranks, "crossed", lambda difference: crossed(difference)._replace(p=0.03))
    assert [row["real"] for row in ranking(right)[1:]] == [False, False]


def test_a_budget_whose_methods_share_no_seed_is_named_and_so_is_a_method_that_failed():
    done = [("a", 0.5, 0), ("b", 0.5, 1), ("a", 0.75, 0)]
    right = {Cell(*cell): {"pruned": torch.tensor([True, False])} for cell in done}
    right |= {Cell("c", 0.75, 0): {}, Cell("a", 0.5, 3): {}}
    rows = ranking(right, [Cell("a", 0.5, 4)])
    assert [(row["method"], row["budget"], row["seeds"], row["note"]) for row in rows] == [
        ("a", 0.75, 1, ""),
        ("a", 0.5, 0, "left out: seed 0 3 4"),
        ("b", 0.5, 0, "left out: seed 1"),
        ("c", 0.75, 0, "left out: seed 0"),
    ]
    one, *others = best_methods([{**row, "dense": 0.9} for row in rows])
    assert one.startswith("At 75 % of the FLOPs a has an accuracy of ")
    assert others == [
        "At 50 % of the FLOPs no place (failed, or lack the others' seeds): a, b.",
        "At 75 % of the FLOPs no place (failed, or lack the others' seeds): c.",
    ]


def test_the_figure_has_the_seeds_that_the_ranking_counts():
    accuracy = {
        Cell("a", 0.5, 0): 0.9,
        Cell("a", 0.5, 1): 0.1,
        Cell("b", 0.5, 0): 0.8,
        Cell("c", 0.75, 0): 0.6,
    }
    right = {
        cell: {"pruned": torch.arange(10) < round(10 * share)} for cell, share in accuracy.items()
    }
    rows = [
        {**cell._asdict(), "flops": 0.5, "dense": 0.9, "pruned": share}
        for cell, share in accuracy.items()
    ]
    result = ranked(rows, right, Sample(10, "test"))
    (shares,) = result.figure.axes
    drawn = {
        line.get_label(): line.get_ydata() for line in shares.lines if line.get_label() in "abc"
    }
    table = {row["method"]: [100 * row["accuracy"]] for row in result.table.dicts()}
    assert (
        {name: [*y] for name, y in drawn.items()}
        == table
        == {"a": [90.0], "b": [80.0], "c": [60.0]}
    )
    apart = {cell: right[cell] for cell in (Cell("a", 0.5, 1), Cell("b", 0.5, 0))}
    nothing = ranked(
        [row for row in rows if Cell(row["method"], 0.5, row["seed"]) in apart],
        apart,
        Sample(10, "test"),
    )
    assert nothing.figure is None and [row["seeds"] for row in nothing.table.dicts()] == [0, 0]


def test_networks_of_several_benches_are_ranked_together(trained, tmp_path):
    again = runs.run(
        "train", *runs.TINY, "seed=1", "data.seed=0", "masking=none", "measure=[]", cwd=tmp_path
    )
    folders = {name: tmp_path / "benches" / name for name in ("one", "two", "few")}
    weights = {"one": trained.folder, "two": again.folder, "few": trained.folder}
    for name, folder in folders.items():
        few = ("data.limit_test=50",) if name == "few" else ()
        more = ("seeds=[0]" if name == "two" else "seeds=[0,1]", "methods=[random,magnitude]", *few)
        cfg = config(
            folder, f"weights={weights[name] / 'model.safetensors'}", f"name={name}", *more
        )
        mhprobe.prunebench.run(cfg, folder)
    results = several(read_runs([folders["one"], folders["two"]]))
    result = results["prunebench_ranking"]
    (line,) = groups_in_words(results)
    assert line.startswith("At 60 % of the FLOPs ") and "repaired, networks: 2)" in line
    page = write_comparison(
        read_runs([folders["one"], folders["two"]]), tmp_path / "page.html", result
    ).read_text()
    assert (
        line in html.unescape(page)
        and "methods of pruning over networks" in page
        and "no test accuracy" not in page
    )
    rows = {row["method"]: row for row in result.table.dicts()}
    assert {row["seeds"] for row in rows.values()} == {2} and result.figure is not None
    of_cells = [runs.rows(folders[name] / "tables" / "prunebench.csv") for name in ("one", "two")]
    assert {row["note"] for row in rows.values()} == {"left out: seed 1"}
    assert str(result.of) == "benches/one, benches/two; n = 101 test images"
    for method, row in rows.items():  # seed 1, which one network has alone, does not count
        (one,), (two,) = (
            [c for c in cells if (c["method"], c["seed"]) == (method, "0")] for cells in of_cells
        )
        ends = sorted(float(cell["repaired"]) for cell in (one, two))
        assert [row["lowest"], row["highest"]] == pytest.approx(ends)
        assert row["dense"] == pytest.approx((float(one["dense"]) + float(two["dense"])) / 2)
    flags = {method: [] for method in rows}
    for name in ("one", "two"):
        right, _ = read_run(folders[name]).bench()
        for method in flags:
            flags[method].append(right[f"{method}_0.6_0/repaired"].double())
    best, other = rows
    expected = ranks.crossed(torch.stack(flags[other]) - torch.stack(flags[best]))
    assert rows[other]["p"] == pytest.approx(expected.p) and rows[other]["low"] == pytest.approx(
        expected.low
    )
    with pytest.raises(mhprobe.UserError, match="tested on different images"):
        several(read_runs([folders["two"], folders["few"]]))
    assert "prunebench_ranking" not in several(read_runs([folders["one"], trained.folder]))
    both = read_runs([folders["one"], folders["two"], trained.folder, again.folder])
    assert len(groups_in_words(several(both))) > 2  # these have others
    # one network is no repeat of itself, as in a sweep over seeds; beside another one nobody can
    # say which to take
    shutil.copytree(folders["one"], tmp_path / "copy")
    assert "prunebench_ranking" not in several(read_runs([folders["one"], tmp_path / "copy"]))
    with pytest.raises(mhprobe.UserError, match="two benches are of one network"):
        several(read_runs([folders["one"], folders["two"], tmp_path / "copy"]))
    (tmp_path / "copy" / "bench.safetensors").write_bytes(b"damaged")
    with pytest.raises(
        mhprobe.UserError, match=r"copy: bench\.safetensors is missing or damaged\. Run the bench's"
    ):
        several(read_runs([folders["two"], tmp_path / "copy"]))


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:Unwrapped parameters")
@pytest.mark.parametrize("isomorphic", [False, True])
def test_what_torch_pruning_chooses_is_what_it_would_remove(isomorphic):
    pruning = pytest.importorskip("torch_pruning")
    model = tiny_vit()
    make_loud(model, 0.2)
    layout, images = layout_of(model, KINDS), images_for(model, 4)
    score = pruning.importance.GroupMagnitudeImportance()
    mask = peer._chosen(model, layout, images[:1], score, 0.5, isomorphic=isomorphic)
    theirs = copy.deepcopy(model)
    attention, mlp = ([getattr(block, part) for block in theirs.blocks] for part in ("attn", "mlp"))
    pruner = pruning.pruner.MetaPruner(
        theirs,
        images[:1],
        score,
        global_pruning=True,
        isomorphic=isomorphic,
        pruning_ratio=0.5,
        ignored_layers=[
            theirs.head,
            theirs.patch_embed.proj,
            *(part.proj for part in attention),
            *(part.fc2 for part in mlp),
        ],
        num_heads={part.qkv: part.num_heads for part in attention},
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=0.5,
    )
    pruner.step()
    for part in attention:
        part.num_heads = pruner.num_heads[part.qkv]
        part.attn_dim = part.num_heads * part.head_dim
    assert 0 < int(mask.sum()) < layout.num_heads
    ours = mhprobe.prune_heads(model, mask, units=KINDS)
    assert torch.equal(logits(ours, images), logits(theirs, images))


@pytest.mark.peer
@pytest.mark.slow
def test_torch_pruning_runs_in_the_same_table_at_the_same_flops(trained, tmp_path):
    pytest.importorskip("torch_pruning")
    cfg = config(
        tmp_path,
        f"weights={trained.folder / 'model.safetensors'}",
        "methods=[tp_taylor,tp_hessian]",
        "seeds=[0]",
        "prune.speed=true",
        "prune.speed_rounds=1",
        "prune.tune_epochs=1",
    )
    rows = [
        row for row in ran(cfg, tmp_path / "run") if row["method"] in ("tp_taylor", "tp_hessian")
    ]
    assert [row["note"] for row in rows] == ["", ""]
    for row in rows:
        assert 0.45 < float(row["flops"]) <= 0.6 and float(row["speedup_64"]) > 0
        assert float(row["difference"]) == pytest.approx(float(row["tuned"]) - float(row["dense"]))
    assert json.loads((tmp_path / "run" / "results.json").read_text())["results"][
        "prunebench_ranking"
    ]["figure"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter and the quantiser, about their own parts
def test_onnx_runtime_and_int8_are_timed_on_the_networks_that_are_compared():
    model = tiny_vit().eval()
    small = mhprobe.prune_heads(model, [0, 1, 3]).eval()
    images = images_for(model, 4)
    sessions = export.onnx_sessions(small, images)
    exact, rough = (
        torch.from_numpy(sessions[name].run(["logits"], {"images": images.numpy()})[0])
        for name in ("onnx", "int8")
    )
    torch.testing.assert_close(exact, logits(small, images), rtol=1e-4, atol=1e-4)
    assert (
        0 < (rough - exact).abs().max() < 0.2 * exact.abs().max()
    )  # eight bits: not the same, and not another network
    row = bench._in_onnx(model, small, rounds=1)
    assert set(row) == {f"{name}_{batch}" for name in ("onnx", "int8") for batch in bench.BATCHES}
    assert all(value > 0 for value in row.values())


def test_more_methods_than_colours_are_told_apart():
    names = [f"method {number}" for number in range(11)]
    row = {"budget": 0.5, "flops": 0.5, "speedup_64": 2.0, "dense": 0.9, "repaired": 0.8}
    rows = [{**row, "method": name, "seed": seed} for name in names for seed in (0, 1)]
    lines = [line for line in pareto(rows).axes[1].lines if line.get_label() in names]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines) == 11


def test_a_method_that_makes_the_network_slower_is_drawn_too():
    row = {"budget": 0.5, "flops": 0.5, "speedup_64": 0.5, "dense": 0.9, "repaired": 0.8, "seed": 0}
    shares, times = pareto([{**row, "method": "slow"}]).axes
    assert shares.get_xlim() == (0.4, 1.05) and times.get_xlim()[1] >= 2


@pytest.mark.parametrize("name", ["obs", "fisher_isomorphic"])
def test_the_figure_ends_where_its_names_end(name):
    row = {"budget": 0.5, "flops": 0.5, "dense": 0.9, "repaired": 0.8, "seed": 0, "method": name}
    figure = pareto([row])
    legend = figure.axes[0].get_legend().get_window_extent().x1 / figure.dpi
    assert (
        legend - 0.05 < figure.get_figwidth() < legend + 0.35
    )  # inches; it was an inch and a half


def test_the_legend_is_a_ranking_at_the_smallest_budget():
    row = {"flops": 0.5, "dense": 0.9, "seed": 0}
    values = {"worst": (0.8, 0.3), "best": (0.7, 0.6), "middle": (0.9, 0.5)}
    rows = [
        {**row, "method": name, "budget": budget, "repaired": accuracy}
        for name, pair in values.items()
        for budget, accuracy in zip((0.75, 0.5), pair, strict=True)
    ]
    (shares,) = pareto(rows).axes
    assert shares.get_legend_handles_labels()[1] == ["best", "middle", "worst", "dense"]
