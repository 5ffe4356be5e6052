"""Pruned networks on disk, where masks come from, what removal gains, and the command line around it all."""

from __future__ import annotations

import csv
import dataclasses
import json
import os

import pytest
import torch
from omegaconf import OmegaConf

import mhprobe
import mhprobe.prune
import runs
from mhprobe.backbones import layout_of
from mhprobe.data.batch import Batch
from mhprobe.run import pruning
from mhprobe.run.cli import CONF
from mhprobe.surgery import sources
from mhprobe.surgery.sources import View
from mhprobe.weights.checkpoint import as_json, load_weights
from models import images_for, labels_for
from pruned import logits, network

# where masks come from


@pytest.fixture
def view():
    model = network("vit")
    mhprobe.attach(model)
    images, labels = images_for(model, 12), labels_for(12)
    index, valid = torch.arange(12), torch.ones(12, dtype=torch.bool)
    return View(model, layout_of(model), lambda: [Batch(images, labels, index, valid)])


def off(mask):
    assert mask.dtype == torch.bool
    return torch.nonzero(mask).flatten().tolist()


def written(path, header, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def test_lists_and_files_name_heads(view, tmp_path):
    assert off(sources.Heads([4, 1]).choose(view)) == [1, 4]
    (tmp_path / "a.json").write_text("[4, 1]")
    (tmp_path / "a.txt").write_text("4\n1\n")
    for name in ("a.json", "a.txt"):
        assert off(sources.HeadsFile(str(tmp_path / name)).choose(view)) == [1, 4]
    for text in ("{}", "[1.5]", "[1, ", "[true]", "one"):
        name = "b.txt" if text == "one" else "b.json"
        (tmp_path / name).write_text(text)
        with pytest.raises(mhprobe.UserError, match=f"{name} holds no list"):
            sources.HeadsFile(str(tmp_path / name)).choose(view)
    with pytest.raises(mhprobe.UserError, match=r"nowhere\.txt cannot be read"):
        sources.HeadsFile(str(tmp_path / "nowhere.txt")).choose(view)


CURVE = (
    ("curve", "split", "step", "heads_masked", "masked", "seed"),
    ("best", "test", 0, 0, "", ""),
    ("best", "test", 1, 2, "0 3", ""),
    ("best", "test", 2, 4, "0 1 3 4", ""),
    ("random", "test", 1, 2, "1 2", "7"),
    ("random", "test", 1, 2, "", "mean"),
)


def test_a_point_of_a_masking_curve_names_heads(view, tmp_path):
    table = written(tmp_path / "curves.csv", *CURVE)
    assert off(sources.CurvePoint(table, "best", step=2).choose(view)) == [0, 1, 3, 4]
    assert off(sources.CurvePoint(table, "best", remove=2).choose(view)) == [0, 3]
    assert off(sources.CurvePoint(table, "best", step=0).choose(view)) == []
    assert off(sources.CurvePoint(table, "random", remove=2).choose(view)) == [1, 2]  # not the mean's row
    alone = written(tmp_path / "one.csv", *CURVE[:4])
    assert off(sources.CurvePoint(alone, step=1).choose(view)) == [0, 3]
    for options, words in [
        ({"curve": "best", "remove": 3}, "remove=3; the nearest is 2"),
        ({"curve": "best", "step": 9}, "step=9; the nearest is 2"),
        ({"curve": "best"}, "step .* or remove"),
        ({"curve": "best", "step": 1, "remove": 2}, "step .* or remove"),
        ({"step": 1}, "best, random, got None"),
        ({"curve": "worst", "step": 1}, "best, random, got worst"),
    ]:
        with pytest.raises(mhprobe.UserError, match=words):
            sources.CurvePoint(table, **options).choose(view)


def test_the_lowest_scores_of_a_table_go(view, tmp_path):
    scores = [3, 1, 2, 1, 5, 4]
    table = written(tmp_path / "scores.csv", ("head", "value", "other"), *[(h, s, -s) for h, s in enumerate(scores)])
    assert off(sources.ScoreTable(table, 3).choose(view)) == [1, 2, 3]
    assert off(sources.ScoreTable(table, 1).choose(view)) == [1]  # ties: the lower index
    assert off(sources.ScoreTable(table, 2, column="other").choose(view)) == [4, 5]
    assert off(sources.ScoreTable(table, 2, lowest=False).choose(view)) == [4, 5]
    assert off(sources.ScoreTable(table, 0).choose(view)) == []
    broken = written(tmp_path / "nan.csv", ("head", "value"), *[(h, "nan" if h == 4 else 1) for h in range(6)])
    short = written(tmp_path / "short.csv", ("head", "value"), (0, 1), (1, 1))
    for source, words in [
        (sources.ScoreTable(table, 6), "0 to 5 can go, got 6; the nearest is 5"),
        (sources.ScoreTable(table, -1), "got -1; the nearest is 0"),
        (sources.ScoreTable(table, 2, column="score"), "no column score"),
        (sources.ScoreTable(broken, 2), r"nan\.csv has the score nan for head 1 of blocks\.1\.attn"),
        (sources.ScoreTable(short, 1), "2 rows.*another model"),
        (sources.ScoreTable(str(tmp_path / "nowhere.csv"), 1), "cannot be read"),
    ]:
        with pytest.raises(mhprobe.UserError, match=words) as error:
            source.choose(view)
        assert "\n" not in str(error.value)


def test_gates_that_are_closed_name_heads(view):
    gates = mhprobe.attach(view.model)
    with pytest.raises(mhprobe.UserError, match="no learned gates"):
        sources.LearnedGates().choose(view)
    with torch.no_grad():
        gates.values.copy_(torch.tensor([0.0, 0.9, -0.2, 1.0, 0.0, 0.5]))
    assert off(sources.LearnedGates().choose(view)) == [0, 4]
    assert off(sources.LearnedGates(threshold=0.5).choose(view)) == [0, 2, 4, 5]
    assert off(sources.LearnedGates(remove=1).choose(view)) == [0]
    with torch.no_grad():
        gates.values.clamp_(min=0.25)
    with pytest.raises(mhprobe.UserError, match=r"at or below 0\.1; the nearest is 0\.25"):
        sources.LearnedGates(threshold=0.1).choose(view)


def test_the_decision_of_the_run_that_learned_the_gates_is_followed(view):
    gates = mhprobe.attach(view.model)
    with torch.no_grad():
        gates.values.copy_(torch.tensor([0.1, 0.9, 0.2, 1.0, 1.0, 0.5]))  # none is 0, and two are alike
    decided = dataclasses.replace(view, kept=torch.tensor([0, 1, 0, 1, 0, 1]).bool())
    assert off(sources.LearnedGates().choose(decided)) == [0, 2, 4]
    assert off(sources.LearnedGates(remove=1).choose(decided)) == [0]
    assert off(sources.LearnedGates(threshold=0.5).choose(decided)) == [0, 2, 5]
    with pytest.raises(mhprobe.UserError, match="keeps all 6 heads"):
        sources.LearnedGates().choose(dataclasses.replace(view, kept=torch.ones(6, dtype=torch.bool)))


def test_a_table_of_kept_heads_names_the_others(view, tmp_path):
    table = written(tmp_path / "kept.csv", ("head", "kept"), *[(head, int(head % 2)) for head in range(6)])
    assert off(sources.KeptTable(table).choose(view)) == [0, 2, 4]


def test_a_measure_and_a_fisher_search_choose_by_looking(view):
    expected = mhprobe.measure(view.model, [next(iter(view.batches()))[:2]], [mhprobe.measures.GateImportance])
    lowest = expected["gate_importance"].argsort()[:2].sort().values.tolist()
    assert off(sources.LowestScore(mhprobe.measures.GateImportance, 2).choose(view)) == lowest
    assert len(off(sources.LowestScore(mhprobe.measures.GateImportance, 2).choose(view, remove=3))) == 3
    assert len(off(sources.FisherSearch(remove=2).choose(view))) == 2
    assert 0 < len(off(sources.FisherSearch(flops=0.9).choose(view))) < 6
    for source, words in [
        (sources.FisherSearch(), "remove .* or flops"),
        (sources.FisherSearch(remove=1, flops=0.5), "remove .* or flops"),
        (sources.FisherSearch(flops=1.5), "share between 0 and 1, got 1.5"),
        (sources.FisherSearch(flops=0.01), "saves at most .* the nearest is"),
        (sources.FisherSearch(remove=6), "the nearest is 5"),
        (sources.LowestScore(mhprobe.measures.GateImportance, 2, "images"), "columns per head, .* got 'images'"),
    ]:
        with pytest.raises(mhprobe.UserError, match=words):
            source.choose(view)


def test_every_yaml_names_a_source_with_its_options():
    for path in sorted((CONF / "prune").glob("*.yaml")):
        mask = OmegaConf.load(path).mask
        if path.stem == "none":
            assert mask is None
            continue
        source = getattr(sources, mask._target_.rpartition(".")[2])
        assert {field.name for field in dataclasses.fields(source)} == set(mask.keys()) - {"_target_"}


# the task


def config(folder, *overrides):
    return runs.config("prune", folder, *overrides)


@pytest.mark.slow
def test_rounds_of_pruning_repair_and_tuning_end_in_a_network_that_loads(trained, tmp_path, capsys):
    weights = trained.folder / "model.safetensors"
    cfg = config(
        tmp_path,
        f"weights={weights}",
        *("prune=measure", "prune.mask.remove=3", "prune.rounds=2", "prune.images=60"),
        *("prune.repair.per=weights", "prune.tune_epochs=1", "prune.torch_export=true"),
        *("prune.speed=true", "prune.speed_rounds=6"),
    )
    mhprobe.prune.run(cfg, tmp_path / "run")
    folder = tmp_path / "run"
    with (folder / "tables" / "pruning.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["round"], row["stage"], row["heads"]) for row in rows] == [
        ("0", "dense", "6"),
        *[("1", stage, "4") for stage in ("masked", "pruned", "repaired", "tuned")],
        *[("2", stage, "3") for stage in ("masked", "pruned", "repaired", "tuned")],
    ]
    for row in rows:
        assert float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) and row["images"] == "101"
    masked, pruned = rows[1], rows[2]
    assert masked["accuracy"] == pruned["accuracy"] and int(masked["flops"]) > int(pruned["flops"])
    model, about = load_weights(folder / "pruned.safetensors")
    assert layout_of(model).num_heads == 3 == sum(len(heads) for heads in about["kept"].values())
    assert sum(p.numel() for p in model.parameters()) == int(rows[-1]["parameters"])
    with (folder / "tables" / "kept_heads.csv").open() as file:
        kept = {(row["site"], int(row["index"])) for row in csv.DictReader(file) if row["kept"] == "1"}
    assert kept == {(site, head) for site, heads in about["kept"].items() for head in heads}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["test/accuracy"] == pytest.approx(float(rows[-1]["accuracy"]))
    assert metrics["prune/largest_difference"] < 1e-5
    for name in ("figures/kept_heads.png", "figures/speed.png", "tables/speed.csv", "pruned.pt2"):
        assert (folder / name).stat().st_size
    checkpoint = mhprobe.load(folder / "checkpoints" / "round_2" / "best.ckpt")  # loads as well
    images = images_for(model, 2)
    assert torch.equal(logits(checkpoint, images), logits(model, images))
    assert "differ by at most" in capsys.readouterr().out


@pytest.mark.slow
def test_a_pruned_file_is_a_weights_file_for_pruning_again(trained, tmp_path):
    weights, seen = trained.folder / "model.safetensors", []
    for number, heads in enumerate(("[0,4]", "[0]")):
        folder = tmp_path / f"run{number}"
        mhprobe.prune.run(config(tmp_path, f"weights={weights}", "prune=list", f"prune.mask.heads={heads}"), folder)
        weights = folder / "pruned.safetensors"
        seen.append(json.loads(weights.with_suffix(".json").read_text())["kept"])
    assert seen == [{"blocks.0.attn": [1, 2], "blocks.1.attn": [0, 2]}, {"blocks.0.attn": [2], "blocks.1.attn": [0, 2]}]


@pytest.mark.slow
def test_an_emptied_layer_without_its_bias_is_compared_with_a_mask_without_it(trained, tmp_path):
    cfg = config(
        tmp_path,
        f"weights={trained.folder / 'model.safetensors'}",
        *("prune=list", "prune.mask.heads=[0,1,2]", "prune.proj_bias=drop"),
    )
    mhprobe.prune.run(cfg, tmp_path / "run")
    model, about = load_weights(tmp_path / "run" / "pruned.safetensors")
    assert about["proj_bias"] == "drop" and about["kept"]["blocks.0.attn"] == []
    assert not model.blocks[0].attn.proj.bias.any()


@pytest.mark.slow
def test_logits_that_differ_stop_the_task_before_anything_is_saved(trained, tmp_path, monkeypatch):
    whole = pruning.prune_heads

    def wrong(model, mask, **options):
        pruned = whole(model, mask, **options)
        with torch.no_grad():
            pruned.head.bias += 1e-3
        return pruned

    monkeypatch.setattr(pruning, "prune_heads", wrong)
    cfg = config(tmp_path, f"weights={trained.folder / 'model.safetensors'}", "prune=list", "prune.mask.heads=[0]")
    with pytest.raises(RuntimeError, match="nothing was saved"):
        mhprobe.prune.run(cfg, tmp_path / "run")
    assert not list((tmp_path / "run").glob("pruned.*"))


@pytest.mark.slow
def test_a_full_disk_at_the_end_is_one_line_and_no_file(trained, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pruning.Pruning, "report", None)
    cfg = config(tmp_path, f"weights={trained.folder / 'model.safetensors'}", "prune=list", "prune.mask.heads=[0]")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(mhprobe.UserError, match="No space left on device"):
        mhprobe.prune.run(cfg, tmp_path / "run")
    assert not list((tmp_path / "run").glob("*pruned*"))


MISTAKES = {  # overrides -> what the one line must name
    (): ("weights=",),
    ("weights=W",): ("prune=measure", "fisher", "list"),
    ("weights=W", "prune=measure"): ("prune.mask.remove",),
    ("weights=W", "prune=measure", "prune.mask.remove=1", "measure=[svcca]"): ("prune.mask.measure", "gate_importance"),
    ("weights=W", "prune=measur"): ("measur", "measure", "fisher"),
    ("weights=W", "prune=list", "prune.mask.heads=[0,1,2,3,4,5]"): ("empties the model",),
    ("weights=W", "prune=list", "prune.mask.heads=[6]"): ("0 to 5",),
    ("weights=W", "prune=measure", "prune.mask.remove=6"): ("nearest is 5",),
    ("weights=W", "prune=measure", "prune.mask.remove=2", "prune.rounds=3"): ("prune.rounds", "nearest is 2"),
    ("weights=W", "prune=list", "prune.mask.heads=[0]", "prune.rounds=2"): ("prune.rounds", "prune=measure"),
    ("weights=W", "prune=fisher", "prune.mask.flops=0.01"): ("the nearest is",),
    ("weights=W", "prune=scores", "prune.mask.table=nan.csv", "prune.mask.remove=1"): ("nan.csv", "blocks.0.attn"),
    ("weights=W", "prune=file", "prune.mask.path=nowhere.json"): ("nowhere.json",),
    ("weights=W", "prune=gates"): ("no learned gates",),
    ("weights=W", "prune=curve", "prune.mask.table=nan.csv", "prune.mask.step=1"): ("no column", "curve"),
    ("weights=W", "prune=list", "prune.mask.heads=[0]", "prune.repair.per=layer"): ("prune.repair.per", "head"),
    ("weights=W", "prune=list", "prune.mask.heads=[0]", "+prune.mask.wings=2"): ("prune.mask", "wings"),
    ("weights=W", "prune=list", "prune.mask.heads=[0]", "ckpt_path=last"): ("ckpt_path",),
    ("weights=bent.safetensors", "prune=list", "prune.mask.heads=[0]"): ("bent", "blocks.0.attn"),
    ("backbone.name=swinv2_tiny_window8_256", "weights=W", "prune=list", "prune.mask.heads=[7]"): ("0 to 5",),
}


@pytest.fixture(scope="module")
def replies(tmp_path_factory, trained):
    cwd = tmp_path_factory.mktemp("mistakes")
    weights = trained.folder / "model.safetensors"
    written(cwd / "nan.csv", ("head", "value"), *[(head, "nan" if head == 2 else head) for head in range(6)])
    bent = cwd / "bent.safetensors"
    bent.write_bytes(weights.read_bytes())
    about = json.loads(weights.with_suffix(".json").read_text())
    bent.with_suffix(".json").write_bytes(as_json({**about, "kept": {"blocks.0.attn": [7], "blocks.1.attn": [0]}}))
    commands = [
        runs.Command("prune", [*runs.TINY, *(part.replace("=W", f"={weights}") for part in overrides)])
        for overrides in MISTAKES
    ]
    return dict(zip(MISTAKES, runs.answers(commands, cwd), strict=True)), cwd


@pytest.mark.slow
@pytest.mark.parametrize("overrides", MISTAKES, ids=" ".join)
def test_a_mistake_gets_one_line_and_leaves_no_network(replies, overrides):
    answers, cwd = replies
    line = answers[overrides].answer
    for word in MISTAKES[overrides]:
        assert word in line
    assert len(line) < 600
    assert not list(cwd.glob("outputs/**/pruned.*"))


@pytest.mark.slow
def test_the_command_line_prunes_in_one_process_only(trained, tmp_path):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    common = [*runs.TINY, weights, "prune=list", "prune.mask.heads=[0]"]
    [fine] = runs.answers([runs.Command("prune", common)], tmp_path)
    assert fine.code == 0, fine.err
    assert "5 heads" in fine.out and "saved: pruned.safetensors, pruned.json" in fine.out
    many = runs.run("prune", *common, "trainer=ddp", "trainer.accelerator=cpu", cwd=tmp_path)
    assert "one process" in many.answer
