"""Contract of options: what is typed has an effect, or is refused with the reason."""

from __future__ import annotations

import fnmatch
import inspect

import lightning as L
import pytest
from omegaconf import OmegaConf

import runs
from mhprobe.errors import UserError
from mhprobe.framework.run.needed import NEEDS, TRAINS, refuse_unneeded
from mhprobe.io.nested import leaves
from mhprobe.weights.description import RATES

LISTED = ("weights=random", "prune=given", "prune.heads=[1]")
ORDERED = ("weights=random", "prune=order", "prune.remove=1")
RANDOM = ("~masking.curves.head_max", "~masking.curves.importance")
BENCH = ("weights=random", "optim.teacher=null")
NOTHING = {  # (command, what the configuration is made of) -> options that do nothing in it
    ("prune", LISTED): (
        *("prune.curve=nope", "prune.step=3", "prune.remove=3", "prune.images=9"),
        *("prune.select_on=validation", "prune.precision=bf16-mixed", "prune.repair.ridge=2.0"),
        *(
            "prune.speed_rounds=4",
            "prune.guarantee.confidence=0.5",
            "prune.guarantee={confidence:.5}",
        ),
        *("optim.lr=2e-3", "optim.teacher=nope.safetensors", "optim.teacher_weight=.1"),
        *("trainer.max_epochs=3", "trainer.gradient_clip_val=.5", "trainer.precision=bf16-mixed"),
        *("trainer.accumulate_grad_batches=2", "data.batch_size=32", "data.augment.flip=true"),
        *("gates.lr=7.0", "gates.keep=2", "gates.threshold=.4", "gates.frozen=weights"),
        *("gates.relaxation.learnable=true", "data.limit_calibration=3"),
    ),
    ("prune", (*ORDERED, "prune/order=random")): (
        *("prune.images=9", "prune.precision=bf16-mixed", "prune.order.repeats=3"),
    ),
    ("prune", (*ORDERED, "prune/order=magnitude")): ("prune.images=9",),
    ("prune", (*ORDERED, "prune/order=tp_magnitude")): ("prune.select_on=validation",),
    ("prune", (*ORDERED, "prune/order=by_table", "prune.order.table=a.csv")): ("prune.images=9",),
    ("prune", (*ORDERED, "prune/order=magnitude", "prune.repair.per=weights")): (
        "prune.precision=bf16-mixed",
    ),
    ("prunebench", BENCH): ("optim.lr=2e-3", "trainer.max_epochs=3", "prune.random_draws=2"),
    ("prunebench", (*BENCH, "methods=[random,magnitude]", "prune.repair.per=none")): (
        *("prune.images=9", "prune.select_on=validation", "method.random.seed=3"),
        "method.random.repeats=3",
    ),
    ("prunebench", (*BENCH, "prune.speed=false")): ("prune.onnx=true", "prune.speed_rounds=3"),
    ("probe", ("weights=random",)): (
        *("trainer.max_epochs=3", "data.batch_size=32", "data.augment.flip=true", "gates.lr=7.0"),
        *("gates.frozen=weights", "gates.keep=2", "data.limit_calibration=3"),
        *("backbone.drop_path_rate=.1", "backbone.patch_drop_rate=.1", "gates=learnable"),
        *("trainer.log_every_n_steps=1", "+trainer.max_steps=3", "data.root=conf"),
        *("+backbone.attn_drop_rate=.1", "+backbone.pos_drop_rate=.1"),
    ),
    ("maps", ("weights=random", "data=image_folder", "data.source.root=docs")): ("data.root=conf",),
    ("probe", ("weights=random", "measure=[entropy]", "seed=1")): (
        *("data.val_fraction=.2", "data.seed=3", "data.calibration_fraction=.1"),
    ),
    ("prune", (*LISTED, "seed=1")): ("data.val_fraction=.2", "data.calibration_fraction=.1"),
    ("prune", (*ORDERED, "seed=1")): ("data.calibration_fraction=.1",),
    ("probe", ("weights=random", "measure=[]")): (
        *("probe.control=random_init", "probe.top_k=3", "probe.target=label"),
        "+data@probe.also_on=scenes",
    ),
    ("probe", ("weights=random", "measure=[entropy]")): ("probe.target=label",),
    ("probe", ("weights=random", "measure=[entropy]", "+data@probe.also_on=cifar10_corrupted")): (
        *("probe.also_on.root=conf", "probe.also_on.batch_size=3", "probe.also_on.limit_train=3"),
        *("probe.also_on.augment.flip=true", "probe.also_on.val_fraction=.2"),
        *("probe.also_on.seed=3", "probe.also_on.calibration_fraction=.2"),
    ),
    ("probe", ("backbone.checkpoint=a.pt",)): ("weights=random",),
    ("mask", ("backbone.pretrained=true",)): ("weights=random",),
    ("mask", ("weights=random",)): (
        *("trainer.max_epochs=3", "gates.threshold=.4", "search.single.best=3"),
        "search.single.then.batch=10",
    ),
    ("mask", ("weights=random", "masking=single_heads")): ("search.several.least=8",),
    ("mask", ("weights=random", *RANDOM)): (
        *("masking.select_on=test", "+masking/join=redundant_or_inert"),
    ),
    ("mask", ("weights=random", "masking.step=1")): ("+masking/join=redundant_or_inert",),
    ("mask", ("weights=random", *RANDOM, "+masking.curves.random.fill=mean")): (
        "masking.fill=resample",
    ),
    ("mask", ("weights=random", *RANDOM, "seed=1")): ("search=exact",),
    ("train", ("masking=none",)): (
        *("masking.fill=mean", "masking.step=1", "masking.steps=3", "masking.select_on=test"),
        *("search=exact", "score=kl"),
    ),
    ("train", ("measure=[]",)): ("probe.every_n_epochs=1", "probe.every_n_steps=2"),
    ("train", ("gates=learnable", "gates.frozen=weights")): (
        *("optim.lr=.1", "optim.weight_decay=.1", "optim.layer_decay=.5"),
    ),
    ("train", ("gates=learnable", "gates.keep=2")): ("gates.threshold=.4",),
    ("train", ("data=cifar10", "data.root=conf")): ("data.source.download_dir=conf",),
    ("maps", ("weights=random",)): (
        *("trainer.gradient_clip_val=.5", "gates.lr=7.0", "trainer.precision=bf16-mixed"),
    ),
    ("maps", ("weights=random", "maps.attention.heads=[1/2]")): ("maps.attention.blocks=[0]",),
    ("claims", ("weights=random", "control=null")): (
        *("evidence.control_of=7", "evidence.masking.steps=2", "evidence.masking.step=2"),
        *(
            "evidence.masking.select_on=test",
            "+masking/join@evidence.masking.join=redundant_or_inert",
        ),
    ),
    ("claims", ("weights=random", "+data@evidence.second=cifar10_corrupted")): (
        *("evidence.second.root=conf", "evidence.second.val_fraction=.2"),
        "evidence.second.augment={flip:false}",
    ),
    ("studies.voita", ("weights=random",)): (
        *("gates.keep=2", "gates.threshold=.4", "gates.penalty.heads=2"),
    ),
    ("prune", (*LISTED, "prune.tune_epochs=1")): ("trainer.max_epochs=3",),
    ("studies.causal", ("weights=random",)): ("gates.lr=7.0", "gates.threshold=.4"),
    ("train", ()): (
        *("data.augment.magnitude=3", "resume.allow=[optim]", "+trainer.limit_predict_batches=2"),
        *("optim.teacher_weight=.1", "optim.temperature=3.0", "optim.teacher_sees=whole"),
        *("gates.lr=7.0", "gates.keep=2", "gates.threshold=.4", "data.limit_calibration=3"),
    ),
}
SOMETHING = {  # the same options where they have an effect
    ("prune", (*LISTED, "prune.repair.per=head")): ("prune.images=9", "prune.repair.ridge=2.0"),
    ("prune", (*LISTED, "prune.fold=mean")): ("prune.images=9",),
    ("prune", (*LISTED, "prune.speed=true")): ("prune.speed_rounds=4",),
    ("prune", (*LISTED, "prune.tune_epochs=1")): (
        *("optim.lr=2e-3", "data.batch_size=32", "data.augment.flip=true"),
        *("backbone.drop_path_rate=.1", "trainer.log_every_n_steps=1", "+trainer.max_steps=3"),
    ),
    ("prune", ("weights=random", "prune=given", "prune.heads=a.csv")): ("prune.step=3",),
    ("prune", ORDERED): ("prune.images=9", "prune.precision=bf16-mixed", "prune.remove=2"),
    ("prunebench", BENCH): ("prune.images=9", "prune.speed_rounds=3", "prune.onnx=true"),
    ("train", ("optim.teacher=a.safetensors",)): ("optim.temperature=3.0",),
    ("train", ("gates=learnable",)): ("gates.lr=.5", "gates.threshold=.4", "gates.keep=2"),
    ("train", ("gates=hard_concrete",)): ("gates.lr=.5", "gates.penalty.weight=.5"),
    ("train", ("gates=learnable", "gates.frozen=backbone")): ("optim.lr=.5",),
    ("probe", ("weights=random", "measure=[rarity]", "+data@probe.also_on=cifar10_corrupted")): (
        *("probe.also_on.val_fraction=.2", "probe.also_on.limit_val=3"),
    ),
    ("probe", ("weights=random", "measure=[rarity]")): (
        *("data.val_fraction=.2", "data.seed=3", "data.calibration_fraction=.1"),
    ),
    ("probe", ("weights=random", "measure=[]", "+question.mine._target_=nobody.knows")): (
        "data.val_fraction=.2",
    ),
    ("prune", (*LISTED, "prune.guarantee.points=5")): ("data.calibration_fraction=.1",),
    ("prune", (*LISTED, "score=kl")): ("data.val_fraction=.2",),
    ("train", ("data.augment.rand_augment=2",)): ("data.augment.magnitude=3",),
    ("train", ("ckpt_path=last",)): ("resume.allow=[optim]",),
    ("train", ("data=image_folder",)): ("data.root=conf",),
    ("train", ("data=cifar10_corrupted",)): ("data.root=conf", "gates=learnable"),
    ("train", ("optim.lr=.1",)): ("trainer.log_every_n_steps=1", "backbone.drop_path_rate=.1"),
    ("fetch", ()): ("gates.lr=.1", "data.augment.flip=true", "trainer.max_epochs=3"),
    ("probe", ("weights=random", "measure=[gate_importance]")): (
        *("probe.target=label", "probe.control=random_init", "probe.top_k=3"),
    ),
    ("probe", ("weights=random", "measure=[no_op]")): ("probe.target=label",),
    ("probe", ("weights=random",)): (
        *("trainer.precision=bf16-mixed", "gates.mask=a.csv", "backbone.patch_drop_rate=0.0"),
    ),
    ("mask", ("weights=random", "masking=single_heads")): ("search.single.best=3", "score=kl"),
    ("mask", ("weights=random", "masking=orders")): (
        *("search.single.best=3", "+masking/join=redundant_or_inert", "masking.fill=mean"),
    ),
    ("mask", ("weights=random", *RANDOM, "masking.fill=mean")): ("masking.select_on=test",),
    ("maps", ("weights=random",)): ("maps.attention.blocks=[0]",),
    ("prune", (*ORDERED, "prune/order=random")): ("prune.order.seed=3",),
    ("train", ("data.calibration_fraction=.2",)): ("data.limit_calibration=3",),
    ("train", ()): ("masking.fill=mean", "masking.step=1", "search=exact"),
    ("mask", ("weights=random",)): (
        *("masking.select_on=test", "search=exact", "masking.steps=3", "search.several.least=8"),
    ),
    ("mask", ("weights=gone.safetensors",)): ("data.root=conf",),  # whose data nobody can know
    ("claims", ("weights=random", "evidence.draws=5")): ("search=exact",),
    ("study", ("weights=random", "+paper=byun_kim")): ("search=exact",),
    ("studies.voita", ("weights=random",)): ("gates.lr=.5", "optim.lr=.5"),
    ("claims", ("weights=random",)): ("evidence.control_of=7",),
}
HARMLESS = {  # options of the table's sections that no need is said of, and why that is right
    "prune.heads": "is the choice itself",
    "prune.order.*": "options of the choice itself",
    "prune.target": "is the choice itself",
    "prune.latency_table": "is refused without a latency where paths are checked",
    "prune.units": "of the path",
    "prune.exclude_layers": "of the path",
    "prune.min_heads_per_layer": "of the path",
    "prune.rescale": "of the path",
    "prune.remove": "of the path",
    "prune.threshold": "is refused beside other heads where they are read",
    "prune.proj_bias": "of the network that is written",
    "prune.fold": "of the network that is written",
    "prune.rounds": "is refused beside a list where rounds begin",
    "prune.repair.per": "switches repair on",
    "prune.tune_epochs": "switches tuning on",
    "prune.elastic": "switches a file on",
    "prune.onnx": "switches a file on",
    "prune.torch_export": "switches a file on",
    "prune.speed": "switches timing on",
    "prune.random_draws": "switches the control on",
    "prune.guarantee.points": "switches the guarantee on",
    "gates.units": "which units have gates",
    "gates.mask": "switches heads off",
    "gates.relaxation._*": "the kind of gates",
    "gates.penalty": "is null",
    "trainer.accelerator": "where it runs",
    "trainer.devices": "where it runs",
    "trainer.num_nodes": "where it runs",
    "trainer.log_every_n_steps": "how often loggers write",
    "trainer.precision": "of tests, too",
    "trainer.deterministic": "of every pass on a GPU",
}


def refusal(command: str, made_of: tuple[str, ...], *typed: str, sweep=()) -> str:
    """What is answered; "" if the options are taken."""
    checked = runs.checked(command, *made_of, *typed)
    try:
        refuse_unneeded(checked, typed, sweep)
    except UserError as error:
        return str(error)
    return ""


def cases(table):
    return [
        (command, made_of, option)
        for (command, made_of) in table
        for option in table[command, made_of]
    ]


@pytest.mark.parametrize(("command", "made_of", "option"), cases(NOTHING))
def test_an_option_without_effect_is_refused_with_the_reason_when_it_is_typed(
    command, made_of, option
):
    said = refusal(command, made_of, option)
    key = option.partition("=")[0].lstrip("+").rpartition("@")[2].replace("/", ".")
    assert said.startswith(key) and "leave" in said and "\n" not in said
    refuse_unneeded(runs.checked(command, *made_of, option), made_of)  # of an experiment: not typed


@pytest.mark.parametrize(("command", "made_of", "option"), cases(SOMETHING))
def test_an_option_with_an_effect_is_taken(command, made_of, option):
    assert refusal(command, made_of, option) == ""


@pytest.mark.parametrize(
    "option", ["optim.teacher=null", "optim.ema=null", "~optim.label_smoothing"]
)
def test_null_and_what_is_taken_away_ask_for_nothing(option):
    checked = runs.checked("prune", *LISTED)
    refuse_unneeded(checked, [option])


def test_in_a_sweep_over_what_decides_nothing_is_refused():
    tuned = "prune.tune_epochs=0,1"
    asked = ("prune", LISTED, "optim.lr=2e-3")
    assert "prune.tune_epochs" in refusal(*asked)
    assert refusal(*asked, sweep=[tuned, "optim.lr=2e-3"]) == ""
    assert refusal(*asked, sweep=["seed=0,1"]) != ""  # negative control: a sweep over another key
    assert refusal(*asked, sweep=["-m", "+experiment=a,b"]) == ""  # also behind a flag


@pytest.mark.parametrize(
    ("command", "made_of"),
    [
        ("prune", LISTED),
        ("prune", (*ORDERED, "prune/order=random")),
        ("probe", ("weights=random",)),
    ],
)
def test_every_option_of_prune_gates_optim_and_trainer_is_refused_or_said_to_be_harmless(
    command, made_of
):
    cfg = runs.composed(command, *made_of)
    checked = runs.checked(command, *made_of)
    silent = []
    for section in {"prune", "gates", "optim", "trainer"} & set(cfg):
        for path, value in leaves(OmegaConf.to_container(cfg[section], resolve=True)):
            key = ".".join([section, *path])
            if any(fnmatch.fnmatchcase(key, pattern) for pattern in HARMLESS):
                continue
            try:
                refuse_unneeded(
                    checked, [f"{key}={1 if value is None or isinstance(value, dict) else value}"]
                )
            except UserError:
                continue
            silent.append(key)
    assert silent == []


def test_every_pattern_of_the_table_is_an_option_of_some_command():
    keys = set()
    for command, made_of in {*NOTHING, *SOMETHING}:
        plain = OmegaConf.to_container(runs.composed(command, *made_of), resolve=False)
        paths = [path for path, _ in leaves(plain, lists=False)]
        keys |= {".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    keys |= {f"trainer.{name}" for name in inspect.signature(L.Trainer).parameters}
    keys |= {f"backbone.{rate}" for rate in RATES}
    for need in NEEDS:
        assert all(fnmatch.filter(keys, pattern) for pattern in need.options)
    assert {"train"} <= set(TRAINS)
