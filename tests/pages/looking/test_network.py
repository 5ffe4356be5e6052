"""A network is found by what a user calls it: a run, a file, a folder of others' making, a name of timm's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from mhprobe import differing
from mhprobe.backbones import build, input_spec
from mhprobe.errors import UserError
from mhprobe.pages.diffing.opened import exported, opened, pictures
from mhprobe.pages.looking import network as module
from mhprobe.pages.looking.network import Asked, coloured, network_to_look_at
from models import tiny_vit


def test_a_name_of_timms_with_weights_of_any_training(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0).eval()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    found = network_to_look_at("vit_tiny_patch16_224", tmp_path / "w.safetensors", size=32)
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(found.model(images), model(images)) and found.spec["size"] == (32, 32)
    untrained = found.twin()
    assert not torch.equal(untrained(images), model(images))


def test_images_keep_the_size_of_the_network_and_a_large_one_says_what_is_quicker(monkeypatch):
    monkeypatch.setattr(module, "MANY", 1_000_000)
    found = network_to_look_at("vit_tiny_patch16_224", "random", None)
    assert found.spec["size"] == (224, 224)
    assert any("of 224 pixels has 1 million" in note for note in found.notes)
    assert any("untrained" in note for note in found.notes)
    monkeypatch.setattr(module, "MANY", 10_000_000)
    assert network_to_look_at("vit_tiny_patch16_224", "random").notes == (
        "It is untrained: its weights are random.",
    )


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """A file of two networks and a decoder, and the state of the first."""
    torch.manual_seed(0)
    name = "vit_tiny_patch16_224"
    one, two = (timm.create_model(name, img_size=32, num_classes=0).state_dict() for _ in range(2))
    whole = {f"student.{key}": value for key, value in one.items()}
    whole |= {f"teacher.{key}": value for key, value in two.items()}
    path = tmp_path_factory.mktemp("two") / "two.pth"
    torch.save(whole | {"student.decoder": torch.zeros(3)}, path)
    return path, one


def test_foreign_weights_are_read_as_asked_and_their_colours_are_a_guess(of_two):
    path, state = of_two
    asked = Asked(prefix="student", leave_out=["decoder"])
    found = network_to_look_at("vit_tiny_patch16_224", path, 32, asked=asked)
    assert torch.equal(found.model.pos_embed, state["pos_embed"])
    reading = coloured(found, None, None).model.readings["mean and std"]
    assert reading.guess
    given = coloured(found, 0.4, 0.2)
    assert given.spec["mean"] == (0.4,) * 3
    assert not any(of.guess for of in given.readings if of.what == "mean and std")
    with pytest.raises(UserError, match="Say which one"):
        network_to_look_at("vit_tiny_patch16_224", path, 32)
    for options, words in (
        (Asked(prefix="student"), "prefix: is for weights of another training"),
        (Asked(leave_out=True), "leave_out: is for weights of another training"),
        (Asked(prefix=3), "prefix: expected"),
    ):
        with pytest.raises(UserError, match=words):
            network_to_look_at("vit_tiny_patch16_224", "random", 32, asked=options)


def test_diff_reads_foreign_weights_and_deep_photographs_as_asked(of_two, tmp_path, caplog):
    path, state = of_two
    name = "vit_tiny_patch16_224"
    told = [name, name, str(tmp_path), "--size", "32", "--weights", str(path), str(path)]
    read = [
        "--prefix",
        "student",
        "--leave-out",
        "decoder",
        "--mean",
        "0.4",
        "--std",
        "0.2,0.2,0.1",
    ]
    sides = differing._sides(differing._parsed(told + read), opened, exported)
    for side in sides:
        assert torch.equal(side.side.backbone.pos_embed, state["pos_embed"])
        assert side.spec["mean"] == (0.4,) * 3 and side.spec["std"] == (0.2, 0.2, 0.1)
    assert "guess" not in caplog.text
    differing._sides(differing._parsed(told + read[:4]), opened, exported)
    assert "a guess; give mean and std" in caplog.text
    bare = [name, name, str(tmp_path), "--prefix", "student"]
    with pytest.raises(UserError, match="--prefix and --leave-out are for files"):
        differing._sides(differing._parsed(bare), opened, exported)
    for number, white in enumerate((1000, 2000, 3000, 4000)):  # each alone has other levels
        grey = np.full((16, 24), white, dtype=np.uint16)
        Image.fromarray(grey).save(tmp_path / f"{number}.png")
    wide = pictures(tmp_path, None, (8, 16), 4)
    assert [int(of.max()) for of in wide.pixels] == [62, 125, 187, 250]
    assert wide.pixels.shape == (4, 3, 8, 16)
    assert any("levels" in note and "--levels" in note for note in wide.notes)
    as_told = pictures(tmp_path, None, (8, 16), 4, levels=4000)
    assert int(as_told.pixels.max()) == 255 and not as_told.notes


def test_a_folder_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32)
    model = transformers.Dinov2Model(
        transformers.Dinov2Config(image_size=28, patch_size=14, **sizes)
    ).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3]}))
    found = network_to_look_at(tmp_path)
    images = torch.randn(1, 3, 28, 28)
    assert torch.equal(found.model(images).last_hidden_state, model(images).last_hidden_state)
    assert found.spec["size"] == (28, 28) and found.spec["mean"] == (0.1, 0.2, 0.3)
    with pytest.raises(UserError, match="untrained"):
        found.twin()


def test_a_folder_of_transformers_with_other_weights_than_its_settings_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=24, num_attention_heads=3, intermediate_size=32)
    config = transformers.ViTConfig(image_size=32, patch_size=16, num_hidden_layers=2, **sizes)
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    found = network_to_look_at(
        tmp_path
    )  # its classifier is no part of the network, and no pooler is drawn
    images = torch.randn(1, 3, 32, 32)
    hidden = model.vit(images).last_hidden_state
    assert torch.equal(found.model(images).last_hidden_state, hidden)
    assert found.model(images).pooler_output is None
    assert "classifier.weight" in str(found.model.readings["weights"])
    path, text = tmp_path / "config.json", (tmp_path / "config.json").read_text()
    for blocks, words in ((3, "its weights lack"), (1, "its config.json leaves out")):
        path.write_text(json.dumps({**json.loads(text), "num_hidden_layers": blocks}))
        with pytest.raises(UserError, match=words):
            network_to_look_at(tmp_path)


def test_sizes_of_a_folder_that_its_file_does_not_hold_cost_no_memory(tmp_path):
    sizes = dict(img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2)
    name = "vit_tiny_patch16_224"
    state = timm.create_model(name, num_classes=0, **sizes).state_dict()
    save_file(state, tmp_path / "model.safetensors")
    for other, words in (({"embed_dim": 1200, "depth": 12}, "numbers"), ({"depth": 3}, "config")):
        input_of = {"input_size": [3, 16, 16], "mean": [0.5] * 3, "std": [0.5] * 3}
        told = {"architecture": name, "num_classes": 0, "pretrained_cfg": input_of}
        told["model_args"] = {**sizes, **other}
        (tmp_path / "config.json").write_text(json.dumps(told))
        with pytest.raises(UserError, match=words) as error:
            network_to_look_at(tmp_path)
        assert len(str(error.value)) < 600


def test_what_was_pushed_to_the_hub_is_found_there(tmp_path, monkeypatch):
    weights = Path(__file__).parents[3] / "weights" / "cifar10_vit_stem"
    files = {
        "model.json": weights.with_suffix(".json"),
        "model.safetensors": weights.with_suffix(".safetensors"),
    }
    for name, file in files.items():
        (tmp_path / name).symlink_to(file)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda repo, file, revision: str(tmp_path / file)
    )
    found = network_to_look_at("hf-hub:owner/name")
    assert (
        found.name == "hf-hub:owner/name"
        and found.spec["size"] == (32, 32)
        and found.layout.num_heads == 72
    )
    assert found.twin() is not None


def test_a_network_of_a_notebook_is_taken_as_it_is():
    model = tiny_vit()
    found = network_to_look_at(model, None, None)
    assert found.model is model and found.spec == input_spec(model)
    with pytest.raises(UserError):  # its sizes are no default's: nothing says how to rebuild it
        network_to_look_at(model).twin()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("vit_tiny_patch16_225", None, None), "no model 'vit_tiny_patch16_225'"),
        (("vit_tiny_patch16_224", "nowhere.safetensors", None), "no file nowhere.safetensors"),
        ((3, None, None), "expected a network or its name"),
        (("{here}", "random", None), "leave them out"),
        (("{here}", None, None), "holds no"),
    ],
)
def test_what_is_no_network_is_answered_in_a_line(arguments, says, tmp_path):
    name, weights, size = arguments
    with pytest.raises(UserError, match=says):
        network_to_look_at(str(tmp_path) if name == "{here}" else name, weights, size)


SMALL = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3)
CONFIG = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 0,
    "model_args": SMALL,
    "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3},
}


@pytest.fixture
def of_timm(tmp_path):
    """A folder as timm's save_for_hf writes it."""
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, **SMALL)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_folder_of_timm(of_timm):
    assert network_to_look_at(of_timm).spec["size"] == (32, 32)
    build(f"local-dir:{of_timm}", pretrained=True, num_classes=0)


def sizes(**given):
    return json.dumps({**CONFIG, "model_args": {**SMALL, **given}})


@pytest.mark.parametrize(
    "text",
    [
        *("5", "null", "[]", '"architecture"', "[" * 100_000 + "]" * 100_000, "{", "\x00"),
        *('{"model_type": 5}', '{"model_type": []}', '{"model_type": null}', "9" * 5000, "NaN"),
        *(json.dumps({**CONFIG, "architecture": value}) for value in (None, ["vit"], 5, {}, "")),
        *(json.dumps({**CONFIG, "model_args": value}) for value in ([1], "x", 5, ["depth"])),
        *(json.dumps({**CONFIG, "pretrained_cfg": value}) for value in ([1], "x", 5)),
        *(
            json.dumps({**CONFIG, "pretrained_cfg": {**CONFIG["pretrained_cfg"], **part}})
            for part in (
                *({"mean": [123.7, 116.3, 103.5]}, {"std": [58.4, 57.1, 57.4]}),
                *({"std": [0, 0, 0]}, {"std": [-0.5] * 3}, {"mean": [-0.1] * 3}),
                *({"mean": "bright"}, {"mean": ["a"] * 3}, {"std": {}}, {"mean": []}),
                *({"input_size": 5.5}, {"input_size": [3, 65536, 65536]}, {"input_size": "x"}),
            )
        ),
        *(sizes(depth=value) for value in (1_000_000, 12_345_997, 1e6, "2", [2], 5000)),
        *(sizes(embed_dim=value) for value in (30000, "x", [24])),
        *(sizes(img_size=value) for value in (16384, [1], {"a": 1}, "x")),
        sizes(no_such=3),
        json.dumps({**CONFIG, "architecture": "vit_7b_patch16_dinov3", "model_args": {}}),
    ],
    ids=lambda text: text[:12] + text[-60:],
)
def test_settings_of_the_wrong_kind_or_size_are_answered_in_a_line(of_timm, text, monkeypatch):
    (of_timm / "config.json").write_text(text)
    begun = time.monotonic()
    for refused in (
        lambda: network_to_look_at(of_timm),
        lambda: build(f"local-dir:{of_timm}", pretrained=True, num_classes=0),
    ):
        with pytest.raises(UserError) as error:
            refused()
        assert "\n" not in str(error.value) and of_timm.name in str(error.value)
        assert len(str(error.value)) < 600
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_or_a_device_in_a_folder_is_not_read(of_timm, name):
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (of_timm / name).unlink()
        make(of_timm / name)
        with pytest.raises(UserError, match=f"{name}: not an ordinary file"):
            network_to_look_at(of_timm)


@pytest.mark.parametrize(
    "part",
    [
        *({"num_hidden_layers": value} for value in (1_000_000, 12_345_997, "2", None, [2])),
        *({"hidden_size": value} for value in (300_000, "x", None)),
        *({"image_size": value} for value in (65536, "x", [28], {"a": 1})),
        *({"model_type": value} for value in ("no_such", 5, None, "bert")),
        {"num_attention_heads": 0},
    ],
    ids=str,
)
def test_settings_of_transformers_of_the_wrong_kind_are_answered_in_a_line(tmp_path, part):
    transformers = pytest.importorskip("transformers")
    own = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32)
    config = transformers.Dinov2Config(image_size=28, patch_size=14, **own)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **part}))
    begun = time.monotonic()
    with pytest.raises(UserError) as error:
        network_to_look_at(tmp_path)
    assert tmp_path.name in str(error.value) and time.monotonic() - begun < 60


@pytest.mark.parametrize(
    "text", ["5", "null", "{", '{"image_mean": "bright"}', '{"image_std": [null, 1, 1]}']
)
def test_a_processor_of_the_wrong_kind_is_answered_in_a_line(tmp_path, text):
    transformers = pytest.importorskip("transformers")
    own = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32)
    config = transformers.Dinov2Config(image_size=28, patch_size=14, **own)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(UserError, match="preprocessor_config"):
        network_to_look_at(tmp_path)


NAME = "vit_tiny_patch16_224"


def test_what_rebuilds_a_network_is_found_without_drawing_weights():
    """A ViT-L takes seconds and a gigabyte, of which nothing but its heads is looked at."""
    whole, short = timm.create_model(NAME), timm.create_model(NAME, depth=2)
    drawn = torch.get_rng_state()
    recipe = network_to_look_at(whole).recipe
    assert recipe is not None and recipe["backbone"] == {"name": NAME, "img_size": [224, 224]}
    assert network_to_look_at(short).recipe is None  # the name does not tell its depth
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_network_that_cannot_be_built_without_numbers_is_built_whole(monkeypatch):
    built = []

    def build(**options):
        built.append(torch.empty(0).device.type)
        torch.zeros(1).item()  # which the meta device refuses
        return timm.create_model(options["name"])

    monkeypatch.setattr(module, "build", build)
    assert network_to_look_at(timm.create_model(NAME)).recipe is not None
    assert built == ["meta", "cpu"]
