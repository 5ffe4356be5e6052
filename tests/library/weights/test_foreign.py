"""Weights of other people's trainings: found under any usual key and prefix, and refused in a line where not."""

from __future__ import annotations

import argparse
import json
import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from timm.models import save_for_hf
from torchvision.models import VisionTransformer

import mhprobe
import runs
from mhprobe import fetch
from mhprobe.backbones import build, input_spec
from mhprobe.framework.run import image_data, networks
from mhprobe.framework.run.schema import check
from mhprobe.weights.foreign import load_foreign
from mhprobe.weights.twin import RandomTwin
from models import images_for, tiny_swin, tiny_vit

SIZES = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3)
WHERE = "backbone.checkpoint"


def prefixed(state, prefix):
    return {f"{prefix}{key}": value for key, value in state.items()}


def noise(state):
    return {key: torch.randn_like(value) for key, value in state.items()}


FORMS = {  # how training scripts keep a model's state
    "plain": lambda state: state,
    "data parallel": lambda state: {"state_dict": prefixed(state, "module."), "epoch": 3},
    "compiled": lambda state: {
        "model": prefixed(state, "_orig_mod."),
        "args": argparse.Namespace(lr=1e-3),
    },
    "timm with averages": lambda state: {
        **{"arch": "vit", "state_dict": noise(state), "state_dict_ema": state},
        "args": argparse.Namespace(model="vit", opt="adamw"),
    },
    "lightning": lambda state: {
        "state_dict": {**prefixed(state, "net.backbone."), "criterion.weight": torch.ones(5)},
        "hyper_parameters": {"lr": 1e-3},
        "optimizer_states": [],
    },
    "dino": lambda state: {
        "student": prefixed(noise(state), "module.backbone."),
        "teacher": {**prefixed(state, "backbone."), "head.last_layer.weight_v": torch.ones(3, 3)},
    },
    "two networks in one": lambda state: {
        # the teacher is an average of the student, which tells it from that of a distillation
        "state_dict": {
            **{f"student.{key}": value + 1e-3 for key, value in state.items()},
            **prefixed(state, "teacher."),
        }
    },
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_weights_are_found_under_keys_and_prefixes(form, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(form(tiny_vit(seed=7).state_dict()), path)
    model = tiny_vit(seed=0)
    images = images_for(model, 2)
    assert not torch.equal(model(images), tiny_vit(seed=7)(images))
    load_foreign(model, path, WHERE)
    assert torch.equal(model(images), tiny_vit(seed=7)(images))


def test_safetensors_and_old_files_without_a_zip(tmp_path):
    state, images = tiny_swin(seed=7).state_dict(), images_for(tiny_swin(), 2)
    safetensors.torch.save_file(
        {k: v.contiguous() for k, v in state.items()}, tmp_path / "a.safetensors"
    )
    torch.save(state, tmp_path / "b.pth", _use_new_zipfile_serialization=False)
    for name in ("a.safetensors", "b.pth"):
        model = tiny_swin(seed=0)
        load_foreign(model, tmp_path / name, WHERE)
        assert torch.equal(model(images), tiny_swin(seed=7)(images))


def test_a_notebook_loads_them_by_name_with_the_classes_of_the_file(tmp_path):
    torch.save({"model": tiny_vit(seed=7).state_dict()}, tmp_path / "w.pth")
    model = mhprobe.load(tmp_path / "w.pth", name="vit_tiny_patch16_224", **SIZES)
    images = images_for(model, 2)
    assert torch.equal(model(images), tiny_vit(seed=7)(images)) and not model.training
    torch.save(tiny_vit(seed=7, num_classes=0).state_dict(), tmp_path / "w.pth")
    features = mhprobe.load(tmp_path / "w.pth", name="vit_tiny_patch16_224", **SIZES)
    assert features(images).shape == (2, 24)
    with pytest.raises(
        mhprobe.UserError, match=r"embed_dim: options of a timm model need its name"
    ):
        mhprobe.load(tmp_path / "w.pth", embed_dim=3)


def test_positions_of_another_image_size_are_timm_s_to_translate(tmp_path):
    torch.save(tiny_vit(seed=7).state_dict(), tmp_path / "w.pth")
    larger = tiny_vit(seed=0, img_size=32)
    load_foreign(larger, tmp_path / "w.pth", WHERE)
    assert torch.equal(larger.blocks[0].attn.qkv.weight, tiny_vit(seed=7).blocks[0].attn.qkv.weight)
    assert larger.pos_embed.shape[1] == 65


class Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('run')",)


def refused(path, *words, model=None):
    with pytest.raises(mhprobe.UserError) as error:
        load_foreign(tiny_vit() if model is None else model, path, WHERE)
    line = str(error.value)
    assert line.startswith(f"{WHERE}: ") and "\n" not in line and path.name in line
    for word in words:
        assert word in line, line


def test_what_does_not_fit_is_listed_in_one_line(tmp_path):
    path = tmp_path / "w.pth"
    state = tiny_vit().state_dict()
    refused(path, "no file")
    torch.save(tiny_swin().state_dict(), path)
    refused(path, "another architecture", "VisionTransformer", "patch_embed.norm.weight")
    torch.save({**state, "norm.weight": torch.ones(7)}, path)
    refused(path, "norm.weight (7,) instead of (24,)")
    torch.save({key: value for key, value in state.items() if "blocks.1.mlp" not in key}, path)
    refused(path, "not in it: blocks.1.mlp.fc1.weight")
    torch.save(tiny_vit(depth=3).state_dict(), path)
    refused(path, "unknown to the model: blocks.2.", "and 8 more")
    torch.save({"step": 3, "lr": [1.0]}, path)
    refused(path, "holds no state dict")
    torch.save([1, 2], path)
    refused(path, "holds a list")
    torch.save({"state_dict": state, "extra": Evil()}, path)
    refused(path, "could run code")
    path.write_bytes(b"\x80no weights")
    refused(path, "is refused", "damaged")
    path = path.with_suffix(".safetensors")
    path.write_bytes(b"\x80no weights")
    refused(path, "not a whole safetensors file")


def test_a_classifier_of_other_classes_is_new_in_training_and_refused_elsewhere(tmp_path, caplog):
    path = tmp_path / "w.pth"
    torch.save(tiny_vit(seed=7, num_classes=9).state_dict(), path)
    refused(path, "fits but for its classifier", "5 classes", "for 9 classes")
    model = tiny_vit()
    before = model.head.weight.clone()
    load_foreign(model, path, WHERE, new_classifier=True)
    assert "the classifier for 9 classes does not fit this data, a new one begins" in caplog.text
    assert torch.equal(model.head.weight, before)
    assert torch.equal(
        model.blocks[1].attn.proj.weight, tiny_vit(seed=7, num_classes=9).blocks[1].attn.proj.weight
    )


def test_one_line_says_what_was_done_to_make_a_file_fit(tmp_path, caplog):
    path = tmp_path / "w.safetensors"
    theirs = tiny_vit(seed=7, num_classes=0, img_size=24)
    safetensors.torch.save_file(
        {key: value.half() for key, value in theirs.state_dict().items()}, path
    )
    model = tiny_vit()
    with caplog.at_level(logging.INFO):
        load_foreign(model, path, WHERE, new_classifier=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"{WHERE}: {path}: its float16 weights become float32; pos_embed (1, 37, 24) is resampled "
        "to (1, 17, 24), read as a grid of 6 x 6 (a guess); "
        "it has no classifier, a new one begins."
    ]
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}

    caplog.clear()  # and nothing where nothing was done
    torch.save(tiny_vit(seed=7).state_dict(), path.with_suffix(".pth"))
    load_foreign(model, path.with_suffix(".pth"), WHERE)
    assert not caplog.records


def loaded(path, **options):
    return mhprobe.load(path, name="vit_tiny_patch16_224", **SIZES, **options)


def same(model, other):
    images = images_for(model, 2)
    return torch.equal(model(images), other.eval()(images))


@pytest.mark.parametrize("form", ["one mapping", "two mappings"])
@pytest.mark.parametrize("names", [("student", "teacher"), ("main_net", "semantic_net")])
def test_of_networks_that_nothing_tells_apart_the_user_names_one(names, form, tmp_path):
    path, pair = tmp_path / "w.ckpt", (tiny_vit(seed=7), tiny_vit(seed=8))
    states = [model.state_dict() for model in pair]
    if form == "one mapping":
        inside = prefixed(states[0], f"{names[0]}.") | prefixed(states[1], f"{names[1]}.")
        torch.save({"state_dict": inside}, path)
    else:
        torch.save(dict(zip(names, states, strict=True)), path)
    with pytest.raises(mhprobe.UserError, match=r"several networks.*prefix=") as error:
        loaded(path)
    assert all(name in str(error.value) for name in names)
    for name, model in zip(names, pair, strict=True):
        assert same(loaded(path, prefix=name), model)
        assert same(loaded(path, prefix=f"{name}."), model)
    with pytest.raises(mhprobe.UserError, match=r"prefix: nothing in .* is behind 'nets'"):
        loaded(path, prefix="nets")


def test_a_choice_by_averages_is_told_with_the_way_to_the_other(tmp_path, caplog):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    torch.save({"model": noise(state), "model_ema": state}, path)
    assert same(loaded(path), tiny_vit(seed=7))
    assert "model_ema is taken (averaged weights); prefix=model takes the other" in caplog.text
    caplog.clear()
    assert not same(loaded(path, prefix="model"), tiny_vit(seed=7))
    assert "taken (averaged" not in caplog.text
    torch.save({"model": state, "model_ema": state}, path)  # the same twice is no choice
    assert same(loaded(path), tiny_vit(seed=7)) and "taken (averaged" not in caplog.text


def test_of_several_averages_the_user_names_one(tmp_path):
    path, states = tmp_path / "w.pth", [tiny_vit(seed=seed).state_dict() for seed in (7, 8, 9)]
    torch.save(dict(zip(("model", "ema_0.999", "ema_0.9999"), states, strict=True)), path)
    with pytest.raises(mhprobe.UserError, match=r"several networks that fit: .*'ema_0.9999'"):
        loaded(path)
    assert same(loaded(path, prefix="ema_0.9999"), tiny_vit(seed=9))
    torch.save({"model": states[0], "ema": states[1], "model_ema": states[1]}, path)
    assert same(loaded(path), tiny_vit(seed=8))  # the same twice is one


def test_where_several_are_left_each_is_named(tmp_path, caplog):
    path, states = tmp_path / "w.pth", [tiny_vit(seed=seed).state_dict() for seed in (7, 8, 9)]
    torch.save(dict(zip(("a", "b", "ema"), states, strict=True)), path)
    assert same(loaded(path), tiny_vit(seed=9))
    assert "ema is taken (averaged weights); prefix=a or prefix=b takes another" in caplog.text


MADE_WITH = {
    "qk_norm=True": dict(qk_norm=True),
    "init_values=1e-5": dict(init_values=0.1),
    "reg_tokens=3": dict(reg_tokens=3),
    "qkv_bias=False": dict(qkv_bias=False),
    "pre_norm=True": dict(pre_norm=True),
    "depth=4": dict(depth=4),
    "qk_norm=True reg_tokens=2": dict(qk_norm=True, reg_tokens=2),
}


@pytest.mark.parametrize("words", MADE_WITH)
def test_parts_that_compute_ask_for_the_options_that_make_them_and_not_to_be_left_out(
    words, tmp_path
):
    path, model = tmp_path / "w.pth", tiny_vit(seed=7, **MADE_WITH[words])
    torch.save(model.state_dict(), path)
    with pytest.raises(mhprobe.UserError, match=rf"made with other options: give {words}\.$"):
        loaded(path)
    assert same(mhprobe.load(path, "vit_tiny_patch16_224", **{**SIZES, **MADE_WITH[words]}), model)


def test_what_stands_inside_of_a_block_is_not_called_the_rest(tmp_path):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    torch.save({**state, "blocks.0.attn.qkv.weight_scale": torch.ones(72, 1)}, path)
    with pytest.raises(mhprobe.UserError, match=r"inside of a part .* changes what is computed"):
        loaded(path)
    split = {key.replace("qkv", "query"): value for key, value in state.items()}
    torch.save(split, path)
    with pytest.raises(mhprobe.UserError, match=r"not in it: blocks\.0\.attn\.qkv") as error:
        loaded(path)
    assert "qkv_bias" not in str(error.value)  # weights are called otherwise, too


@pytest.mark.parametrize("name", ["w.pth", "w.bin", "w.ckpt"])
def test_safetensors_under_another_name_are_read(name, tmp_path):
    safetensors.torch.save_file(tiny_vit(seed=7).state_dict(), tmp_path / name)
    assert same(loaded(tmp_path / name), tiny_vit(seed=7))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_under_the_name_of_safetensors_is_called_that(zipped, tmp_path):
    path = tmp_path / "w.safetensors"
    torch.save(tiny_vit().state_dict(), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(mhprobe.UserError, match=r"of torch\.save, .*Rename it to \.pth"):
        loaded(path)


def test_a_network_of_another_size_in_the_file_is_no_rival(tmp_path):
    path = tmp_path / "w.pth"
    torch.save(
        {"student": tiny_vit(seed=7).state_dict(), "teacher": tiny_swin().state_dict()}, path
    )
    assert same(loaded(path), tiny_vit(seed=7))
    larger = tiny_vit(seed=8, embed_dim=48).state_dict()
    torch.save({"student": tiny_vit(seed=7).state_dict(), "teacher": larger}, path)
    assert same(loaded(path), tiny_vit(seed=7))


WRAPPED = {
    "_orig_mod": lambda key: key.replace("blocks.0.", "blocks.0._orig_mod."),
    "module": lambda key: key.replace(".attn.", ".attn.module."),
    "_fsdp_wrapped_module": lambda key: f"_fsdp_wrapped_module.{key}".replace(
        "blocks.1.", "blocks.1._fsdp_wrapped_module."
    ),
    "_checkpoint_wrapped_module": lambda key: key.replace(
        ".mlp.", "._checkpoint_wrapped_module.mlp."
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_parts_of_names_that_wrappers_add_are_removed_wherever_they_stand(
    wrapper, tmp_path, caplog
):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    with caplog.at_level(logging.INFO):
        torch.save({WRAPPED[wrapper](key): value for key, value in state.items()}, path)
        assert same(loaded(path), tiny_vit(seed=7))
        outer = {f"model.{WRAPPED[wrapper](key)}": value for key, value in state.items()}
        torch.save({"state_dict": outer}, path)
        assert same(loaded(path), tiny_vit(seed=7))
    assert f"its names lose {wrapper}" in caplog.text


BESIDE = {
    "a decoder": {"decoder_pred.weight": torch.zeros(8, 16), "decoder_blocks.0.x": torch.zeros(3)},
    "a projector": {"projector.weight": torch.zeros(8, 24)},
}


@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("prefix", ["", "net."])
def test_the_rest_of_a_file_is_left_out_on_demand_and_named(beside, prefix, tmp_path, caplog):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    torch.save({"model": prefixed(state | beside, prefix)}, path)
    with pytest.raises(mhprobe.UserError, match=r"whole in it; leave_out=True leaves the rest"):
        loaded(path)
    in_the_file = [f"{prefix}{key}" for key in beside]
    from_the_top = [f"model.{key}" for key in in_the_file]
    begun = [key[:4] for key in beside]
    for leave_out in (True, begun, begun[0], in_the_file, from_the_top):
        caplog.clear()
        assert same(loaded(path, leave_out=leave_out), tiny_vit(seed=7))
        for key, value in beside.items():
            assert f"{key} {tuple(value.shape)}" in caplog.text
    with pytest.raises(mhprobe.UserError, match=r"leave_out: no tensor of .* begins with 'deco_r'"):
        loaded(path, leave_out=["deco_r"])
    with pytest.raises(mhprobe.UserError, match=r"not in it: norm\.weight"):  # is not made up
        loaded(path, leave_out=["norm.", *beside])


def test_what_lies_beside_a_prefix_is_named(tmp_path, caplog):
    state = prefixed(tiny_vit(seed=7).state_dict(), "net.")
    torch.save({"state_dict": state | {"criterion.weight": torch.ones(5)}}, tmp_path / "w.ckpt")
    loaded(tmp_path / "w.ckpt")
    assert "left out: criterion.weight (5,)" in caplog.text


def test_every_tensor_that_timm_resamples_or_drops_is_named(tmp_path, caplog):
    path = tmp_path / "w.pth"
    torch.save(tiny_vit(seed=7).state_dict(), path)
    load_foreign(tiny_vit(img_size=32, patch_size=8), path, WHERE)
    assert "patch_embed.proj.weight (24, 3, 4, 4) is resampled to (24, 3, 8, 8)" in caplog.text
    sizes = dict(img_size=64, embed_dim=12, depths=(2, 2), num_heads=(2, 4), num_classes=5)
    swin = [build("swin_tiny_patch4_window7_224", window_size=size, **sizes) for size in (4, 8)]
    torch.save(swin[0].state_dict(), path)
    load_foreign(swin[1], path, WHERE)
    assert "bias_table (49, 2) is resampled to (225, 2) (2 tensors)" in caplog.text


def test_biases_that_a_network_has_not_are_named_and_nothing_is_printed(tmp_path, caplog, capsys):
    name, path = "vit_small_patch16_dinov3", tmp_path / "w.pth"
    sizes = dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=0)
    state = build(name, **sizes).state_dict()
    state = {
        key.replace("gamma_", "ls").replace("reg_token", "storage_tokens"): value
        for key, value in state.items()
    }
    state = {
        f"{key}.gamma" if key.endswith(("ls1", "ls2")) else key: value
        for key, value in state.items()
    }
    biases = {f"blocks.{i}.attn.qkv.bias": torch.ones(144) for i in range(2)}
    torch.save(state | biases, path)
    mhprobe.load(path, name=name, **sizes)
    assert "leaves out blocks.*.attn.qkv.bias (144,) x 2" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_the_grid_that_old_positions_are_read_as_is_named(tmp_path, caplog):
    path = tmp_path / "w.pth"
    torch.save(tiny_vit(seed=7, img_size=(8, 32)).state_dict(), path)  # of 2 x 8 patches
    resampled = tiny_vit(img_size=(16, 32))
    load_foreign(resampled, path, WHERE)
    assert "positions" not in resampled.readings  # it has another number of them
    assert (
        "pos_embed (1, 17, 24) is resampled to (1, 33, 24), read as a grid of 4 x 4" in caplog.text
    )
    caplog.set_level(logging.INFO, "mhprobe")
    same = tiny_vit()  # as many patches, 4 x 4: only their number is in the file
    load_foreign(same, path, WHERE)
    reading = same.readings["positions"]
    assert reading.guess and reading.taken == "read as a grid of 4 x 4"
    assert "positions: read as a grid of 4 x 4, the network's" in caplog.text
    assert "(a guess; give img_size if it is wrong)" in caplog.text
    caplog.clear()
    few = tiny_vit(img_size=8)  # 2 x 2, which no other grid has
    torch.save(few.state_dict(), path)
    load_foreign(few, path, WHERE)
    assert "positions" not in few.readings and "positions" not in caplog.text


def test_names_of_another_library_are_called_what_they_are(tmp_path):
    path = tmp_path / "w.pth"
    sizes = dict(image_size=16, patch_size=4, num_layers=2, num_heads=3)
    theirs = VisionTransformer(**sizes, hidden_dim=24, mlp_dim=96, num_classes=5)
    torch.save(theirs.state_dict(), path)
    refused(path, "names of torchvision's VisionTransformer", "mhprobe.attach")
    huggingface = {
        "vit.embeddings.patch_embeddings.projection.weight": torch.zeros(24, 3, 4, 4),
        "vit.encoder.layer.0.attention.attention.query.weight": torch.zeros(24, 24),
    }
    torch.save(huggingface, path)
    refused(path, "names of a network of transformers (Hugging Face)", "from_pretrained")
    state = tiny_vit().state_dict()
    norm = {"fc_norm.weight": state.pop("norm.weight"), "fc_norm.bias": state.pop("norm.bias")}
    torch.save(state | norm, path)
    refused(path, "+backbone.global_pool=avg")
    assert loaded(path, global_pool="avg")


def test_options_of_a_foreign_file_are_refused_where_they_do_nothing(tmp_path):
    path = tmp_path / "w.pth"
    with pytest.raises(mhprobe.UserError, match=r"prefix, leave_out: .*give name="):
        mhprobe.load(path, prefix="student", leave_out=True)
    with pytest.raises(mhprobe.UserError, match=r"prefix: expected"):
        loaded(path, prefix=3)
    for option in ("prefix=student", "leave_out=[decoder]"):
        with pytest.raises(mhprobe.UserError, match=rf"backbone\.{option.split('=')[0]}: "):
            network(tmp_path, f"backbone.{option}", command="train")


def test_a_command_takes_the_network_and_leaves_out_the_rest_that_are_named(tmp_path):
    path = tmp_path / "w.pth"
    ours, _ = network(tmp_path)
    state = noise(ours.backbone.state_dict())
    both = prefixed(state | {"decoder.weight": torch.ones(3)}, "student.")
    both |= prefixed(noise(state), "teacher.")
    torch.save({"state_dict": both}, path)
    with pytest.raises(mhprobe.UserError, match=r"backbone\.prefix=state_dict\.student"):
        network(tmp_path, f"backbone.checkpoint={path}")
    with pytest.raises(mhprobe.UserError, match=r"backbone\.leave_out=true"):
        network(tmp_path, f"backbone.checkpoint={path}", "backbone.prefix=student")
    given = (f"backbone.checkpoint={path}", "backbone.prefix=student")
    for leave_out in ("true", "[decoder]", "decoder"):
        found, _ = network(tmp_path, *given, f"backbone.leave_out={leave_out}")
        tensors = found.backbone.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in tensors.items())
        assert not {"prefix", "leave_out"} & found.description["backbone"].keys()


IMAGENET = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def test_a_guessed_mean_is_said_and_a_given_one_is_taken(tmp_path, caplog):
    path = tmp_path / "w.pth"
    torch.save(tiny_vit(seed=7).state_dict(), path)
    assert input_spec(loaded(path))["mean"] == (0.5, 0.5, 0.5)
    assert "mean (0.5, 0.5, 0.5) and std (0.5, 0.5, 0.5)" in caplog.text
    assert "guess" in caplog.text and "Give mean= and std=" in caplog.text
    caplog.clear()
    model = loaded(path, **IMAGENET)
    assert {key: input_spec(model)[key] for key in IMAGENET} == IMAGENET
    assert input_spec(loaded(path, mean=0.25, std=1))["mean"] == (0.25,) * 3
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]
    caplog.clear()
    named = mhprobe.load(path, name="vit_tiny_patch16_224.augreg_in21k_ft_in1k", **SIZES)
    assert input_spec(named)["mean"] == (0.5, 0.5, 0.5)
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]
    for wrong in (dict(mean=[0.5, 0.5]), dict(std=0), dict(mean=123.7), dict(std=[1, 1, "1"])):
        with pytest.raises(mhprobe.UserError, match=rf"{next(iter(wrong))}: expected|\.mean|\.std"):
            loaded(path, **wrong)


def test_a_mean_that_was_given_to_a_command_comes_back_with_the_weights(tmp_path):
    path = tmp_path / "w.pth"
    ours, _ = network(tmp_path)
    torch.save(ours.backbone.state_dict(), path)
    words = [f"backbone.{key}=[{','.join(map(str, value))}]" for key, value in IMAGENET.items()]
    found, data = network(tmp_path, f"backbone.checkpoint={path}", *words)
    assert tuple(data.spec.mean) == IMAGENET["mean"] and tuple(data.spec.std) == IMAGENET["std"]
    assert not {"mean", "std"} & found.description["backbone"].keys()
    networks.save_weights(found.backbone, tmp_path / "again.safetensors", found.description)
    again = mhprobe.load(tmp_path / "again.safetensors")
    assert {key: input_spec(again)[key] for key in IMAGENET} == IMAGENET
    with pytest.raises(mhprobe.UserError, match=r"backbone\.mean: expected 3 numbers"):
        network(tmp_path, f"backbone.checkpoint={path}", "backbone.mean=[124,116,104]")


def network(tmp_path, *overrides, command="probe"):
    cfg = runs.config(command, tmp_path, "measure=[]", *overrides)
    data = image_data.build_images(cfg)
    return networks.build_classifier(cfg, data), data


def test_commands_take_a_checkpoint_instead_of_weights(tmp_path):
    path = tmp_path / "w.pth"
    ours, _ = network(tmp_path)
    torch.save({"state_dict": prefixed(noise(ours.backbone.state_dict()), "module.")}, path)
    found, _ = network(tmp_path, f"backbone.checkpoint={path}")
    stored = torch.load(path)["state_dict"]
    assert all(
        torch.equal(value, stored[f"module.{key}"])
        for key, value in found.backbone.state_dict().items()
    )
    assert "checkpoint" not in found.description["backbone"]
    weights = tmp_path / "other.safetensors"
    weights.touch()
    with pytest.raises(
        mhprobe.UserError, match=r"backbone\.checkpoint: weights=.* are given as well"
    ):
        network(tmp_path, f"backbone.checkpoint={path}", f"weights={weights}")
    with pytest.raises(mhprobe.UserError, match=r"expected backbone\.pretrained=false beside it"):
        network(tmp_path, f"backbone.checkpoint={path}", "backbone.pretrained=true")


@pytest.mark.parametrize(
    "option", ["backbone.checkpoint", "+backbone.checkpoint_path"], ids=["ours", "timm's"]
)
def test_the_control_has_learned_nothing_wherever_the_weights_came_from(tmp_path, option):
    path = tmp_path / "w.pth"
    ours, _ = network(tmp_path)
    torch.save({key: value + 3 for key, value in ours.backbone.state_dict().items()}, path)
    found, _ = network(tmp_path, f"{option}={path}")
    stored = torch.load(path)
    twin = RandomTwin(found.backbone, found.gates.layout, found.description, seed=0)().state_dict()
    assert all(
        torch.equal(value, stored[key]) for key, value in found.backbone.state_dict().items()
    )
    assert twin.keys() == stored.keys() and not any(
        torch.equal(value, stored[key]) for key, value in twin.items()
    )


# the experiment's own sizes, which are the folder's to say
OURS = [
    f"~backbone.{key}"
    for key in ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio")
]


@pytest.fixture
def folder(tmp_path):
    """A model as timm writes it for the hub."""
    sizes = {**SIZES, "img_size": 8, "patch_size": 2}
    model = build("vit_tiny_patch16_224", **sizes, num_classes=10)
    save_for_hf(model, tmp_path / "mine", model_args=sizes, safe_serialization=True)
    return tmp_path / "mine", model


def test_a_folder_of_timm_s_passes_through_and_is_remembered_by_timm_s_name(folder, tmp_path):
    place, model = folder
    found, _ = network(
        tmp_path, f"backbone.name=local-dir:{place}", "backbone.pretrained=true", *OURS
    )
    assert torch.equal(found.backbone.head.weight, model.head.weight)
    assert found.description["backbone"]["name"] == "vit_tiny_patch16_224"
    assert found.description["backbone"]["embed_dim"] == 24
    assert found.description["backbone"]["img_size"] in (
        8,
        [8, 8],
    )  # as timm writes it, by its version
    networks.save_weights(found.backbone, tmp_path / "again.safetensors", found.description)
    assert torch.equal(mhprobe.load(tmp_path / "again.safetensors").head.weight, model.head.weight)


def test_what_was_typed_beside_a_folder_of_timm_s_is_described(folder, tmp_path):
    """The folder's own size once stood in the description of a network built for another: no file could be loaded."""
    place, _ = folder
    left = [word for word in OURS if "img_size" not in word]
    typed = (
        f"backbone.name=local-dir:{place}",
        "backbone.pretrained=true",
        *left,
        "backbone.img_size=16",
    )
    found, _ = network(tmp_path, *typed)
    assert (
        found.description["backbone"]["img_size"] == 16
        and found.description["backbone"]["embed_dim"] == 24
    )
    networks.save_weights(found.backbone, tmp_path / "again.safetensors", found.description)
    assert mhprobe.load(tmp_path / "again.safetensors").patch_embed.img_size == (16, 16)


def test_what_is_not_there_is_said_in_a_line(tmp_path, monkeypatch):
    with pytest.raises(
        mhprobe.UserError, match=r"backbone local-dir:/nowhere: no folder with a config\.json"
    ):
        build("local-dir:/nowhere", pretrained=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        mhprobe.UserError,
        match=r"hf-hub:mhprobe/nothing: the hub could not be reached.*mhprobe\.fetch",
    ):
        build("hf-hub:mhprobe/nothing", pretrained=True)


def test_a_hub_that_is_not_reached_is_one_line_and_not_one_for_each_attempt(monkeypatch, caplog):
    def tries_again(*_args, **_settings):
        for client in ("huggingface_hub.utils._http", "somebody"):
            logging.getLogger(client).warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no network")

    monkeypatch.setattr("timm.create_model", tries_again)
    with pytest.raises(mhprobe.UserError, match="the pretrained weights could not be fetched"):
        build("vit_tiny_patch16_224", pretrained=True)
    assert [record.name for record in caplog.records] == [
        "somebody"
    ]  # negative control: others are heard


def test_what_fetch_wrote_is_all_that_is_needed(folder, tmp_path):
    place, model = folder
    there = tmp_path / "fetched"
    words = [f"backbone.name=local-dir:{place}", "backbone.pretrained=true", *OURS]
    cfg = runs.checked("fetch", "+experiment=digits_vit", *words, f"to={there}")
    fetch.run(cfg, tmp_path)
    told = (there / "words").read_text().split()
    assert told[0] == f"cache_dir={there}" and list(there.iterdir())
    json.loads((next(there.glob("local-dir*")) / "config.json").read_text())
    place.rename(tmp_path / "gone")
    cfg = check(
        "probe", runs.composed("probe", "+experiment=digits_vit", *OURS, *told, "measure=[]")
    )
    assert cfg.weights is None
    data = image_data.build_images(cfg)
    assert torch.equal(networks.build_classifier(cfg, data).backbone.head.weight, model.head.weight)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_broken_file_is_named_with_what_to_do(suffix, tmp_path):
    path, state = tmp_path / f"w.{suffix}", tiny_vit().state_dict()
    torch.save(state, path) if suffix == "pth" else safetensors.torch.save_file(state, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(
        path,
        "is cut short" if suffix == "pth" else "is not a whole safetensors file",
        "Copy it again.",
    )
    path.write_bytes(b"")
    refused(path, "is empty (0 bytes). Copy it again.")
    path.unlink()
    path.mkdir()
    refused(path, "is a folder, expected a file. Name the file of weights in it.")


class Notes:  # a class of the user's own
    pass


def test_notes_of_a_training_beside_the_weights_cost_nothing_and_run_nothing(tmp_path):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    config = pytest.importorskip("omegaconf").OmegaConf.create({"lr": 1e-3, "heads": [1, 2]})
    notes = {"best": np.float64(0.5), "from": Path("runs"), "hyper_parameters": config}
    torch.save({"state_dict": state, **notes}, path)
    model = tiny_vit(seed=0)
    load_foreign(model, path, WHERE)
    assert torch.equal(model.head.weight, state["head.weight"])
    torch.save({"state_dict": state, "notes": Notes()}, path)
    refused(path, f"objects of {__name__}.Notes", "could run code", "the state dict alone")
    torch.save(tiny_vit(), path)
    refused(path, "a whole network was pickled", "model.state_dict() alone")


OTHER_FILES = {
    "w.pth": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS"),
    "w.safetensors": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS"),
    "page.pth": (b"<!DOCTYPE html><html>404", "a web page"),
    "w.pth.gz": (b"\x1f\x8b\x08\x00\x00", "gzip"),
    "keras.pth": (b"\x89HDF\r\n\x1a\n", "HDF5"),
    "w.onnx": (b"\x08\x07", "an ONNX file"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_a_file_that_holds_no_weights_of_pytorch_is_called_what_it_is(name, tmp_path):
    content, word = OTHER_FILES[name]
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, word)


def test_zips_of_others_are_called_what_they_are(tmp_path):
    np.savez(tmp_path / "w.npz", weight=np.zeros(3))
    refused(tmp_path / "w.npz", "numpy arrays")
    with zipfile.ZipFile(tmp_path / "w.pth", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(tmp_path / "w.pth", "a zip without weights")


def test_an_index_of_several_files_reads_all_of_them_and_none_from_elsewhere(tmp_path):
    state, index = tiny_vit(seed=7).state_dict(), tmp_path / "model.safetensors.index.json"
    names = {key: f"model-{number % 2}.safetensors" for number, key in enumerate(state)}
    for name in {*names.values()}:
        part = {key: value.contiguous() for key, value in state.items() if names[key] == name}
        safetensors.torch.save_file(part, tmp_path / name)
    index.write_text(json.dumps({"weight_map": names}))
    model = tiny_vit(seed=0)
    load_foreign(model, index, WHERE)
    assert torch.equal(model.blocks[1].mlp.fc2.weight, state["blocks.1.mlp.fc2.weight"])
    for elsewhere in ("../model-0.safetensors", index.name):
        index.write_text(json.dumps({"weight_map": {**names, "norm.bias": elsewhere}}))
        refused(index, "expected files of weights beside it")
    index.write_text(json.dumps({"weight_map": {**names, "decoder": "model-0.safetensors"}}))
    refused(index, "names decoder")
    index.write_text("[]")
    refused(index, "expected weight_map")


def test_numbers_that_are_no_weights_are_refused(tmp_path):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    torch.save({key: (100 * value).to(torch.int8) for key, value in state.items()}, path)
    refused(path, "whole numbers where the network has weights", "quantising")
    torch.save({**state, "norm.bias": state["norm.bias"] * torch.nan}, path)
    refused(path, "norm.bias", "not finite")
    torch.save({key: value.to("meta") for key, value in state.items()}, path)
    refused(path, "shapes without numbers")
    sparse = {key: of.to_sparse() if of.ndim == 2 else of for key, of in state.items()}
    torch.save(sparse, path)
    model = tiny_vit(seed=0)
    load_foreign(model, path, WHERE)
    assert torch.equal(model.head.weight, state["head.weight"])


CLASSIFIERS = {
    "fc": lambda state: prefixed(state, ""),
    "heads.head": lambda state: prefixed(state, ""),
    "classifier": lambda state: prefixed(state, "backbone."),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_of_another_name_is_read_and_told(name, tmp_path, caplog):
    path, whole = tmp_path / "w.pth", tiny_vit(seed=7).eval()
    state = whole.state_dict()
    backbone = {key: value for key, value in state.items() if not key.startswith("head.")}
    head = {f"{name}.{part}": state[f"head.{part}"] for part in ("weight", "bias")}
    torch.save({**CLASSIFIERS[name](backbone), **head}, path)
    model = mhprobe.load(path, name="vit_tiny_patch16_224", **SIZES)
    images = images_for(model, 2)
    assert torch.equal(model(images), whole(images))
    assert f"{name} (5, 24) is read as the classifier" in caplog.text
    projector = {f"{name}.0.{part}": of for part, of in (("weight", state["head.weight"]),)}
    torch.save({**CLASSIFIERS[name](backbone), **projector}, path)  # two layers are no classifier
    features = mhprobe.load(path, name="vit_tiny_patch16_224", leave_out=True, **SIZES)
    assert features(images).shape == (2, 24)


def test_a_classifier_without_a_bias_and_the_counter_of_an_average_are_told(tmp_path, caplog):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    del state["head.bias"]
    torch.save({"n_averaged": torch.tensor(3), **state}, path)
    model = mhprobe.load(path, name="vit_tiny_patch16_224", **SIZES)
    assert torch.equal(model.head.weight, state["head.weight"]) and not model.head.bias.any()
    assert "no bias" in caplog.text and "left out: n_averaged ()" in caplog.text


def test_adapters_beside_the_weights_are_refused_with_how_to_merge_them(tmp_path):
    path, state = tmp_path / "w.pth", tiny_vit(seed=7).state_dict()
    torch.save({**state, "blocks.0.attn.qkv.lora_A.weight": torch.ones(4, 24)}, path)
    refused(path, "adapters (LoRA)", "merge_and_unload")


@pytest.mark.parametrize("suffix", [".md", ".txt", ".safetensors", ".pth"])
def test_a_text_is_called_one_and_not_weights_that_lack_their_description(tmp_path, suffix):
    path = tmp_path / f"notes{suffix}"
    path.write_text("# What I did on Monday\n\nI trained a network.\n")
    with pytest.raises(mhprobe.UserError, match=f"notes{suffix} is a text, and no weights"):
        mhprobe.load(path)
    with pytest.raises(mhprobe.UserError, match=f"notes{suffix} is a text, and no weights"):
        mhprobe.load(path, name="vit_tiny_patch16_224", **SIZES)
