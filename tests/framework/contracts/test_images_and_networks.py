"""Contract of ``data.*`` and ``backbone.*``: another value is seen in a run, is refused, or is harmless with a reason.

Tiny runs tell which images a command looks at. Of these images a changed option has to change
something, or of the network that is built.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from test_every_option import ANYWHERE, COMPOSED, first, other, refused
from test_needed import LISTED, ORDERED

import runs
from data_sets import class_files, encoded, write_flowers, write_folder, write_pets
from mhprobe.backbones import build, input_spec
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.framework.run import image_data, networks
from mhprobe.framework.run.launch import module
from mhprobe.framework.run.needed import trains
from mhprobe.framework.run.schema import Config, check
from mhprobe.io.nested import leaves
from mhprobe.io.tensors import digest
from mhprobe.lab.claims.parts.evidence import Evidence
from mhprobe.weights.checkpoint import save_weights
from mhprobe.weights.description import RATES

BRIEF = ("budgets=[.5]", "seeds=[0]", "prune.speed=false", "optim.teacher=null")
PROMISED = ("data.calibration_fraction=.5", "prune.guarantee.points=60")
CLAIMS = ("control=null", "evidence.maps_of=6")
TRIED = [  # runs of a second or two; what panels of a paper look at, they decide
    ("claims", (*CLAIMS, "claims=[entropy_falls_with_depth]")),
    ("claims", (*CLAIMS, "claims=[early_blocks_are_needed_most]")),
    ("claims", (*CLAIMS, "claims=[compact_heat_is_right]")),
    ("claims", (*CLAIMS, "claims=[high_norm_tokens_lose_their_place]")),
    ("claims", (*CLAIMS, "claims=[most_heads_can_go]")),
    ("study", ("+paper=clark", "figures=[3]", "control=null")),
    ("study", ("+paper=voita", "figures=[rare]", "control=null")),
    ("maps", ("images=[0]", "faithfulness.steps=1", "faithfulness.random_orders=1")),
    ("probe", ("measure=[entropy]",)),
    ("probe", ("measure=[rarity]",)),
    ("mask", ()),
    ("prune", LISTED),
    ("prune", (*LISTED, "prune.repair.per=head")),
    ("prune", (*LISTED, "prune.tune_epochs=1")),
    ("prune", (*LISTED, *PROMISED)),
    ("prune", ORDERED),
    ("prune", (*ORDERED, "prune.select_on=validation")),
    ("prunebench", (*BRIEF, "methods=[random]")),
    ("prunebench", (*BRIEF, "methods=[magnitude]", "prune.repair.per=none")),
    ("studies.causal", ("causal.steps=2", "causal.start_steps=1")),
    ("train", ("masking=none", "measure=[]")),
]
LEFT = {  # options of backbone that are not tried here, and why
    "backbone.name": "the network itself",
    "backbone.pretrained": "would be downloaded",
    "backbone.checkpoint": "is read by tests/library/weights",
}
SIZES = {  # values of which one is another, and fits the others
    "backbone.img_size": (8, 16, 32),
    "backbone.embed_dim": (24, 48),
    "backbone.num_heads": (3, 2, [1, 2], [2, 4]),
    "backbone.patch_size": (4, 2),
    "backbone.window_size": (4, 2),
}
SECOND_SETS = ("probe.also_on", "evidence.second")
NEW = {  # a value for an option that is null
    "data.root": "conf",
    "data.limit_train": 5,
    "data.limit_val": 2,
    "data.limit_test": 5,
    "data.limit_calibration": 3,
    "data.source.classes": ["dog", "cat"],
    "data.source.levels": 4095,
    "data.source.test_fraction": 0.3,
    "data.source.kinds": ["blur"],
    "backbone.prefix": "student",
    "backbone.leave_out": ["decoder"],
    "backbone.mean": [0.1, 0.2, 0.3],
    "backbone.std": [0.1, 0.2, 0.3],
    "backbone.num_classes": 0,
    "backbone.mlp_ratio": 2.0,
    "backbone.conv_stem": [8],
} | {f"backbone.{rate}": 0.3 for rate in RATES}


def settings(cfg: Any, section: str) -> Iterator[tuple[str, Any]]:
    """Each option of a section that is not harmless anywhere, and another value of its type."""
    part = OmegaConf.to_container(OmegaConf.select(cfg, section), resolve=True)
    for path, value in leaves(part):
        key = ".".join([section, *path])
        as_named = key if section in SECOND_SETS and "limit_" in key else named(key)
        if not first(ANYWHERE, as_named) and key not in LEFT:
            yield key, changed(named(key), value)


def named(key: str) -> str:
    """The option's key in the first data set."""
    for section in SECOND_SETS:
        key = key.replace(section, "data", 1)
    return key


def changed(key: str, value: Any) -> Any:
    if key in SIZES:
        return next(of for of in SIZES[key] if of != value and type(of) is type(value))
    if value is None:
        return NEW[key]
    if isinstance(value, list):
        return [*value[:-1], other(value[-1])]
    if isinstance(value, str):  # a folder
        return f"{value}_of_nobody"
    assert isinstance(value, bool | int | float), (key, value)
    return other(value)


def silent(
    command: str, composed: DictConfig, section: str, found: Callable[[Config], Any]
) -> list[str]:
    """The options of a section with another value of which ``found`` is the same, and that nobody refuses."""
    if OmegaConf.is_missing(composed, "weights"):
        composed.weights = "random"
    same, unseen = found(check(command, composed)), []
    for key, value in settings(composed, section):
        with_value = composed.copy()
        OmegaConf.update(with_value, key, value)
        try:
            changed_too = check(command, with_value)
            if not refused(changed_too, key, value) and found(changed_too) == same:
                unseen.append(key)
        except UserError as error:
            assert key.rpartition(".")[2] in str(error)
    return unseen


# images


def images_seen(cfg: Config, splits: frozenset[str]) -> str:
    """A digest of all that a run takes of the images of these splits."""
    data = image_data.build_images(cfg)
    parts = [data.class_names, data.stored_size, data.channels, data.images_of(*sorted(splits))]
    if trains(cfg):
        batch = data.stored("train", range(8))
        batch = batch._replace(first=batch.index[0]) if data.augment.mixes else batch
        shown = data.transform(batch, train=True, epoch=1)
        parts += [data.batch_size, digest({"images": shown.images.contiguous()})]
    return str(parts)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A pair of files, as a training on digits writes it."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    sizes = dict(img_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3)
    about = {"backbone": {"name": "vit_tiny_patch16_224", **sizes}, "data": "digits"}
    save_weights(
        build(**about["backbone"], num_classes=10),
        path,
        {**about, "class_names": [str(number) for number in range(10)]},
    )
    return path


def told(command: str, made_of: tuple[str, ...], folder: Path, weights: Path) -> tuple[str, ...]:
    """Words of a tiny run."""
    named = [word for word in made_of if not word.startswith("weights=")]
    given = [f"weights={weights}"] if command == "prune" else []
    return (*runs.TINY, f"cache_dir={folder}/cache", f"out={folder}", *given, *named)


def watched(patch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Gets the data sets whose images are read from now on, by name, and the splits."""
    seen: set[tuple[str, str]] = set()

    def watch(name: str, split_of: Callable[..., str]) -> None:
        read = getattr(ImageData, name)

        def reads(self, *words, **options):
            seen.add((self.source.name, split_of(*words)))
            return read(self, *words, **options)

        patch.setattr(ImageData, name, reads)

    watch("train_dataloader", lambda: "train")
    watch("_eval_loader", lambda split, *_: split)
    watch("stored", lambda split, *_: split)
    return seen


@pytest.mark.parametrize(("command", "made_of"), TRIED)
@pytest.mark.filterwarnings("ignore")
def test_an_option_of_the_images_changes_some_that_are_looked_at(
    command, made_of, tmp_path, weights, monkeypatch
):
    words = told(command, made_of, tmp_path, weights)
    cfg = runs.checked(command, *words)
    (tmp_path / "run").mkdir()
    read = splits_read(cfg, tmp_path / "run", monkeypatch)
    seen = {split for _, split in read}
    beside = {OURS[split] for split in seen - {"test"}}
    assert "test" in seen and not (beside and refused(cfg, "data.val_fraction", 0.2))
    assert not ("validation" in beside and refused(cfg, "data.calibration_fraction", 0.2))
    found = functools.partial(images_seen, splits=frozenset(seen))
    assert silent(command, runs.composed(command, *words), "data", found) == []


OURS = {"train": "train", "val": "validation", "calibration": "validation"}


def splits_read(cfg: Config, folder: Path, monkeypatch) -> set[tuple[str, str]]:
    """The data sets that a run reads, by name, and their splits."""
    with monkeypatch.context() as patch:
        patch.setattr(Evidence, "_refuse_guessing", lambda self: None)  # nothing was trained
        seen = watched(patch)
        module(cfg.command).run(cfg, folder)
    return seen


@pytest.mark.parametrize(
    ("command", "made_of", "section"),
    [
        ("probe", ("measure=[entropy]",), "probe.also_on"),
        ("probe", ("measure=[rarity]",), "probe.also_on"),
        ("claims", (*CLAIMS, "claims=[importance_agrees_between_data_sets]"), "evidence.second"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_option_of_a_second_data_set_changes_some_that_are_looked_at(
    command, made_of, section, tmp_path, monkeypatch
):
    one, two = (
        write_folder(tmp_path / name, class_files(train=12, test=test, width=32, height=32))
        for name, test in (("one", 6), ("two", 7))
    )
    words = (*runs.TINY, "data=cifar10", f"data.root={one}", *made_of)
    words = (*words, f"+data@{section}=cifar10_corrupted", f"{section}.source.source.root={two}")
    words = (*words, f"{section}.val_fraction=.3", "weights=random", f"cache_dir={tmp_path}/cache")
    cfg = runs.checked(command, *words, f"out={tmp_path}")
    (tmp_path / "run").mkdir()
    read = splits_read(cfg, tmp_path / "run", monkeypatch)
    seen = {split for name, split in read if name != "cifar10"}
    assert "test" in seen and ("val" in seen) == ("measure=[rarity]" in made_of)

    def found(cfg: Config) -> str:
        part = cfg.probe.also_on if cfg.probe else cfg.evidence.second
        data = image_data.prepare(part, section)
        return str([data.class_names, data.stored_size, data.channels, data.images_of(*seen)])

    assert silent(command, runs.composed(command, *words), section, found) == []


def test_every_command_with_images_is_tried():
    assert {command for command, _ in TRIED} == {*COMPOSED} - {
        "fetch",
        "studies.voita",  # a training, as train is
    }


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The words for each data set of conf/, with files to read."""
    root = tmp_path_factory.mktemp("sets")
    pictures = write_folder(root / "folders", class_files(train=12, test=6))
    cifar = write_folder(root / "cifar", class_files(train=12, test=6, width=32, height=32))
    flowers = write_flowers(root / "flowers", each=12)
    for number, file in enumerate(flowers.rglob("*.jpg")):  # each is of one colour, flipped or not
        file.write_bytes(encoded(number, 40, 30, "JPEG"))
    of_root = {
        "image_folder": pictures,
        "photos": pictures,
        "cifar10": cifar,
        "cifar10_corrupted": cifar,
        "pets": write_pets(root / "pets", each=12),
        "flowers": flowers,
    }
    scenes = ("data=scenes", "data.source.train=60", "data.source.test=30")
    with_root = {name: (f"data={name}", f"data.root={of}") for name, of in of_root.items()}
    return {"digits": ("data=digits",), "scenes": scenes, **with_root}


SETS = sorted(path.stem for path in Path("conf/data").glob("*.yaml") if path.stem != "base")


@pytest.mark.parametrize("name", SETS)
def test_an_option_of_a_data_set_changes_its_images(name, sets, tmp_path, monkeypatch):
    """Of the command that looks at all of them; of photographs, which nobody can train on, of mask."""
    monkeypatch.setattr("torchvision.datasets.Flowers102._check_integrity", lambda self: True)
    command = "mask" if name == "photos" else "train"
    words = (*sets[name], "data.val_fraction=.3", f"cache_dir={tmp_path}")
    words = (*words, "weights=random") if name == "photos" else words
    found = functools.partial(images_seen, splits=frozenset({"train", "val", "test"}))
    assert silent(command, runs.composed(command, *words), "data", found) == []


def test_an_option_that_changes_nothing_is_seen(tmp_path, monkeypatch):
    """Negative control: without the table of needs maps take a share of validation images, as second data sets do."""
    composed = runs.composed("maps", *runs.TINY, "weights=random", f"cache_dir={tmp_path}")
    found = functools.partial(images_seen, splits=frozenset({"test"}))
    monkeypatch.setattr("mhprobe.framework.run.needed.NEEDS", ())
    assert {"data.val_fraction", "data.seed", "data.calibration_fraction"} <= {
        *silent("maps", composed, "data", found)
    }
    second = ("measure=[entropy]", "+data@probe.also_on=digits", "weights=random")
    composed = runs.composed("probe", *runs.TINY, *second, f"cache_dir={tmp_path}")
    assert {"probe.also_on.batch_size", "probe.also_on.val_fraction"} <= {
        *silent("probe", composed, "probe.also_on", lambda cfg: "")
    }


# networks


PLAIN = "img_size=8 patch_size=4 embed_dim=24 depth=2 num_heads=3"
STAGES = "img_size=16 patch_size=2 embed_dim=12 depths=[1,1] num_heads=[1,2] window_size=4"
SIZED = {
    "vit": PLAIN,
    "beit": PLAIN,
    "eva": PLAIN,
    "relpos": PLAIN,
    "swin": STAGES,
    "swinv2": STAGES,
}


def network(cfg: Config) -> tuple[Any, ...]:
    """What is built: what it gives in a test and, where the command trains, its parts."""
    model = networks.build_classifier(cfg, image_data.build_images(cfg))
    backbone = model.backbone.eval()
    spec = input_spec(backbone)
    images = torch.linspace(0, 1, 6 * math.prod(spec["size"])).view(2, 3, *spec["size"])
    with torch.no_grad():
        given = backbone(images)
    parts = str(backbone) if trains(cfg) else ""
    tables = [part.shape for part in backbone.buffers()]  # a new Swin V2's attention adds nothing
    return parts, tables, str(spec), given.shape, given.double().norm().item()


@pytest.mark.parametrize("command", ["train", "mask"])
@pytest.mark.parametrize("name", SIZED)
def test_an_option_of_the_network_changes_it(name, command, tmp_path):
    """All commands build alike; a rate of dropping changes nothing where nothing is trained, and is refused."""
    sizes = [f"backbone.{size}" for size in SIZED[name].split()]
    rates = [f"+backbone.{rate}=0.0" for rate in RATES[-2:]]
    new = [] if command == "train" else ["weights=random"]
    words = (f"backbone={name}", *sizes, *rates, *new, f"cache_dir={tmp_path}")
    assert silent(command, runs.composed(command, *words), "backbone", network) == []


def test_a_rate_that_changes_nothing_is_seen(tmp_path, monkeypatch):
    """Negative control of the above."""
    sizes = [f"backbone.{size}" for size in PLAIN.split()]
    words = ("backbone=vit", *sizes, "+backbone.attn_drop_rate=0.0", f"cache_dir={tmp_path}")
    composed = runs.composed("mask", *words, "weights=random")
    monkeypatch.setattr("mhprobe.framework.run.needed.NEEDS", ())
    rates = {f"backbone.{rate}" for rate in ("drop_path_rate", "attn_drop_rate")}
    assert rates <= {*silent("mask", composed, "backbone", network)}


def test_every_family_is_tried():
    assert {*SIZED} == {path.stem for path in Path("conf/backbone").glob("*.yaml")}
