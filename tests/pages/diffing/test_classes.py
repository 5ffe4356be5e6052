"""Folders as the classes of a comparison: in the order of the network's logits, or said, or refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from PIL import Image

import mhprobe
from mhprobe import differing
from mhprobe.differences.result import tolerances
from mhprobe.pages.diffing.opened import Labelled, pictures
from models import tiny_vit


def photographs(folder, *names, each=2):
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def read(folder, **options):
    found = pictures(folder, None, 16, 64, Labelled(**options))
    return [int(label) for label in found.labels[::2]], " ".join(found.notes)


def test_folders_are_the_classes_of_the_network_by_their_names(tmp_path):
    """Some of the classes were once numbered from 0, and accuracy was that of other logits."""
    folder = photographs(tmp_path, "cat", "ape", "dog")
    labels, said = read(folder, known=("ape", "bee", "cat", "dog", "elk"))
    assert labels == [0, 2, 3]
    assert "by the names of the network's classes" in said and "guess" not in said
    assert "3 folders of 5 classes (ape, bee, cat" in said


def test_folders_named_by_numbers_are_ordered_as_asked_and_a_guess_is_said(tmp_path):
    folder = photographs(tmp_path, "1", "2", "10")
    labels, said = read(folder)  # in the order of their files: 1, 10, 2
    assert labels == [0, 1, 2]
    assert "2 stands in the place of 10 (a guess; give --classes number if it is wrong)" in said
    numbered, said = read(folder, classes="number")
    assert numbered == [0, 2, 1] and "as given" in said and "guess" not in said
    (tmp_path.parent / "names.txt").write_text("10\n2\nmore\n1\n")
    assert read(folder, classes=str(tmp_path.parent / "names.txt"))[0] == [3, 0, 1]


def test_orders_that_agree_are_no_guess(tmp_path):
    """Negative control."""
    assert "guess" not in read(photographs(tmp_path, "1", "2", "3"))[1]


def test_a_folder_of_no_class_is_refused(tmp_path):
    folder = photographs(tmp_path, "ape", "bee")
    with pytest.raises(mhprobe.UserError, match=r"a folder \S*bee\S*, which is none of the 2 cl"):
        read(folder, known=("ape", "cat"))


@pytest.fixture
def networks(tmp_path):
    torch.manual_seed(0)
    paths = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for path in paths:
        mhprobe.save(tiny_vit().eval(), path)
    return [str(path) for path in paths]


def said(capsys, *words):
    code = differing.main([*words])
    return code, capsys.readouterr().err


def test_folders_of_another_number_of_classes_are_refused_on_the_command_line(
    networks, tmp_path, capsys
):
    folder = photographs(tmp_path / "photos", "x", "y", "z", each=3)
    code, error = said(capsys, *networks, str(folder), "--labelled", "--out", str(tmp_path / "d"))
    assert code == 2 and "classes" in error and "--classes FILE" in error
    assert error.count("\n") == 1
    code, error = said(capsys, *networks, str(folder), "--classes", "number")
    assert code == 2 and "--labelled, which is not given" in error


def pair():
    first, second = tiny_vit().eval(), tiny_vit().eval()
    with torch.no_grad():
        second.blocks[0].attn.qkv.weight *= 1.3
    return first, second


def test_mean_levels_and_output_are_taken_in_python_too(tmp_path):
    first, second = pair()
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    plain, given = (
        mhprobe.diff(first, second, pixels, show_progress=False, **options)
        for options in ({}, {"mean": 0.1, "std": 0.9})
    )
    assert plain.metrics != given.metrics  # other pixels reach the networks
    with pytest.raises(mhprobe.UserError, match="mean: is of pixels, and these images are norm"):
        mhprobe.diff(first, second, pixels.float(), mean=0.1)
    with pytest.raises(mhprobe.UserError, match="levels: is of files"):
        mhprobe.diff(first, second, pixels, levels=4095)


class Two(torch.nn.Module):
    """A network that gives back its logits behind others of the same form."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images):
        logits = self.net(images)
        return logits.flip(1), logits


def test_the_output_that_is_the_logits_can_be_named():
    first, second = pair()
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(4) % 3
    shown = {"show_progress": False, "labels": labels}
    alone = mhprobe.diff(first, second, pixels, **shown)
    named = mhprobe.diff(Two(first), Two(second), pixels, output=1, **shown)
    other = mhprobe.diff(Two(first), Two(second), pixels, output=0, **shown)
    assert named.metrics == alone.metrics
    assert other.metrics != alone.metrics


NAMES = ["ape", "bee", "cat", "dog", "elk"]


@pytest.fixture
def renamed(tmp_path):
    """A function that saves a network and a copy whose logits are in another order, or of other names."""
    torch.manual_seed(0)
    model = tiny_vit(num_classes=len(NAMES)).eval()

    def made(names, places):
        before, after = (tmp_path / f"{name}.safetensors" for name in ("before", "after"))
        mhprobe.save(model, before, class_names=NAMES)
        other = copy.deepcopy(model)
        with torch.no_grad():
            for value in other.head.parameters():
                value.copy_(value[places])
        mhprobe.save(other, after, class_names=names)
        pixels = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
        return mhprobe.diff(before, after, pixels, show_progress=False)

    return made


def test_classes_in_another_order_are_put_in_the_first_networks(renamed):
    """The same network with other places of its logits once gave other classes to nearly all images."""
    places = [4, 2, 0, 1, 3]
    found = renamed([NAMES[place] for place in places], places)
    assert found.metrics["diff/error_of_logits"] == 0 and found.metrics["diff/agreement"] == 1
    assert any("its logits are put in the order of before" in note for note in found.notes)
    control = renamed(NAMES, places)  # negative control: nothing says that it is another order
    assert control.metrics["diff/agreement"] < 1
    assert not any("order" in note for note in control.notes)


def test_classes_of_other_names_are_said(renamed):
    found = renamed(["ape", "bee", "cow", "dog", "elk"], [0, 1, 2, 3, 4])
    said = "Logit 2 is of class 'cat' in before and of 'cow' in after"
    assert any(said in note for note in found.notes)
    unnamed = renamed(["0", "1", "2", "3", "4"], [0, 1, 2, 3, 4])
    assert not any("class" in note for note in unnamed.notes)


def test_another_seed_of_other_classes_is_refused_as_the_null():
    before, after, other = tiny_vit(), tiny_vit(), tiny_vit(num_classes=4)
    images = torch.randn(4, 3, 16, 16)
    with pytest.raises(mhprobe.UserError, match=r"diff: null: .* gives 5 numbers .* and .* 4"):
        mhprobe.diff(before, after, images, null=other, show_progress=False)


@pytest.mark.parametrize("given", [[".01", "2"], ["head=.1", "block=.2", "head=.2"]])
def test_a_tolerance_that_is_given_twice_is_refused(given):
    with pytest.raises(mhprobe.UserError, match=r"tolerance: .* is given twice"):
        tolerances(given)
    assert tolerances([".01", "block=.2"]) == {"all": 0.01, "block": 0.2}


def test_probabilities_beside_logits_are_said():
    model = tiny_vit()
    images = torch.randn(4, 3, 16, 16)
    softmax = torch.nn.Sequential(copy.deepcopy(model), torch.nn.Softmax(1))
    found = mhprobe.diff(model, softmax, images, null="rounding", show_progress=False)
    assert any("gives probabilities, and" in note for note in found.notes)
    alike = mhprobe.diff(model, model, images, show_progress=False)
    assert not any("probabilities" in note for note in alike.notes)


def test_classes_that_look_alike_are_the_same(tmp_path):
    """macOS writes an accent as a character of its own."""
    folder = photographs(tmp_path, "cafe\u0301", "ape")
    labels, _ = read(folder, known=("caf\u00e9", "ape"))
    assert labels == [1, 0]
    with pytest.raises(mhprobe.UserError, match="none of the"):  # negative control
        read(folder, known=("cafe", "ape"))


def test_an_empty_name_is_called_empty(tmp_path, capsys):
    assert differing.main(["", "vit_tiny_patch16_224", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("mhprobe diff: an empty name: got ''")
    with pytest.raises(mhprobe.UserError, match=r"diff: an empty name: expected a network"):
        mhprobe.diff("", "vit_tiny_patch16_224", tmp_path)


def test_files_of_several_frames_are_said(tmp_path):
    stack = [Image.new("RGB", (16, 16), (shade, 0, 0)) for shade in (9, 99)]
    folder = photographs(tmp_path, "ape", "bee")
    assert "frames" not in read(folder)[1]  # negative control
    stack[0].save(folder / "ape" / "stack.tif", save_all=True, append_images=stack[1:])
    found = pictures(folder, None, 16, 64, Labelled())
    assert any("the first of 1 file with several" in note for note in found.notes)
