"""One command from weights to a smaller network: what it writes, what it says, and what it refuses in one line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mhprobe
import runs
from mhprobe import shrink as command
from mhprobe.backbones import build
from mhprobe.data.source import Contents
from mhprobe.errors import UserError
from mhprobe.pages.shrinking import images, recipe, sentences
from mhprobe.surgery.costs import count_flops
from mhprobe.surgery.speed import speed_table
from mhprobe.weights.checkpoint import save_weights

BACKBONE = {
    **{"name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 4, "embed_dim": 24},
    **{"depth": 2, "num_heads": 3, "mlp_ratio": 4, "fused_attn": False, "pretrained": False},
}
FEW = ["--images", "60", "--test-images", "70"]


def saved(folder: Path, name: str = "small", **changes) -> Path:
    torch.manual_seed(0)
    about = {
        "backbone": BACKBONE,
        "class_names": [str(digit) for digit in range(10)],
        "data": "digits",
        "input": {"size": [8, 8], "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    about |= changes
    model = build(**about["backbone"], num_classes=len(about["class_names"])).eval()
    save_weights(model, folder / f"{name}.safetensors", about)
    return folder / f"{name}.safetensors"


def quick(monkeypatch: pytest.MonkeyPatch, rounds: int = 6) -> None:
    def table(*args, **options):
        return speed_table(*args, **options, rounds=rounds, seconds=0.0)

    monkeypatch.setattr(recipe, "speed_table", table)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, weights, what was printed) of one run at half of the FLOPs."""
    place = tmp_path_factory.mktemp("shrink")
    weights, out = saved(place), place / "out"
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        patch.setattr("builtins.print", lambda *words, sep=" ", **_: said.append(sep.join(words)))
        words = [str(weights), "--flops", "0.5", *FEW, "--cache", str(place / "cache")]
        assert command.main([*words, "--out", str(out)]) == 0
    return out, weights, "\n".join(said)


def test_the_file_is_a_smaller_timm_network_within_the_target(made):
    out, weights, _ = made
    whole, small = mhprobe.load(weights), mhprobe.load_pruned(out / "pruned.safetensors")
    image = torch.zeros(1, 3, 8, 8)
    assert 0.2 < count_flops(small, image) / count_flops(whole, image) <= 0.5
    assert mhprobe.load(out).kept_heads == small.kept_heads  # by the folder, too


def test_terminal_page_and_numbers_say_the_same(made):
    out, _, said = made
    numbers = json.loads((out / "metrics.json").read_text())
    page = (out / "shrink.html").read_text().replace("\xa0", " ")
    first = next(line for line in said.splitlines() if line.startswith("small at half the FLOPs"))
    lower, low, high = (-100 * numbers[f"shrunk/difference{end}"] for end in ("", "_high", "_low"))
    way = f"{abs(lower):.1f} points lower ({low:.1f} to {high:.1f})"
    if round(lower, 1) < 0:
        way = f"{-lower:.1f} points higher ({-high:.1f} to {-low:.1f})"
    fast = f"{numbers['batch_1/speedup']:.2g} times as fast at batch 1"
    slowest = numbers["batch_1/speedup_low"]
    if slowest <= 1:
        ends = f"{slowest:.2g} to {numbers['batch_1/speedup_high']:.2g} times"
        fast = f"not shown to be faster at batch 1 ({ends})"
    assert first == f"small at half the FLOPs: {way} on 70 test images; {fast}."
    assert first in page and numbers["shrunk/images"] == 70
    assert f"{100 * numbers['random/accuracy']:.2f}" in page
    assert all(f"{numbers[f'{row}/flops']:,}" in page for row in ("dense", "shrunk", "random"))
    assert "at batch 16" in page and "ONNX" in page
    guesses = numbers["dense/low"] <= 0.1
    assert ("not told apart from guessing" in page) == guesses == ("guessing" in said)


def test_what_random_heads_cost_is_of_the_same_target_and_images(made):
    numbers = json.loads((made[0] / "metrics.json").read_text())
    assert numbers["random/images"] == numbers["shrunk/images"]
    assert numbers["random/flops"] <= 0.5 * numbers["dense/flops"]
    assert numbers["random/parameters"] != numbers["shrunk/parameters"]


def test_the_tuning_command_composes(made):
    line = next(line for line in made[2].splitlines() if line.startswith("python -m mhprobe.train"))
    assert line in (made[0] / "shrink.html").read_text().replace("&#39;", "'")
    cfg = runs.checked("train", *shlex.split(line)[3:])
    assert cfg.optim.teacher == str(made[1]) and cfg.weights == str(made[0] / "pruned.safetensors")


def test_a_second_run_does_not_mix_with_the_first(made, capsys):
    before = {path: path.read_bytes() for path in made[0].iterdir()}
    assert command.main([str(made[1]), "--flops", "0.5", *FEW, "--out", str(made[0])]) == 2
    assert "holds files" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in made[0].iterdir()} == before


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("photographs")
    for number in range(110):
        pixels = np.random.default_rng(number).integers(0, 255, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:03}.png")
    return place


def test_photographs_without_labels_say_how_often_the_class_is_another(
    photographs, tmp_path, monkeypatch, capsys
):
    quick(monkeypatch)
    monkeypatch.setattr(recipe.export, "needs_onnx", lambda: _refuse())
    words = [str(saved(tmp_path)), "--params", "0.6", "--labels", "none", *FEW]
    out = tmp_path / "out"
    words += ["--data", str(photographs), "--out", str(out), "--cache", str(tmp_path / "cache")]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    numbers = json.loads((out / "metrics.json").read_text())
    other = f"{100 * (1 - numbers['shrunk/accuracy']):.1f} % ("
    assert f"another class than the whole network's for {other}" in said
    assert "of 55 photographs" in said and "python -m mhprobe.train" not in said
    assert "Tuning brings" in (out / "shrink.html").read_text()
    assert not (out / "pruned.onnx").exists() and "pip install" in said


def _refuse() -> None:
    raise mhprobe.UserError("onnx: needs the package onnx: pip install 'mhprobe[export]'.")


@pytest.mark.parametrize("page", ["pruning.md", "tutorials/engineer.md"])  # the blocks "shrink"
def test_the_command_of_the_docs_can_be_typed(page):
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    block = re.search(r"<!-- shrink -->\n```bash\nmhprobe shrink (.*?)\n```", text, re.S)[1]
    options = command.parser().parse_args(block.split())
    assert command.target_of(options) == ("flops", 0.5) and options.data


@pytest.mark.parametrize("low", [0.9, 1.0, 1.1])
def test_a_speed_whose_interval_reaches_1_is_not_called_faster(low):
    row = {"batch": 1, "speedup": 1.3, "speedup_low": low, "speedup_high": 1.6}
    says = sentences.faster(row)
    assert says == (
        "1.3 times as fast at batch 1"
        if low > 1
        else f"not shown to be faster at batch 1 ({low:.2g} to 1.6 times)"
    )


BAD = {
    "no target": ([], "expected one target of --flops, --params, --latency, got none"),
    "two targets": (["--flops", ".5", "--params", ".5"], "got --flops .5 and --params .5"),
    "a share of 1": (["--flops", "1"], "above 0 and below 1, got 1"),
    "a share of 0": (["--params", "0"], "above 0 and below 1, got 0"),
    "a share above 1": (["--latency", "50"], "above 0 and below 1, got 50"),
    "no number": (["--flops", "half"], "above 0 and below 1, got half"),
    "nan": (["--flops", "nan"], "above 0 and below 1, got nan"),
    "out of reach": (["--flops", "0.01"], "can't be met"),
    "few images": (["--flops", ".5", "--images", "10"], "--images: expected at least 50"),
    "few test images": (
        ["--flops", ".5", "--test-images", "9"],
        "--test-images: expected at least",
    ),
    "labels": (["--flops", ".5", "--labels", "some"], "--labels: expected folders or none"),
    "no photographs": (["--flops", ".5", "--labels", "none"], "folder or archive of photographs"),
    "a typing error": (["--flops", ".5", "--data", "digit"], "did you mean digits?"),
    "an order of classes that digits have not": (
        ["--flops", ".5", "--data", "digits", "--classes", "number"],
        "--classes: is of class folders, not of digits",
    ),
    "levels that digits have not": (
        ["--flops", ".5", "--levels", "4095"],
        "--levels: is of class folders, not of digits",
    ),
    "an option that is none": (["--flop", ".5", "--fast"], "--fast"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(case, tmp_path, capsys):
    words, says = BAD[case]
    out = tmp_path / "out"
    assert command.main([str(saved(tmp_path)), *words, "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mhprobe shrink: ") and says in line
    assert not out.exists()


def test_missing_weights_and_missing_data_are_named_together(tmp_path, capsys):
    words = [str(tmp_path / "no.safetensors"), "--flops", ".5", "--data", str(tmp_path / "none")]
    assert command.main([*words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"no\.safetensors does not exist.*; and --data: .*none does not exist", line)


def test_too_few_photographs_are_counted(tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (9, 9)).save(folder / "a.png")
    words = [str(saved(tmp_path)), "--flops", ".5", "--labels", "none", "--data", str(folder)]
    assert command.main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "has 1 photograph, expected at least 100" in capsys.readouterr().err
    (folder / "a.png").unlink()
    assert command.main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "has no photographs" in capsys.readouterr().err


def test_a_data_set_that_cannot_be_read_is_named_as_the_option(tmp_path, capsys):
    (tmp_path / "data" / "train" / "a").mkdir(parents=True)
    words = [str(saved(tmp_path)), "--flops", ".5", "--data", str(tmp_path / "data")]
    assert command.main([*words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mhprobe shrink: --data: ") and "train/<class>" in line


def test_an_elastic_file_and_a_network_of_features_are_refused(tmp_path, capsys):
    elastic = {"made": {"elastic": {"units": ["head"]}}}
    weights = saved(tmp_path, "elastic", **elastic)
    assert command.main([str(weights), "--flops", ".5", "--out", str(tmp_path / "out")]) == 2
    assert "is an elastic file: mhprobe.load(" in capsys.readouterr().err
    weights = saved(tmp_path, "features", class_names=[])
    assert command.main([str(weights), "--flops", ".5", "--out", str(tmp_path / "out")]) == 2
    assert "gives features and no classes" in capsys.readouterr().err


def test_a_network_that_cannot_lose_heads_is_refused(tmp_path, capsys):
    name = {"name": "xcit_nano_12_p16_224", "img_size": 32, "pretrained": False}
    weights = saved(tmp_path, backbone=name)
    assert command.main([str(weights), "--flops", ".5", "--out", str(tmp_path / "out")]) == 2
    assert "cannot lose heads: " in capsys.readouterr().err


def test_classes_of_other_data_are_refused(tmp_path, capsys):
    weights = saved(tmp_path, class_names=list("abcde"))
    assert command.main([str(weights), "--flops", ".5", "--out", str(tmp_path / "out")]) == 2
    assert "5 classes, the data has 10" in capsys.readouterr().err


def test_class_folders_are_read_as_they_were_in_training_and_so_is_the_tuning(tmp_path):
    """Folders 1, 2 and 10 stand in another order as texts than as numbers."""
    for split in ("train", "test"):
        for name in ("1", "2", "10"):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for number in range(20):
                shade = (7 * number + int(name)) % 256
                Image.new("RGB", (8, 8), (shade, number, int(name))).save(folder / f"{number}.png")
    about = {"class_names": ["1", "2", "10"], "data": "mine"}
    about |= {"input": {"size": [8, 8], "mean": [0.5] * 3, "std": [0.5] * 3}}

    def read(**options):
        asked = images.AskedImages(str(tmp_path / "data"), choose=60, judge=60, **options)
        return images.read_images(asked, about, tmp_path / "cache")

    data = read(classes="number", levels=[0, 255])
    assert data.class_names == ("1", "2", "10")
    words = images.settings_for_train(data).split()
    assert "data.source.classes=number" in words and "'data.source.levels=[0,255]'" in words
    with pytest.raises(UserError, match="they differ first in class 1"):
        read(classes="text")  # the control
    with pytest.raises(UserError, match=r"^--levels: expected the value of a white pixel"):
        read(levels=[3.0, 2.0, 1.0])


def test_a_quarter_is_chosen_by_brain_surgery_and_a_half_by_fisher_information():
    layout = mhprobe.attach(build(**BACKBONE, num_classes=2), units={"head", "neuron"}).layout
    assert recipe.order_for(0.5, layout)[0] == "fisher"
    assert recipe.order_for(0.25, layout)[0] == "obs"
    assert recipe.order_for(0.5, layout)[1].multiple == 8


def test_the_images_that_choose_and_judge_are_decoded_and_no_other(tmp_path, monkeypatch):
    """A validation image was, for which an archive was read once more."""
    walked, walk = [], Contents.walk

    def counting(contents, wanted=None):
        for split, position, *parts in walk(contents, wanted):
            walked.append((split, position))
            yield split, position, *parts

    monkeypatch.setattr(Contents, "walk", counting)
    about = {"class_names": [str(digit) for digit in range(10)], "data": "digits"}
    about |= {"input": {"size": [8, 8], "mean": [0.5] * 3, "std": [0.5] * 3}}
    asked = images.AskedImages("digits", choose=60, judge=70)
    data = images.read_images(asked, about, tmp_path / "cache")
    assert (data.sizes["train"], data.sizes["test"]) == (60, 70)
    assert len(walked) == len(set(walked)) == 60 + 70
    assert len(list(data.batches("train"))) == 1 and len(walked) == 130
