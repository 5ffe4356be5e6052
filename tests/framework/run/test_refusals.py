"""What cannot give an answer is refused before anything is trained, in one line that says what to do instead."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

import mhprobe
import runs
from mhprobe.backbones import build
from mhprobe.errors import UserError, refuse_misfits
from mhprobe.framework.run import cli, image_data, launch, networks, trainers
from mhprobe.framework.run.construct import construct
from mhprobe.framework.run.questions import of_run
from mhprobe.framework.run.schema import RULES, TrainerSettings, refuse_absent_folders
from mhprobe.weights.checkpoint import load_weights, save_checkpoint, save_weights
from mhprobe.weights.description import pruned_description

SETTINGS = {  # of the configuration alone
    "trainer.accumulate_grad_batches=0": "accumulate_grad_batches",
    "trainer.precision=16-true": "trainer.precision",
    "trainer.precision=64-true": "trainer.precision",
    "trainer.precision=bf16-true": "trainer.precision.*bf16-mixed",
    # what is no number, in sections and in parts alike
    "optim.warmup_epochs=inf": r"optim\.warmup_epochs: expected a finite number, got inf",
    "~optim": r"optim: is missing and has to be there; leave out what takes it away \(~optim\)",
    "~optim.lr": r"optim\.lr: is missing .*\(~optim\.lr\)",
    "optim.lr=nan": r"optim\.lr: expected a finite number, got nan",
    "trainer.gradient_clip_val=inf": r"trainer\.gradient_clip_val: expected a finite number",
    "data.augment.mixup=nan": r"data\.augment\.mixup: expected a finite number, got nan",
    "data.augment.mixup=inf": r"data\.augment\.mixup: expected a finite number, got inf",
    "+trainer.val_check_interval=nan": r"trainer\.val_check_interval: expected a finite number",
    # what would count as 1
    "trainer.max_epochs=true": r"trainer\.max_epochs: Input should be a valid integer, got True",
    "seed=true": r"seed: Input should be a valid integer, got True",
    "trainer.gradient_clip_val=-1": "gradient_clip_val",
    "+trainer.fast_dev_run=true": r"fast_dev_run.*data\.limit_train",
    "+trainer.limit_val_batches=0": r"limit_val_batches.*data\.limit_val",
    "+trainer.limit_val_batches=1": r"limit_val_batches.*data\.limit_val",
    "+trainer.limit_test_batches=0.5": r"limit_test_batches.*data\.limit_test",
}
PARTS = {  # of what is built from it
    "data.source.test_fraction=2": "test_fraction",
    "data.batch_size=true": r"data\.batch_size: expected a whole number.*got True",
    "data.batch_size=1.5": r"data\.batch_size: expected a whole number.*got 1\.5",
    "data.num_workers=1000": r"data\.num_workers: expected at most",
    "data.source.split_seed=true": r"data\.source\.split_seed: expected a whole number",
    "data.source.test_fraction='0.5'": r"data\.source\.test_fraction: expected a finite number, got '0\.5'",
    "data.augment.flip=1": r"data\.augment\.flip: expected true or false, got 1",
    "data.source.test_fraction=0": "test_fraction",
    "+backbone.in_chans=2": r"backbone\.in_chans: ",
    "backbone.patch_size=3": "do not tile.*img_size=9",
    "backbone.patch_size=0": "backbone",
    "backbone.num_heads=0": "backbone",
    "backbone.embed_dim=0": "backbone",
    "backbone=[]": r"backbone: expected one of .*got \[\]",
    "masking.step=99": "masking.step: steps 0 to 3 exist, got 99",
}
LENGTHS = {  # of how long the training is
    "+trainer.max_steps=2": "ends after 2 steps and the first validation comes after 3",
    "+trainer.check_val_every_n_epoch=5": "first validation comes after 15",
}


def built(cfg, folder):
    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    report = trainers.open_report(cfg, folder, model.gates.layout)
    asking = of_run(cfg, model, data, report)
    return (
        trainers.build_trainer(
            cfg, [*trainers.build_callbacks(cfg, model, data, report), asking], report
        ),
        model,
        data,
    )


def one_line(error) -> bool:
    return "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("given", "meant"),
    [("32", "32-true"), ("'32'", "32-true"), ("16", "16-mixed"), ("bf16", "bf16-mixed")],
)
def test_short_names_of_precisions_are_those_of_lightning(tmp_path, given, meant):
    assert (
        runs.checked("train", *runs.TINY, f"trainer.precision={given}").trainer.precision == meant
    )


def test_of_two_options_that_are_taken_away_the_first_is_named_and_not_their_group(tmp_path):
    with pytest.raises(UserError, match=r"optim\.lr: is missing .*\(~optim\.lr\)"):
        runs.config("train", tmp_path, "~optim.lr", "~optim.min_lr")


@pytest.mark.parametrize("override", SETTINGS)
def test_settings_that_give_no_answer(tmp_path, override):
    with pytest.raises(UserError, match=SETTINGS[override]) as error:
        runs.config("train", tmp_path, override)
    assert one_line(error)


@pytest.mark.parametrize(
    ("option", "problem"), [("lrr=1e-3", "not permitted"), ("lr=-1", "greater than 0")]
)
def test_what_differs_when_training_from_scratch_is_an_option_of_training(option, problem):
    given = ("gates=hard_concrete_target", "weights=random", f"+voita.scratch_optim.{option}")
    with pytest.raises(
        UserError, match=rf"voita\.scratch_optim\.{option.partition('=')[0]}: .*{problem}"
    ) as error:
        runs.checked("studies.voita", *runs.TINY, *given)
    assert one_line(error)


def test_all_of_the_images_is_no_part_of_them(tmp_path):
    whole = (
        "+trainer.limit_val_batches=1.0",
        "+trainer.limit_test_batches=1.0",
        "+trainer.fast_dev_run=false",
    )
    assert runs.config("train", tmp_path, *whole).trainer.model_dump()["limit_val_batches"] == 1.0


@pytest.mark.parametrize("override", PARTS)
def test_parts_that_cannot_be_built(tmp_path, override):
    with pytest.raises(UserError, match=PARTS[override]) as error:
        built(runs.config("train", tmp_path, "measure=[]", override), tmp_path / "run")
    assert one_line(error)


@pytest.mark.parametrize("override", LENGTHS)
def test_a_training_without_a_validation(tmp_path, override):
    trainer, model, data = built(
        runs.config("train", tmp_path, "measure=[]", "masking=none", override), tmp_path / "run"
    )
    with pytest.raises(UserError, match=LENGTHS[override]):
        trainer.fit(model, datamodule=data)
    assert trainer.global_step == 0


@pytest.mark.parametrize("devices", [0, -3, [], [0, 0], "many", "1.5", [-1], [[]], [None]])
def test_devices_that_there_cannot_be(devices):
    with pytest.raises(UserError, match=r"trainer\.devices"):
        launch._processes(
            TrainerSettings.model_construct(devices=devices, strategy="ddp", accelerator="cpu")
        )


@pytest.mark.parametrize(
    ("devices", "processes"), [(1, 1), ("3", 3), ([0, 1], 2), ("auto", 2), (-1, 2)], ids=str
)
def test_devices_are_as_many_processes(devices, processes):
    assert (
        launch._processes(
            TrainerSettings.model_construct(devices=devices, strategy="ddp", accelerator="cpu")
        )
        == processes
    )


@pytest.mark.parametrize(
    "strategy", ["fsdp", "fsdp2", "deepspeed_stage_3", "ddp_spawn", "ddp_notebook"]
)
def test_a_network_in_pieces_is_refused_with_what_helps(tmp_path, strategy):
    cfg = runs.composed("probe", *runs.TINY, "weights=random", f"+trainer.strategy={strategy}")
    with pytest.raises(
        UserError, match=rf"trainer\.strategy: .*got {strategy}.*data\.eval_batch_size"
    ) as error:
        launch.run("probe", cfg, tmp_path)
    assert one_line(error) and not list(tmp_path.iterdir())


def test_several_machines_need_a_launcher(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    cfg = runs.composed("train", *runs.TINY, "trainer.num_nodes=2")
    with pytest.raises(UserError, match=r"trainer\.num_nodes.*torchrun"):
        launch.run("train", cfg, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "override", "words"),
    [
        ("probe", "weights=null", "weights: which trained network"),
        ("study", "weights=null", "weights: which trained network"),
        ("mask", "masking=none", r"masking\.curves: expected a curve"),
        (
            "prune",
            "prune.target={flops:nan}",
            r"prune\.target\.flops: expected a finite number, got nan",
        ),
        (
            "prune",
            "prune.target={heads:true}",
            r"prune\.target\.heads: Input should be a valid number, got True",
        ),
        ("prune", "prune.repair.ridge=inf", r"prune\.repair\.ridge: expected a finite number"),
        ("prune", "prune.repair.ridge=-1", r"prune\.repair\.ridge"),
    ],
)
def test_what_another_question_would_answer_is_refused(command, override, words):
    more = (
        ["+paper=byun_kim"] if command == "study" else ["prune=order"] if command == "prune" else []
    )
    weights = [] if "weights" in override else ["weights=random"]
    with pytest.raises(UserError, match=words) as error:
        runs.checked(command, *runs.TINY, *more, *weights, override)
    assert one_line(error)


SCENES = {"_target_": "mhprobe.data.scenes.Scenes", "train": 8.5}


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (
            "measures.svcca.SVCCA",
            {"null_draws": 1.5},
            r"here\.null_draws: expected a whole number, got 1\.5",
        ),
        (
            "measures.interaction.Interaction",
            {"top_k": True},
            r"here\.top_k: expected a whole number, got True",
        ),
        (
            "data.photos.Photos",
            {"root": ["a"]},
            r"here\.root: expected a text or a path or null, got",
        ),
        ("data.photos.Photos", {"root": 3}, r"here\.root: .*got 3"),
        (
            "data.corrupted.Corrupted",
            {"source": SCENES},
            r"here\.source\.train: expected a whole number, got 8\.5",
        ),
        (
            "data.augment.Augment",
            {"mixup": math.nan},
            r"here\.mixup: expected a finite number, got nan",
        ),
    ],
)
def test_a_part_takes_options_of_the_types_that_its_constructor_names(target, options, words):
    with pytest.raises(UserError, match=words) as error:
        construct({"_target_": f"mhprobe.{target}", "_partial_": True, **options}, "here")
    assert one_line(error)


def test_an_empty_mapping_that_empties_nothing_is_refused(tmp_path):
    cfg = runs.composed("mask", *runs.TINY, "masking=orders", "masking.curves={}", "logger={}")
    assert cfg.masking.curves  # what was asked for would not be what is done
    with pytest.raises(
        UserError, match=r"masking\.curves=\{\}: adds nothing to what is there .*or choose another"
    ):
        cli.refuse_empty(cfg, ["seed=1", "masking.curves={}"])
    cli.refuse_empty(cfg, ["seed=1", "masking=orders", "+nothing={}"])


@pytest.fixture
def half(tmp_path):
    """A network that was trained on half of the patches."""
    file = tmp_path / "half.safetensors"
    backbone = {
        "name": "vit_tiny_patch16_224",
        "img_size": 8,
        "patch_size": 4,
        "embed_dim": 12,
        "depth": 2,
    }
    backbone |= {"num_heads": 3, "patch_drop_rate": 0.5}
    names = [str(number) for number in range(10)]
    save_weights(
        build(**backbone, num_classes=10),
        file,
        {"backbone": backbone, "class_names": names, "data": "digits"},
    )
    return file


@pytest.mark.parametrize(
    ("key", "asked", "theirs"),
    [("depth", 4, "2"), ("qk_norm", True, "none"), ("img_size", 16, "8")],
)
def test_a_typed_setting_of_a_backbone_that_weights_bring_otherwise_is_refused(
    half, key, asked, theirs
):
    words, cfg = (
        ["seed=1", f"+backbone.{key}={asked}"],
        {"backbone": {key: asked}, "weights": str(half)},
    )
    with pytest.raises(
        UserError,
        match=rf"backbone.{key}: .*half.safetensors has {theirs}, got {asked}. Leave .* out",
    ):
        cli.refuse_unread(cfg, words)
    with pytest.raises(
        UserError, match=r"backbone: .*half.safetensors has vit_tiny_patch16_224, got swin_tiny"
    ):
        cli.refuse_unread(
            {"backbone": {"name": "swin_tiny"}, "weights": str(half)}, ["backbone=swin"]
        )
    cli.refuse_unread(
        cfg, ["seed=1", "+experiment=somebody's"]
    )  # an experiment may be of another network
    for weights in (
        None,
        "random",
        "",
        ".",
        "/",
    ):  # a new network takes them; what is no file is refused elsewhere
        cli.refuse_unread({**cfg, "weights": weights}, words)
    same = {
        "depth": 2,
        "patch_drop_rate": 0,
        "num_classes": 0,
        "embed_dim": None,
        "fused_attn": False,
    }
    cli.refuse_unread(
        {"backbone": same, "weights": str(half)}, [f"backbone.{name}={same[name]}" for name in same]
    )


def test_a_typed_setting_that_a_checkpoint_has_otherwise_is_refused_as_that_of_a_pair(
    half, tmp_path
):
    model, description = load_weights(half)
    state = {f"backbone.{name}": value for name, value in model.state_dict().items()}
    state["gates.values"] = torch.ones(6)
    save_checkpoint({"state_dict": state, "mhprobe": description}, tmp_path / "best.ckpt")
    cfg = {"backbone": {"depth": 4, "img_size": 8}, "weights": str(tmp_path / "best.ckpt")}
    with pytest.raises(
        UserError, match=r"backbone.depth: .*best.ckpt has 2, got 4. Leave backbone.depth out"
    ):
        cli.refuse_unread(cfg, ["backbone.depth=4"])
    cli.refuse_unread(cfg, ["backbone.img_size=8"])
    (tmp_path / "other.pth").write_bytes(b"\x80of another training")
    with pytest.raises(
        UserError, match=r"other.json is missing or damaged.*give the backbone a name"
    ):
        cli.refuse_unread({**cfg, "weights": str(tmp_path / "other.pth")}, ["backbone.img_size=8"])


def test_rates_of_dropping_are_those_of_the_command_and_else_those_of_the_file(tmp_path, half):
    """They hold no weights: a network trained on half of the patches can be tuned on all of them."""
    backbones = []
    for more, rate in (
        ([], 0.5),
        (["backbone.patch_drop_rate=0.25"], 0.25),
        (["backbone.patch_drop_rate=0"], 0),
    ):
        cfg = runs.config("train", tmp_path, f"weights={half}", "data=digits", *more)
        model = networks.build_classifier(cfg, image_data.build_images(cfg))
        assert getattr(model.backbone.patch_drop, "prob", 0) == rate
        assert model.description["backbone"]["patch_drop_rate"] == rate
        backbones.append(model.backbone.eval())
    for key, rate, words in (
        ("pos_drop_rate", 2, "expected a share"),
        ("drop_rate", "much", "expected a share"),
        ("window", 1, "is no size or switch"),
    ):
        with pytest.raises(UserError, match=words):
            load_weights(half, **{key: rate})
    plain = load_weights(half, fused_attn=False)[0]
    assert not any(block.attn.fused_attn for block in plain.blocks)
    for key, value in {
        "fused_attn": "plain",
        "pretrained": True,
    }.items():  # no file may fetch weights
        with pytest.raises(UserError, match=key):
            load_weights(half, **{key: value})
    images = torch.rand(4, 3, 8, 8)
    assert all(torch.equal(network(images), backbones[0](images)) for network in backbones)


def test_a_pruned_network_that_is_tuned_on_all_patches_loads_again(tmp_path, half):
    """Its description names the model twice, for mhprobe and for timm: both have the rate that changed."""
    whole, description = load_weights(half)
    kept = {"blocks.0.attn": [0, 1], "blocks.1.attn": [0, 1, 2]}
    pruned = pruned_description(description, kept, "keep", None)
    save_weights(mhprobe.prune_heads(whole, [2]), tmp_path / "pruned.safetensors", pruned)
    tuned, theirs = load_weights(tmp_path / "pruned.safetensors", patch_drop_rate=0)
    save_weights(tuned, tmp_path / "tuned.safetensors", theirs)
    again, description = load_weights(tmp_path / "tuned.safetensors")
    assert description["timm"]["patch_drop_rate"] == description["backbone"]["patch_drop_rate"] == 0
    images = torch.rand(4, 3, 8, 8)
    assert torch.equal(again(images), tuned(images))


def test_options_of_the_right_types_are_taken():
    """Negative control of the above: every type that constructors name."""

    def make(
        a: int, b: float | None, c: str | Path, d: Sequence[int], e: Mapping[str, float], f: bool
    ):
        raise AssertionError

    right = {"a": 1, "b": None, "c": "x", "d": [1], "e": {"k": 1}, "f": True, "more": object()}
    refuse_misfits(make, right, "here")
    refuse_misfits(make, {**right, "b": 2, "c": Path("x"), "d": (), "e": {}}, "here")
    for name, value in [
        ("a", "1"),
        ("a", None),
        ("b", "x"),
        ("c", 1),
        ("d", 1),
        ("d", [1.5]),
        ("e", {"k": True}),
        ("f", 0),
    ]:
        with pytest.raises(UserError, match=rf"^here\.{name}: expected "):
            refuse_misfits(make, {**right, name: value}, "here")


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Sequence[int], "a list of whole numbers"),
        (Sequence[Sequence[int]] | None, "a list of lists of whole numbers or null"),
        (Sequence[object], "a list"),
        (Mapping[str, float], "names with a value each"),
    ],
)
def test_the_refusal_of_an_option_says_what_its_items_are(hint, words):
    def make(a):
        raise AssertionError

    make.__annotations__["a"] = hint
    with pytest.raises(UserError, match=rf"^here\.a: expected {words}, got 5\.$"):
        refuse_misfits(make, {"a": 5}, "here")


@pytest.mark.parametrize(
    ("command", "override", "words"),
    [
        ("studies.voita", "voita.heads=[]", r"voita\.heads: expected different numbers.*got \[\]"),
        ("studies.voita", "voita.heads=[3,3]", r"voita\.heads: expected different.*got \[3, 3\]"),
        ("train", "+backbone.drop_path_rate=-1", r"backbone\.drop_path_rate: .* got -1"),
        ("train", "+backbone.patch_drop_rate=1.5", r"backbone\.patch_drop_rate: .* got 1\.5"),
        ("train", "name=../../esc", r"name: is a folder below out=outputs, got '\.\./\.\./esc'"),
        ("probe", "name=/esc", r"name: is a folder below out=outputs, got '/esc'"),
    ],
)
def test_what_would_run_and_mean_nothing_is_refused_by_a_rule(command, override, words):
    with pytest.raises(UserError, match=words) as error:
        runs.checked(command, *runs.TINY, "weights=random", override)
    assert one_line(error)


def test_what_lies_beside_what_the_rules_refuse_is_taken(tmp_path):
    asked = ("voita.heads=[3,2]", "name=a/b", "weights=random")
    cfg = runs.checked("studies.voita", *runs.TINY, *asked, "+backbone.drop_path_rate=0.0")
    assert all(rule(cfg) is None for rule in RULES) and cfg.name == "a/b"


@pytest.mark.parametrize(
    ("command", "key"), [("studies.voita", "voita.probe"), ("claims", "evidence.runs.training")]
)
def test_the_folder_of_another_run_is_looked_for_before_the_work_starts(command, key, tmp_path):
    asked = (*runs.TINY, "weights=random", f"{key}={tmp_path / 'typo'}")
    composed = runs.composed(command, *asked)
    with pytest.raises(UserError, match=rf"^{re.escape(key)}: no folder '") as error:
        launch.run(command, composed, tmp_path / "run")
    assert one_line(error) and not (tmp_path / "run").exists()
    (tmp_path / "typo").mkdir()
    (tmp_path / "typo" / "metrics.json").write_text("{}")
    refuse_absent_folders(runs.checked(command, *asked))  # negative control: it is there now
