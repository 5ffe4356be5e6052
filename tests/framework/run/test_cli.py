"""The command line answers at once where it can, and a user's mistake in one line with exit code 2."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

import mhprobe
import runs
from mhprobe.backbones import build
from mhprobe.framework.run import cli, sections
from mhprobe.framework.run.members import FOLDERS, members
from mhprobe.framework.run.sections import CONF
from mhprobe.weights.checkpoint import save_checkpoint, save_weights

PROBE = ("probe", "weights=random", *runs.TINY, "data.limit_test=3")
TRAIN = ("train", *runs.TINY)  # so that a mistake nobody sees costs seconds

# command -> what its one line must name
MISTAKES = {
    (*TRAIN, "backbone=resnet"): ("resnet", "vit", "swin"),
    ("train", "+experiment=nothing"): ("nothing", "digits_vit", "cifar10_swin"),
    (*TRAIN, "logger=tensorbord"): ("tensorbord", "csv", "wandb"),
    (*TRAIN, "measure=[nothing]"): ("nothing", "svcca", "gate_importance"),
    (*TRAIN, "trainer.max_epoch=3"): ("trainer.max_epoch", "max_epochs"),
    (*TRAIN, "optim.lrr=1"): ("optim.lrr", "did you mean lr", "weight_decay"),
    (*TRAIN, "sed=1"): ("'sed'", "did you mean seed"),
    ("prune", "weights=random", "prune.remove=36"): (
        "'prune.remove': prune=given and prune=order have it",
    ),
    ("prune", "weights=random", "prune.units=head"): ("'prune.units': prune=order has it",),
    ("prune", "weights=random", "prune=order", "prune.order.repeats=3"): (
        "'prune.order.repeats': prune/order=random has it. prune.order has rearranged",
    ),
    (*TRAIN, "data.batchsize=3"): ("data.batchsize", "batch_size"),
    (*TRAIN, "+optim.momentum=1"): ("optim.momentum",),
    (*TRAIN, "optim.lr=fast"): ("optim.lr", "fast"),
    (*TRAIN, "optim.lr=-1"): ("optim.lr", "-1"),
    (*TRAIN, "seed=1.5"): ("seed", "1.5"),
    (*TRAIN, "masking.select_on=train"): ("masking.select_on", "validation", "test"),
    (*TRAIN, "masking.step=1", "masking.steps=2"): ("masking", "step", "steps"),
    (*TRAIN, "optim.lr"): ("optim.lr",),
    (*TRAIN, "backbone.depths=[1,2"): ("backbone.depths=[1,2",),
    (*TRAIN, "optim=3"): ("optim",),
    (*TRAIN, "--wings"): ("--wings", "--help"),
    (*TRAIN, "backbone=${seed}"): ("backbone=${seed}", "interpolation"),
    (*TRAIN, "data.num_workers=${sed}"): ("sed", "nterpolation"),
    (*TRAIN, "out=file/below"): ("file", "out=<folder>"),
    (*TRAIN, "trainer.devices=many"): ("trainer.devices", "many"),
    (*TRAIN, "trainer.accelerator=abacus"): ("trainer", "abacus", "cpu"),
    (*TRAIN, "+trainer.wings=2"): ("trainer", "wings"),
    (*TRAIN, "+data.wings=2"): ("data", "wings"),
    (*TRAIN, "data.batch_size=0"): ("data.batch_size", "0"),
    (*TRAIN, "data=cifar10", "data.root=nowhere.tar"): ("data.root", "nowhere.tar"),
    (*TRAIN, "data=image_folder"): ("data.root",),
    (*TRAIN, "backbone.name=vit_tiniest"): ("backbone.name", "vit_tiniest", "vit_"),
    ("probe", "weights=random", "backbone.name=resnet18"): ("ResNet", "supported"),
    (*TRAIN, "+backbone.wings=2"): ("backbone", "wings"),
    (*TRAIN, "backbone.embed_dim=25"): ("backbone", "vit_tiny_patch16_224"),
    (*TRAIN, "measure.svcca.pairs=friends"): ("svcca", "friends", "layer"),
    (*TRAIN, "+measure.svcca.wings=2"): ("measure.svcca", "wings"),
    (*TRAIN, "masking.curves.random.units=limb"): ("limb", "index", "layer"),
    (*TRAIN, "masking.curves.random.order.repeats=0"): ("repeats", "0"),
    (*TRAIN, "+masking.curves.random.wings=2"): ("masking.curves.random", "wings"),
    (*TRAIN, "masking=six_curves", "masking.curves.layer_max2.exclude_layers=[7]"): (
        "exclude_layers",
        "7",
    ),
    (*TRAIN, "out=empty", "ckpt_path=last"): ("ckpt_path=last", "empty"),
    (*TRAIN, "ckpt_path=nowhere.ckpt"): ("ckpt_path", "nowhere.ckpt"),
    (*TRAIN, "ckpt_path=https://example.org/a.ckpt"): ("ckpt_path", "remote"),
    (*TRAIN, "ckpt_path=file"): ("checkpoint", "file"),
    ("probe",): ("which trained network", "weights=random"),
    ("mask",): ("which trained network", "weights=random"),
    ("maps",): ("which trained network", "weights=random"),
    (*TRAIN, "out=null"): ("out", "string", "None"),
    (*TRAIN, "masking=null"): (
        "masking: expected one of none, orders, single_heads, six_curves, three_curves, got null.",
    ),
    (*TRAIN, "out="): ("out=: has no value",),
    (*TRAIN, "hydra.run.dir="): ("hydra.run.dir=: has no value",),
    (*TRAIN, "hydra.run.dr=x"): ("did you mean dir? hydra.run has dir.",),
    (*TRAIN, "logger=null"): (
        "logger: expected one of csv, mlflow, tensorboard, wandb, got null.",
    ),
    (*TRAIN, "backbone.depth=0"): ("backbone.depth", "0"),
    (*TRAIN, "cache_dir=~/x"): ("cache_dir=~/x", "quotes"),
    ("probe", "weights=nowhere.safetensors"): ("weights", "nowhere.safetensors"),
    ("mask", "weights=file"): ("weights", "file"),
    # what a measure cannot work with
    (
        *PROBE,
        "+backbone.class_token=false",
        "+backbone.global_pool=avg",
        "measure=[token_kinds]",
        "measure.token_kinds.value=cls",
    ): ("token_kinds", "value=cls", "class token", "neighbours"),
    (*PROBE, "measure=[object_attention]"): (
        "object_attention",
        "no object masks",
        "data=scenes",
        "data=pets",
    ),
    (*PROBE, "measure=[rarity]", "data.limit_val=10", "measure.rarity.codes=4000"): (
        "rarity",
        "patches for 4000 codes",
        "measure.rarity.codes=",
    ),
    (*PROBE, "backbone.num_heads=1", "measure=[svcca]", "data.limit_test=1"): (
        "svcca",
        "n = 17 rows",
        "d = 24 channels",
        "Use more images",
    ),
    (*PROBE, "+backbone.attn_layer=diff", "measure=[entropy]"): ("blocks.0.attn", "DiffAttention"),
    (
        "probe",
        "weights=nan.safetensors",
        "data.limit_test=3",
        "trainer.accelerator=cpu",
        "measure=[gate_importance]",
    ): ("blocks.1.attn", "NaN", "image 0"),
}


@pytest.fixture(scope="module")
def replies(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("mistakes")
    (cwd / "file").write_text("a file, no folder and no checkpoint")
    settings = {
        "name": "vit_tiny_patch16_224",
        "img_size": 8,
        "patch_size": 2,
        "depth": 2,
        "embed_dim": 24,
    }
    broken = build(**settings, num_heads=3, num_classes=10)
    torch.nn.init.constant_(broken.blocks[1].attn.qkv.weight, torch.nan)
    description = {
        "backbone": {**settings, "num_heads": 3},
        "class_names": list("0123456789"),
        "data": "digits",
    }
    save_weights(broken, cwd / "nan.safetensors", description)
    return dict(
        zip(
            MISTAKES,
            runs.answers([runs.Command(task, overrides) for task, *overrides in MISTAKES], cwd),
            strict=True,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", MISTAKES, ids=[" ".join((c[0], *c[1:][-1:])) for c in MISTAKES])
def test_a_mistake_gets_one_line_that_names_it_and_the_choices(replies, command):
    line = replies[command].answer
    for word in MISTAKES[command]:
        assert word in line
    assert len(line) < 600


@pytest.mark.slow
def test_ctrl_c_in_training_is_one_line_and_130(tmp_path):
    interrupted = runs.Command(
        "train", [*runs.TINY, "masking=none", "measure=[]"], signal.SIGINT, 1
    )
    [result] = runs.answers([interrupted], tmp_path)
    assert result.code == 130
    assert [line for line in result.err.splitlines() if line] == [
        "mhprobe: interrupted; go on with ckpt_path=last"
    ]


@pytest.mark.slow
def test_a_sweep_runs_all_its_jobs_and_says_at_the_end_which_failed(tmp_path):
    [result] = runs.answers([runs.Command("train", [*runs.TINY, "-m", "optim.lr=-1,-2"])], tmp_path)
    assert result.code == 2, result.err
    assert "2 of 2 jobs failed" in result.err
    for value in ("-1", "-2"):
        assert re.search(rf"optim\.lr={value}\): optim\.lr: .*got {value}", result.err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a=1 -m b=2,3 ~c", "-m a=1 b=2,3 ~c"),
        ("a=1 --cfg job b=-2 --resolve", "--cfg job --resolve a=1 b=-2"),
        ("--info defaults +a=1", "--info defaults +a=1"),
        ("--info", "--info"),
    ],
)
def test_flags_may_stand_anywhere(words, expected):
    assert cli.flags_first(words.split()) == expected.split()


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("data.root=my dätä/a, b", "my dätä/a, b"),
        ("images=[my dätä/one (1).png,2,three.png]", ["my dätä/one (1).png", 2, "three.png"]),
        ("images=[ä]", ["ä"]),
        ("images=[]ä", "[]ä"),
        ("weights=outputs/epoch=3-step=9.ckpt", "outputs/epoch=3-step=9.ckpt"),
        ("backbone.checkpoint=runs/lr=0.1,seed=0/m.pth", "runs/lr=0.1,seed=0/m.pth"),
        ("data.root=photos(1", "photos(1"),
        ("data.root=[a]b", "[a]b"),
        ("data.root={x}", "{x}"),
        ("images=[a=1.png,b.png]", ["a=1.png", "b.png"]),
    ],
)
def test_the_quotes_that_a_line_suggests_keep_the_value_what_it_is(word, value):
    parser = OverridesParser.create()
    with pytest.raises(HydraException) as raised:
        parser.parse_overrides([word])
    (suggested,) = shlex.split(cli.explain("maps", raised.value).partition("only: ")[2].rstrip("."))
    assert parser.parse_override(suggested).value() == value  # a list in quotes would be a text


@pytest.mark.slow
def test_a_sweep_over_experiments_has_one_folder_and_says_how_to_set_what_they_add(tmp_path):
    own = [part for part in runs.TINY if not part.startswith(("+experiment", "trainer.max_epochs"))]
    small = [*own, "trainer.max_epochs=1", "optim.warmup_epochs=0", "masking=none", "measure=[]"]
    small.append("backbone.qkv_bias=true")  # which conf/backbone/vit.yaml does not list
    swept = ["-m", "+experiment=digits_vit,digits_gates"]
    added = [f"++{part}" if part.startswith("backbone.") else part for part in small]
    plain, ended = runs.answers(
        [runs.Command("train", [*swept, *parts]) for parts in (small, added)], tmp_path
    )
    assert "In a sweep over experiments write ++backbone.qkv_bias=..." in plain.answer
    assert ended.code == 0, ended.err
    [sweep] = (tmp_path / "outputs").glob("*/*")
    assert sweep.parent.name == "digits_vit_and_1_more" and (sweep / "report.html").exists()
    jobs = [json.loads((sweep / number / "metrics.json").read_text()) for number in ("0", "1")]
    assert ["gates/kept" in job for job in jobs] == [False, True]


@pytest.mark.slow
def test_without_a_mistake_the_same_door_opens(tmp_path):
    """Negative control: the forked command line above also succeeds where nothing is wrong."""
    tiny = [part for part in runs.TINY if not part.startswith("trainer.max_epochs")]
    [result] = runs.answers(
        [runs.Command("probe", [*tiny, "weights=random", "measure=[]"])], tmp_path
    )
    assert result.code == 0, result.err
    assert "101 images" in result.out


@pytest.mark.parametrize("as_program", [True, False])
def test_a_command_ends_as_python_does(as_program):
    code = (
        "import atexit, runpy, sys, threading, time\n"
        "class Witness:\n    def __del__(self, write=sys.stderr.write): write('taken apart')\n"
        "sys.witness = Witness()\n"
        "atexit.register(print, 'said at the end')\n"
        # once main has printed: a print is two writes, of the text and of the end of its line, and
        # others come between
        "def later():\n    threading.main_thread().join(); time.sleep(0.5); print('said by a "
        "thread')\n"
        "threading.Thread(target=later).start()\n"
        f"runpy.run_module('mhprobe.train', run_name='__main__', alter_sys={as_program})"
    )
    command = [sys.executable, "-c", code, "--cfg", "job", "-p", "seed"]
    end = subprocess.run(command, env=runs.environment(), capture_output=True, text=True)
    assert (end.returncode, set(end.stdout.splitlines())) == (
        0,
        {"0", "said by a thread", "said at the end"},
    )
    assert end.stderr == "taken apart"


@pytest.mark.parametrize(
    "flags", [["--help"], ["--cfg", "job"], ["+experiment=nothing"]], ids=" ".join
)
def test_answers_that_need_no_network_import_none(tmp_path, flags):
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=open('modules', "
        "'w')));"
        "sys.argv[0] = 'mhprobe'; import runpy; runpy.run_module('mhprobe.train', "
        "run_name='__main__')"
    )
    subprocess.run(
        [sys.executable, "-c", code, *flags],
        cwd=tmp_path,
        env=runs.environment(),
        capture_output=True,
    )
    loaded = set((tmp_path / "modules").read_text().split())
    assert "hydra" in loaded  # it did run
    assert not loaded & {"torch", "timm", "lightning", "matplotlib", "wandb", "sklearn", "pydantic"}


COMMANDS = sections.commands_of_conf()


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What every command answers to --help and to --cfg job, on one start-up; asking leaves no folder."""
    cwd = tmp_path_factory.mktemp("asked")
    flags = (["--help"], ["--cfg", "job"])
    results = runs.answers([runs.Command(name, flag) for name in COMMANDS for flag in flags], cwd)
    assert all(result.code == 0 and not result.err for result in results)
    assert not list(cwd.iterdir())
    return {
        name: (results[2 * i].out, OmegaConf.create(results[2 * i + 1].out))
        for i, name in enumerate(COMMANDS)
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_the_groups_of_the_command_with_every_option_and_no_other(asked, command):
    text, cfg = asked[command]
    assert f"python -m mhprobe.{command} " in text
    groups = dict(line.split(": ", 1) for line in text.splitlines() if re.match(r"\w+: ", line))
    there = {path.name for path in CONF.iterdir() if path.is_dir()} | set(FOLDERS)
    there = there & set(cfg) | {"experiment"}
    assert set(groups) == there
    for group, options in groups.items():
        files = {path.stem for path in (CONF / group).glob("*.yaml")} - {"base"}
        assert set(options.split(", ")) == files | set(members(group))
    assert max(len(line) for line in text.splitlines() if line.split(": ")[0] not in groups) <= 120


@pytest.mark.slow
def test_a_command_has_its_own_settings_and_nothing_of_the_others(asked):
    has = {command: set(cfg) for command, (_, cfg) in asked.items()}
    shared = set.intersection(*has.values())
    assert {"seed", "weights", "backbone", "data", "trainer"} <= shared
    assert not {"causal", "voita", "faithfulness", "images", "maps", "prune"} & has["train"]
    assert not {"optim", "masking", "measure", "search", "causal"} & has["maps"]
    assert (
        not {"optim", "masking", "ckpt_path"} & has["probe"]
        and not {"optim", "measure"} & has["mask"]
    )


@pytest.mark.parametrize(
    ("command", "override", "words"),
    [
        ("probe", "ckpt_path=last", "mhprobe.probe has no ckpt_path, a part of .*mhprobe.train"),
        ("train", "causal.weight=1", "a part of mhprobe.studies.causal"),
        ("mask", "measure=[entropy]", "mhprobe.mask has no measure, a part of mhprobe.probe"),
        ("prune", "measure=[entropy]", "mhprobe.prune has no measure, a part of mhprobe.probe"),
        (
            "prune",
            "+callback=early_stopping",
            "mhprobe.prune has no callback, a part of mhprobe.train",
        ),
        (
            "prune",
            "ckpt_path=last",
            "ckpt_path=last: mhprobe.prune has no ckpt_path, a part of .*mhprobe.train",
        ),
    ],
)
def test_a_section_of_another_command_is_refused_with_the_commands_that_have_it(
    command, override, words
):
    with pytest.raises(mhprobe.UserError, match=words):
        runs.composed(command, "+experiment=probe_all", override)


def test_an_experiment_gives_a_command_what_it_has_a_section_for():
    assert "measure" in runs.composed("probe", "+experiment=probe_all")
    assert not {"measure", "probe", "optim"} & set(runs.composed("mask", "+experiment=probe_all"))


def test_a_group_of_another_command_can_be_chosen_where_this_command_has_a_place_for_it():
    """mhprobe.prune has no section called search; its orders have searches."""
    order = ["prune=order", "prune/order=keep_best", "prune.remove=3"]
    usual, exact = (
        runs.composed("prune", *order, *more) for more in ((), ("search@prune.order.search=exact",))
    )
    assert usual.prune.order.search._target_.endswith(
        "Auto"
    ) and exact.prune.order.search._target_.endswith("Exact")
    with pytest.raises(mhprobe.UserError, match=r"mhprobe\.prune has no search"):
        runs.composed("prune", *order, "search@masking.search=exact")


def test_weights_that_say_their_data_set_need_no_other_word(tmp_path):
    (tmp_path / "a.json").write_text('{"data": "scenes"}')
    weights = f"weights={tmp_path / 'a.safetensors'}"

    def chosen(*overrides: str) -> str:
        return runs.composed("probe", *overrides).data.source._target_.rpartition(".")[2]

    assert chosen(weights) == "Scenes"
    assert (
        chosen(weights, "data=cifar10") == chosen(weights, "+experiment=cifar10_vit") == "Cifar10"
    )
    (tmp_path / "a.json").write_text('{"data": "../secret"}')
    assert (
        chosen(weights) == "Digits"
    )  # the default; the classes are compared when the weights are loaded
    described = {"backbone": {"name": "vit_tiny_patch16_224"}, "class_names": [], "data": "scenes"}
    save_checkpoint(
        {"mhprobe": described, "state_dict": {"gates.values": torch.ones(36)}}, tmp_path / "a.ckpt"
    )
    assert chosen(f"weights={tmp_path / 'a.ckpt'}") == "Scenes"
    assert chosen(f"weights={tmp_path / 'b.ckpt'}") == "Digits"  # loading it raises
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "model.json").write_text('{"data": "scenes"}')
    assert chosen(f"weights={tmp_path}") == "Scenes"  # the folder of a run


def test_cfg_job_prints_the_composed_configuration(tmp_path):
    result = runs.run(
        "train", "+experiment=digits_vit", "optim.lr=0.5", "--cfg", "job", cwd=tmp_path
    )
    assert result.code == 0 and not result.err
    cfg = OmegaConf.create(result.out)
    assert cfg.name == "digits_vit" and cfg.optim.lr == 0.5 and cfg.backbone.depth == 4
    assert "hydra" not in cfg
    assert not list(Path(tmp_path).iterdir())
