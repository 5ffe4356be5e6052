"""A weights file of a stranger: nothing that it names is opened, and nonsense in it is answered in a line."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from test_weights import BACKBONE, DESCRIPTION, Harmful, checkpoint_of, edit

import mhprobe
from mhprobe.backbones import build, input_spec
from mhprobe.weights.checkpoint import as_json, load_weights, save_weights
from mhprobe.weights.description import checked, portable

WEIGHTS = Path(__file__).parents[3] / "weights"


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build(**BACKBONE, num_classes=4).eval()


@pytest.fixture
def file(model, tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    save_weights(model, path, DESCRIPTION)
    return path


def answer(path: Path) -> str:
    with pytest.raises(mhprobe.UserError) as error:
        load_weights(path)
    assert "\n" not in str(error.value) and path.stem in str(error.value)
    return str(error.value)


# What would make timm, torch or a layer open something, each with the file or the address put in
# for %s.
OPENERS: list[dict[str, Any]] = [
    {"checkpoint_path": "%s"},
    {"pretrained_cfg": {"file": "%s"}},
    {"pretrained_cfg_overlay": {"file": "%s", "custom_load": True}},
    {"pretrained_cfg": "%s"},
    {"pretrained_cfg_overlay": {"url": "%s"}},
    {"cache_dir": "%s"},
    {"model_cfg": {"file": "%s"}},
    {"pretrained_model_args": {"checkpoint_path": "%s"}},
    {"features_only": True, "feature_cls": "%s"},
    {"pretrained_filter_fn": "%s"},
    {"norm_layer": "%s"},
    {"act_layer": "%s"},
    {"weight_init": "%s"},
    {"attn_layer": "%s"},
    {"block_fn": "%s"},
    {"device": "%s"},
    {"img_size": "%s"},
    {"pruned": True},
    {"name": "local-dir:%s"},
    {"name": "hf-hub:%s"},
    {"name": "%s"},
]


def filled(opener: Any, with_: str) -> Any:
    if isinstance(opener, dict):
        return {key: filled(value, with_) for key, value in opener.items()}
    return opener.replace("%s", with_) if isinstance(opener, str) else opener


@pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: "+".join(opener))
@pytest.mark.parametrize("kind", ["json", "ckpt"])
@pytest.mark.parametrize("target", ["file", "address"])
def test_what_a_file_names_is_never_opened(
    model, file, tmp_path, monkeypatch, opener, kind, target
):
    evil, mark = tmp_path / "evil.pth", tmp_path / "mark"
    evil.write_bytes(pickle.dumps(Harmful(mark)))
    settings = {
        **BACKBONE,
        **filled(opener, str(evil) if target == "file" else "http://localhost:9/evil.pth"),
    }
    path = file
    if kind == "json":
        edit(file, backbone=settings)
    else:
        path = tmp_path / "run.ckpt"
        torch.save({**checkpoint_of(model), "mhprobe": {**DESCRIPTION, "backbone": settings}}, path)

    whole_open, whole_load = builtins.open, torch.load

    def opens(name, *args, **kwargs):
        assert str(name) != str(evil), "the named file was opened"
        return whole_open(name, *args, **kwargs)

    def loads(name, *args, **kwargs):
        assert str(name) == str(path), "the named file was loaded"
        return whole_load(name, *args, **kwargs)

    def connects(*_args, **_kwargs):
        raise AssertionError("an address was asked for")

    monkeypatch.setattr(builtins, "open", opens)
    monkeypatch.setattr(torch, "load", loads)
    monkeypatch.setattr(socket, "create_connection", connects)
    monkeypatch.setattr(socket, "getaddrinfo", connects)
    assert "backbone." in answer(path)
    assert not mark.exists()


def test_the_canary_would_sing(tmp_path):
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Harmful(mark)))
    assert mark.exists()


def test_what_experiments_set_passes():
    """Sizes, switches and timm's own names, of every architecture that has an experiment."""
    for key, value in {
        **{
            "img_size": [16, 16],
            "norm_layer": "layernormfp32",
            "act_layer": "gelu_tanh",
            "global_pool": "avg",
        },
        **{
            "class_token": False,
            "init_values": 1e-5,
            "reg_tokens": 4,
            "drop_path_rate": 0.1,
            "pos_embed": "learn",
        },
    }.items():
        checked({**DESCRIPTION, "backbone": {**BACKBONE, key: value}}, Path("x.json"))
    swin = {
        "name": "swin_tiny_patch4_window7_224",
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    }
    checked({**DESCRIPTION, "backbone": swin}, Path("x.json"))


def test_where_weights_came_from_is_not_written_down():
    settings = {
        "_target_": "x",
        **BACKBONE,
        "pretrained": True,
        "pretrained_cfg_overlay": {"file": "/a"},
    }
    assert portable({**settings, "checkpoint_path": "/b"}) == {**BACKBONE, "pretrained": True}


NESTED = "[" * 100_000 + "]" * 100_000
TOP = [
    "[1]",
    '"x"',
    "null",
    "5",
    "{}",
    NESTED,
    '{"backbone": ' + NESTED + "}",
    "NaN",
    "\x00",
    "9" * 5000,
]
PARTS: list[dict[str, Any]] = [
    *({"backbone": value} for value in ("vit", ["vit"], {}, None, 5, {"img_size": 16})),
    *(
        {"backbone": {**BACKBONE, "name": value}}
        for value in (None, ["vit"], 5, "", "no_such_model")
    ),
    *(
        {"backbone": {**BACKBONE, "num_classes": 4}},
        {"backbone": {**BACKBONE, "fused_attn": "yes"}},
    ),
    *(
        {"backbone": {**BACKBONE, "img_size": value}}
        for value in ([1], [], [16, "x"], -1, 0, 1e308, {"a": 1}, [[16]])
    ),
    *(
        {"backbone": {**BACKBONE, "num_heads": value}}
        for value in (0, -3, 1.5, 5, True, [3], 2**70)
    ),
    *(
        {"backbone": {**BACKBONE, key: "nosuch"}}
        for key in ("norm_layer", "act_layer", "global_pool")
    ),
    *({"backbone": {**BACKBONE, "depth": value}} for value in ("2", {}, None, -1, 1.5)),
    *({"class_names": value} for value in (5, None, [1, 2, 3, 4], "abcd", {"a": 1})),
    *({"gates": value} for value in ("x", 5, [[1]], [None] * 6, [float("nan")] * 6, {"a": 1})),
    *({"gates_kept": value} for value in ("no", 3, [2] * 6, ["1"] * 6)),
    *({"kept": value} for value in ("no", [0], {"blocks.0.attn": [0]}, {"blocks.0.attn": "all"})),
    *(
        {"input": value}
        for value in (5, {"size": 5}, {"size": [16, 16], "mean": [0.5], "std": [0.5]})
    ),
    *({"data": value} for value in (None, 5)),
    *({"sha256": value} for value in (None, 5, "0")),
    {"timm": {"checkpoint_path": "/evil.pth"}},
]


@pytest.mark.parametrize("text", TOP, ids=lambda text: text[:12])
def test_a_json_of_another_shape_is_answered_in_a_line(file, text):
    file.with_suffix(".json").write_text(text)
    answer(file)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: json.dumps(part)[-40:])
def test_a_part_of_the_wrong_kind_is_answered_in_a_line(model, file, tmp_path, part):
    edit(file, **part)
    answer(file)
    if "sha256" not in part:
        path = tmp_path / "run.ckpt"
        torch.save({**checkpoint_of(model), "mhprobe": {**DESCRIPTION, **part}}, path)
        answer(path)


@pytest.mark.parametrize(
    "content",
    [
        *([1], "x", None, {}, {"mhprobe": DESCRIPTION}, {"mhprobe": 5, "state_dict": {}}),
        *(
            {"mhprobe": DESCRIPTION, "state_dict": state}
            for state in ([1], {}, {"gates.values": 1}, {"a": None})
        ),
        {"mhprobe": DESCRIPTION, "state_dict": {"gates.values": torch.ones(6)}},
        {
            "mhprobe": DESCRIPTION,
            "state_dict": {"gates.values": torch.ones(2, 3), "backbone.x": torch.ones(1)},
        },
    ],
    ids=str,
)
def test_a_checkpoint_of_another_shape_is_answered_in_a_line(tmp_path, content):
    path = tmp_path / "run.ckpt"
    torch.save(content, path)
    answer(path)


def test_what_learned_gates_keep_beside_their_tensors_is_no_fault(model, tmp_path):
    content = checkpoint_of(model)
    content["state_dict"]["gates._extra_state"] = {"stretch": 0.1}
    torch.save(content, tmp_path / "run.ckpt")
    load_weights(tmp_path / "run.ckpt")


def test_a_number_that_was_edited_is_seen(file):
    path = file.with_suffix(".json")
    path.write_text(
        path.read_text().replace('"num_heads": 3', '"num_heads": 2')
    )  # the tensors still fit
    assert "digest" in answer(file)


def test_a_json_without_its_digest_is_refused(file):
    path = file.with_suffix(".json")
    path.write_text(
        json.dumps(
            {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
        )
    )
    assert "digest" in answer(file)


def test_the_shipped_weights_carry_their_digest():
    shipped = sorted(WEIGHTS.glob("*.safetensors"))
    for path in shipped:
        load_weights(path)
    assert shipped


def test_the_colours_a_model_was_trained_on_come_back_with_it(model, file):
    """Settings that said so in another way (an overlay of timm's) are not kept."""
    edit(file, input={"size": [16, 16], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]})
    spec = input_spec(load_weights(file)[0])
    assert spec["mean"] == (0.1, 0.2, 0.3) and spec["std"] == (0.4, 0.5, 0.6)


def test_the_installed_timm_refuses_pickles_too(tmp_path):
    """The second lock: should a name of a file ever reach timm."""
    mark, path = tmp_path / "mark", tmp_path / "evil.pth"
    torch.save({"state_dict": Harmful(mark)}, path)
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        timm.create_model("vit_tiny_patch16_224", checkpoint_path=str(path))
    assert not mark.exists()


def test_a_json_reads_the_same_however_it_is_spaced(file):
    path = file.with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    load_weights(file)
    assert as_json(load_weights(file)[1]) == as_json(json.loads(path.read_text()))


# each a size that a real network could have alone; their product is gigabytes, or minutes of making blocks
TOO_MUCH: list[dict[str, Any]] = [
    {"embed_dim": 30000},
    {"img_size": 16384},
    {"conv_stem": [4096] * 8},
    {"depth": 5000},
    {"depth": 65536},
    {"mlp_ratio": 60000},
    {"reg_tokens": 65536},
]


@pytest.mark.parametrize("sizes", TOO_MUCH, ids=str)
@pytest.mark.parametrize("kind", ["json", "ckpt"])
def test_sizes_whose_product_fills_the_memory_are_refused_before_it_is_taken(
    model, file, tmp_path, monkeypatch, sizes, kind
):
    settings, path, made = {**BACKBONE, **sizes}, file, []
    if kind == "json":
        edit(file, backbone=settings)
    else:
        path = tmp_path / "run.ckpt"
        torch.save({**checkpoint_of(model), "mhprobe": {**DESCRIPTION, "backbone": settings}}, path)
    whole = timm.create_model

    def creates(*args: Any, **kwargs: Any) -> Any:
        made.append(torch.empty(0).device.type)
        return whole(*args, **kwargs)

    monkeypatch.setattr(timm, "create_model", creates)
    begun = time.monotonic()
    assert "sizes ask for more than" in (said := answer(path)) or "does not fit" in said
    assert time.monotonic() - begun < 60
    assert made == ["meta"], "a network with numbers was made"


def test_the_network_that_a_file_holds_is_made_twice_once_without_numbers(file, monkeypatch):
    made, whole = [], timm.create_model

    def creates(*args: Any, **kwargs: Any) -> Any:
        made.append(torch.empty(0).device.type)
        return whole(*args, **kwargs)

    monkeypatch.setattr(timm, "create_model", creates)
    model, _ = load_weights(file)
    assert made == ["meta", "cpu"]
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cpu"}


def test_a_tensor_that_repeats_one_number_does_not_pass_for_a_large_file(model, tmp_path):
    settings, content = {**BACKBONE, "embed_dim": 30000}, checkpoint_of(model)
    repeated = torch.zeros(1).expand(90000, 30000)
    content["state_dict"]["backbone.blocks.0.attn.qkv.weight"] = repeated
    path = tmp_path / "run.ckpt"
    torch.save({**content, "mhprobe": {**DESCRIPTION, "backbone": settings}}, path)
    assert path.stat().st_size < 1_000_000
    assert "sizes ask for more than" in answer(path)


def test_an_image_of_too_many_pixels_is_refused(file):
    numbers = {"mean": [0.5] * 3, "std": [0.5] * 3}
    edit(file, input={"size": [65536, 65536], **numbers})
    assert "input.size" in answer(file)
    edit(file, input={"size": [16, 16], **numbers})
    load_weights(file)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, 300_000_000)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [pipe, endless, large, folder])
def test_a_json_that_is_no_ordinary_file_is_refused_at_once(file, make):
    path = file.with_suffix(".json")
    path.unlink()
    make(path)
    begun = time.monotonic()
    assert "model.json" in (said := answer(file))
    assert "ordinary" in said or "300,000,000 bytes" in said
    with pytest.raises(mhprobe.UserError, match=r"model\.json"):
        mhprobe.load(file.parent)
    assert time.monotonic() - begun < 60


def test_a_json_behind_a_link_is_read(file, tmp_path):
    """The Hub's cache holds links."""
    path = file.with_suffix(".json")
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    load_weights(file)
