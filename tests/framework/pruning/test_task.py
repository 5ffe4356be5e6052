"""The command: from trained weights to a smaller network on disk, and its mistakes in one line each."""

from __future__ import annotations

import csv
import json
import os

import pytest
import torch

import mhprobe
import mhprobe.mask
import mhprobe.probe
import mhprobe.prune
import runs
from data_sets import encoded, write_zip
from mhprobe.backbones import layout_of
from mhprobe.data.base import InputSpec
from mhprobe.errors import UserError
from mhprobe.framework.run import image_data
from mhprobe.io.tensors import read_outcomes
from mhprobe.pages.html.kept import maps_of_run
from mhprobe.pages.several import pairs_of_runs
from mhprobe.pruning import rounds
from mhprobe.report.runs import atlas
from mhprobe.report.runs.run import read_run
from mhprobe.weights.checkpoint import as_json, load_weights, save_weights
from models import images_for
from pruned import description, logits, network, time_once

RECOVERY = ("prune.repair.per=weights", "prune.tune_epochs=1", "prune.images=60")


def written(path, header, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def flat(count, **image):
    """So many images beside each other, and something that is none."""
    return {f"some/{i}.png": encoded(i, **image) for i in range(count)} | {
        "some/notes.txt": b"none"
    }


def config(folder, *overrides):
    return runs.config("prune", folder, *overrides)


@pytest.mark.slow
def test_rounds_of_pruning_repair_and_tuning_end_in_a_network_that_loads(
    trained, tmp_path, capsys, monkeypatch
):
    time_once(monkeypatch)
    weights = trained.folder / "model.safetensors"
    cfg = config(
        tmp_path,
        f"weights={weights}",
        *(
            "prune=order",
            "prune/order=by_score",
            "prune.remove=3",
            "prune.rounds=2",
            "prune.images=60",
        ),
        *("prune.repair.per=weights", "prune.tune_epochs=1", "prune.torch_export=true"),
        *("prune.speed=true", "prune.speed_rounds=6"),
    )
    mhprobe.prune.run(cfg, tmp_path / "run")
    folder = tmp_path / "run"
    rows = runs.rows(folder / "tables" / "pruning.csv")
    assert [(row["round"], row["stage"], row["heads"]) for row in rows] == [
        ("0", "dense", "6"),
        *[("1", stage, "4") for stage in ("masked", "pruned", "repaired", "tuned")],
        *[("2", stage, "3") for stage in ("masked", "pruned", "repaired", "tuned")],
    ]
    for row in rows:
        assert (
            float(row["low"]) <= float(row["accuracy"]) <= float(row["high"])
            and row["images"] == "101"
        )
    masked, pruned = rows[1], rows[2]
    assert masked["accuracy"] == pruned["accuracy"] and int(masked["flops"]) > int(pruned["flops"])
    model, about = load_weights(folder / "pruned.safetensors")
    assert layout_of(model).num_heads == 3 == sum(len(heads) for heads in about["kept"].values())
    assert sum(p.numel() for p in model.parameters()) == int(rows[-1]["parameters"])
    listed = runs.rows(folder / "tables" / "kept_heads.csv")
    kept = {(row["site"], int(row["index"])) for row in listed if row["kept"] == "1"}
    assert kept == {(site, head) for site, heads in about["kept"].items() for head in heads}
    run = read_run(folder)
    heads = atlas.heads_listed(run)
    looks, *_ = maps_of_run(run, heads)
    assert kept == {
        (heads[flat]["site"], heads[flat]["index"]) for flat in looks["heads"]
    }  # those that are left look
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["test/accuracy"] == pytest.approx(float(rows[-1]["accuracy"]))
    assert metrics["prune/largest_difference"] < 1e-5
    for name in ("figures/kept_heads.png", "figures/speed.png", "tables/speed.csv", "pruned.pt2"):
        assert (folder / name).stat().st_size
    checkpoint = mhprobe.load(folder / "checkpoints" / "round_2" / "best.ckpt")  # loads as well
    images = images_for(model, 2)
    assert torch.equal(logits(checkpoint, images), logits(model, images))
    said = capsys.readouterr().out.splitlines()
    last = said.index("saved: pruned.safetensors, pruned.json, pruned.pt2")
    assert "differ by at most" in said[last - 2] and "FLOPs per image" in said[last - 1]
    assert {row["batch"] for row in runs.rows(folder / "tables" / "speed.csv")} == {
        "1",
        "4",
        "16",
        "64",
    }


@pytest.mark.slow
def test_a_mix_of_heads_and_neurons_meets_its_budget_in_rounds_and_goes_on(
    trained, tmp_path, capsys, monkeypatch
):
    time_once(monkeypatch)
    budget = ("gates.units=[head,neuron]", "prune=order", "prune/order=knapsack", "prune.images=60")
    cfg = config(
        tmp_path,
        f"weights={trained.folder / 'model.safetensors'}",
        *(
            *budget,
            "prune.target={flops:0.6}",
            "prune.rounds=2",
            *RECOVERY,
            "prune.torch_export=true",
        ),
        *("prune.speed=true", "prune.speed_rounds=6"),
    )
    mhprobe.prune.run(cfg, tmp_path / "run")
    rows = runs.rows(tmp_path / "run" / "tables" / "pruning.csv")
    dense, masked, pruned, last = rows[0], rows[1], rows[2], rows[-1]
    assert (
        0.55
        < int(last["flops"]) / int(dense["flops"])
        <= 0.6
        < int(pruned["flops"]) / int(dense["flops"])
        <= 0.8
    )
    assert (
        masked["accuracy"] == pruned["accuracy"]
        and masked["neurons"] == pruned["neurons"] < dense["neurons"]
    )
    assert int(last["heads"]) <= 6 and int(last["neurons"]) < int(pruned["neurons"])
    listed = runs.rows(tmp_path / "run" / "tables" / "kept_heads.csv")
    model, about = load_weights(tmp_path / "run" / "pruned.safetensors")
    kept = {(row["site"], int(row["index"])) for row in listed if row["kept"] == "1"}
    assert kept == {(site, unit) for site, units in about["kept"].items() for unit in units}
    assert {row["kind"] for row in listed} == {"head", "neuron"} and len(kept) < len(listed)
    out = capsys.readouterr().out
    assert (
        f"tuned: {last['heads']} heads and {last['neurons']} neurons" in out
        and f"of {dense['neurons']} neurons are those that" in out
    )
    more = (
        f"weights={tmp_path / 'run' / 'pruned.safetensors'}",
        *budget,
        "prune.target={params:0.8}",
    )
    mhprobe.prune.run(config(tmp_path, *more), tmp_path / "more")
    again, described = load_weights(tmp_path / "more" / "pruned.safetensors")
    count = [sum(part.numel() for part in each.parameters()) for each in (model, again)]
    assert count[1] <= 0.8 * count[0]
    assert all(set(described["kept"][site]) <= set(units) for site, units in about["kept"].items())


@pytest.mark.slow
def test_a_pruned_file_is_a_weights_file_for_pruning_again(trained, tmp_path):
    weights, seen = trained.folder / "model.safetensors", []
    for number, heads in enumerate(("[0,4]", "[0]")):
        folder = tmp_path / f"run{number}"
        mhprobe.prune.run(
            config(tmp_path, f"weights={weights}", "prune=given", f"prune.heads={heads}"), folder
        )
        weights = folder / "pruned.safetensors"
        seen.append(json.loads(weights.with_suffix(".json").read_text())["kept"])
    assert seen == [
        {"blocks.0.attn": [1, 2], "blocks.1.attn": [0, 2]},
        {"blocks.0.attn": [2], "blocks.1.attn": [0, 2]},
    ]


@pytest.mark.slow
def test_a_network_that_lost_all_heads_has_none_to_measure_to_mask_or_to_prune(trained, tmp_path):
    """It reads "max() arg is an empty sequence", or that 0 of 0 layers are excluded, otherwise."""
    weights, half = trained.folder / "model.safetensors", "prune.target={head: 0, neuron: 0.5}"
    units = ("gates.units=[head,neuron]", "prune=order", half, "prune.images=60")
    mhprobe.prune.run(config(tmp_path, f"weights={weights}", *units), tmp_path / "a")
    pruned = f"weights={tmp_path / 'a' / 'pruned.safetensors'}"
    one = ("prune=order", "prune.remove=1")
    for command, more in ((mhprobe.probe, ()), (mhprobe.mask, ()), (mhprobe.prune, one)):
        cfg = runs.config(command.__name__.split(".")[-1], tmp_path, pruned, *more)
        with pytest.raises(
            UserError, match=r"this network has no heads left.*gates.units=\[neuron\]"
        ):
            command.run(cfg, tmp_path / "b")


@pytest.mark.slow
def test_an_emptied_layer_without_its_bias_is_compared_with_a_mask_without_it(trained, tmp_path):
    cfg = config(
        tmp_path,
        f"weights={trained.folder / 'model.safetensors'}",
        *("prune=given", "prune.heads=[0,1,2]", "prune.proj_bias=drop", *RECOVERY),
    )
    mhprobe.prune.run(cfg, tmp_path / "run")
    model, about = load_weights(tmp_path / "run" / "pruned.safetensors")
    assert about["proj_bias"] == "drop" and about["kept"]["blocks.0.attn"] == []
    assert not model.blocks[0].attn.proj.bias.any()


@pytest.mark.slow
def test_logits_that_differ_stop_the_task_before_anything_is_saved(trained, tmp_path, monkeypatch):
    whole = rounds.prune_heads

    def wrong(model, mask, **options):
        pruned = whole(model, mask, **options)
        with torch.no_grad():
            pruned.head.bias += 1e-3
        return pruned

    monkeypatch.setattr(rounds, "prune_heads", wrong)
    cfg = config(
        tmp_path,
        f"weights={trained.folder / 'model.safetensors'}",
        "prune=given",
        "prune.heads=[0]",
    )
    with pytest.raises(RuntimeError, match="nothing was saved"):
        mhprobe.prune.run(cfg, tmp_path / "run")
    assert not list((tmp_path / "run").glob("pruned.*"))


@pytest.mark.slow
def test_a_full_disk_at_the_end_is_one_line_and_no_file(trained, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    cfg = config(
        tmp_path,
        f"weights={trained.folder / 'model.safetensors'}",
        "prune=given",
        "prune.heads=[0]",
    )
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(mhprobe.UserError, match="No space left on device"):
        mhprobe.prune.run(cfg, tmp_path / "run")
    assert not list((tmp_path / "run").glob("*pruned*"))


G = ("weights=W", "prune=given")
O = ("weights=W", "prune=order")
MISTAKES = {  # overrides -> what the one line must name
    (): ("weights=",),
    ("weights=W",): ("prune=order", "prune=given", "prune.remove"),
    (*O,): ("prune.remove", "prune.target"),
    (*O, "prune.remove=6"): ("nearest is 5",),
    (*O, "prune.remove=lots"): ("prune.remove", "integer", "lots"),
    (*O, "prune.remove=1.5"): ("prune.remove", "integer", "1.5"),
    (*O, "prune.target={flops:half}"): ("prune.target.flops", "number", "half"),
    (*O, "prune.target={flops:0.01}"): ("prune.target", "can't be met"),
    (*O, "prune.remove=2", "prune.rounds=3"): ("prune.rounds", "nearest is 2"),
    (*O, "prune/order=bea"): ("beam", "keep_best"),
    (*O, "prune/order=by_table", "prune.order.table=nan.csv", "prune.remove=1"): (
        "nan",
        "blocks.0.attn head 2",
    ),
    (*O, "prune/order=by_score", "prune.remove=1", "+prune.order.wings=2"): (
        "prune.order",
        "wings",
    ),
    (*G,): ("prune.heads",),
    (*G, "prune.heads=[0,1,2,3,4,5]"): ("empties the model",),
    (*G, "prune.heads=[6]"): ("0 to 5",),
    (*G, "prune.heads=[a]"): ("prune.heads", "'a'"),
    (*G, "prune.heads=3"): ("prune.heads", "got 3"),
    (*G, "prune.heads=[]"): ("names no head",),
    (*G, "prune.heads=empty.txt"): ("empty.txt names no head",),
    (*G, "prune.heads=nowhere.json"): ("nowhere.json",),
    (*G, "prune.heads=gates"): ("no learned gates",),
    (*G, "prune.heads=nan.csv", "prune.step=1"): ("nan.csv", "masking_curves.csv"),
    (*G, "prune.heads=[0]", "prune.rounds=2"): ("prune.rounds", "prune=order"),
    (*G, "prune.heads=[0]", "prune.repair.per=layer"): ("prune.repair.per", "head"),
    (*G, "prune.heads=[0]", "ckpt_path=last"): ("ckpt_path",),
    ("weights=bent.safetensors", "prune=given", "prune.heads=[0]"): ("bent", "blocks.0.attn"),
    ("weights=W", "prune=measur"): ("measur", "given", "order"),
}


@pytest.fixture(scope="module")
def replies(tmp_path_factory, trained):
    cwd = tmp_path_factory.mktemp("mistakes")
    weights = trained.folder / "model.safetensors"
    written(
        cwd / "nan.csv",
        ("head", "value"),
        *[(head, "nan" if head == 2 else head) for head in range(6)],
    )
    (cwd / "empty.txt").write_text("")
    bent = cwd / "bent.safetensors"
    bent.write_bytes(weights.read_bytes())
    about = json.loads(weights.with_suffix(".json").read_text())
    bent.with_suffix(".json").write_bytes(
        as_json({**about, "kept": {"blocks.0.attn": [7], "blocks.1.attn": [0]}})
    )
    commands = [
        runs.Command(
            "prune", [*runs.TINY, *(part.replace("=W", f"={weights}") for part in overrides)]
        )
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


def test_weights_of_fewer_classes_than_the_data_are_refused_with_both_numbers(tmp_path):
    weights = tmp_path / "model.safetensors"
    save_weights(network("vit"), weights, {**description("vit"), "class_names": list("01234")})
    cfg = config(tmp_path, f"weights={weights}", "prune=given", "prune.heads=[0]")
    with pytest.raises(
        mhprobe.UserError, match=r"has 5 classes, the data has 10; .* class 5: none there, '5' in"
    ):
        mhprobe.prune.run(cfg, tmp_path / "run")


@pytest.mark.slow
def test_the_command_line_prunes_in_one_process_only(trained, tmp_path):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    common = [*runs.TINY, weights, "prune=given", "prune.heads=[0]"]
    [fine] = runs.answers([runs.Command("prune", common)], tmp_path)
    assert fine.code == 0, fine.err
    assert (
        "dense: 6 heads, " in fine.out
        and "pruned: 5 heads, " in fine.out
        and "101 images of digits" in fine.out
    )
    assert "saved: pruned.safetensors, pruned.json" in fine.out
    folder = runs.newest(tmp_path)
    found = [read_outcomes(run) for run in (trained.folder, folder)]
    (compared,) = pairs_of_runs(found, ["dense", "pruned"])  # both on the same images
    *_, pruned = runs.rows(folder / "tables" / "pruning.csv")
    assert (compared["difference"], compared["p"]) == (
        float(pruned["difference"]),
        float(pruned["p"]),
    )
    many = runs.run("prune", *common, "trainer=ddp", "trainer.accelerator=cpu", cwd=tmp_path)
    assert "one process" in many.answer


@pytest.mark.slow
def test_heads_go_from_images_that_nobody_has_labelled_by_agreement_with_the_whole_network(
    trained, tmp_path, capsys
):
    weights, photos = (
        trained.folder / "model.safetensors",
        write_zip(tmp_path / "photos.zip", flat(40, width=8, height=8)),
    )
    about = (
        f"weights={weights}",
        "data=photos",
        f"data.root={photos}",
        "data.source.stored_size=8",
    )
    settings = ("prune=order", "prune/order=by_score", "prune.remove=3", "prune.images=16")
    cfg = config(tmp_path, *about, *settings)
    mhprobe.prune.run(cfg, tmp_path / "run")
    dense, *_, pruned = runs.rows(tmp_path / "run" / "tables" / "pruning.csv")
    assert (float(dense["accuracy"]), dense["images"], pruned["heads"]) == (1.0, "20", "3")
    data = image_data.build_images(cfg)
    data.spec = InputSpec((8, 8))
    images = torch.cat([batch.images for batch in data.batches("test")])
    first, last = (
        load_weights(file)[0](images).argmax(1)
        for file in (weights, tmp_path / "run" / "pruned.safetensors")
    )
    assert float(pruned["accuracy"]) == pytest.approx(float((first == last).float().mean()))
    assert (
        "photos has no labels. Accuracy is the share of images whose largest logit"
        in capsys.readouterr().out
    )
    # without labels there is nothing to train on
    with pytest.raises(
        mhprobe.UserError, match=r"photos has no labels, and prune\.tune_epochs needs them"
    ):
        mhprobe.prune.run(
            config(tmp_path, *about, *settings, "prune.tune_epochs=1"), tmp_path / "tuned"
        )


@pytest.mark.slow
def test_curves_of_images_that_nobody_has_labelled(trained, tmp_path):
    weights, photos = (
        trained.folder / "model.safetensors",
        write_zip(tmp_path / "photos.zip", flat(24, width=8, height=8)),
    )
    about = (
        f"weights={weights}",
        "data=photos",
        f"data.root={photos}",
        "data.source.stored_size=8",
    )
    mhprobe.mask.run(
        runs.config("mask", tmp_path, *about, "masking.steps=1", "masking.join=null"),
        tmp_path / "mask",
    )
    curves = runs.rows(tmp_path / "mask" / "tables" / "masking_curves.csv")
    assert {row["accuracy"] for row in curves if row["split"] == "test" and row["step"] == "0"} == {
        "1.0"
    }
    assert json.loads((tmp_path / "mask" / "metrics.json").read_text())["test/agreement"] == 1
    assert (
        "Test accuracy is" not in (tmp_path / "mask" / "report.html").read_text()
    )  # nobody knows it


@pytest.mark.slow
@pytest.mark.parametrize("command", ["mask", "prune"])
def test_neighbours_of_images_without_labels_are_refused_before_anything_is_done(
    trained, command, tmp_path, capsys
):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    photos = write_zip(tmp_path / "photos.zip", flat(24, width=8, height=8))
    about = (
        weights,
        "data=photos",
        f"data.root={photos}",
        "data.source.stored_size=8",
        "score=knn",
    )
    cfg = runs.config(
        command,
        tmp_path,
        *about,
        *(("prune=given", "prune.heads=[0]") if command == "prune" else ()),
    )
    with pytest.raises(
        mhprobe.UserError, match=r"^score=knn: needs labels, and the images have none"
    ):
        (mhprobe.prune if command == "prune" else mhprobe.mask).run(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists() and "has no labels" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        (
            "mask",
            ["score=knn", "data.limit_val=5"],
            "knn: needs 6 images to choose masks on .*, got 5. Give more",
        ),
        (
            "prune",
            ["score=knn", "prune.images=5"],
            "knn: needs 6 images to choose masks on .*, got 5. Give more",
        ),
        (
            "mask",
            ["score=knn_train", "data.limit_train=20"],
            "knn_train: .* 21 training images, got 20. .* or take knn",
        ),
        # images that are set aside to choose do not vote; those of validation do where training
        # images choose
        (
            "prune",
            ["score=knn_train", "prune.select_on=validation", "data.limit_train=20"],
            "knn_train: .* 21 training images, got 20. ",
        ),
        (
            "prune",
            ["score=knn_train", "data.limit_train=12", "data.limit_val=8"],
            "knn_train: .* 21 training images, got 20. ",
        ),
    ],
)
def test_neighbours_of_too_few_images_are_refused_before_anything_is_done(
    trained, command, options, reason, tmp_path
):
    chosen = ("prune=given", "prune.heads=[0]") if command == "prune" else ()
    weights = f"weights={trained.folder / 'model.safetensors'}"
    cfg = runs.config(command, tmp_path, weights, *options, *chosen)
    with pytest.raises(mhprobe.UserError, match=f"^score={reason}"):
        (mhprobe.prune if command == "prune" else mhprobe.mask).run(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists()
