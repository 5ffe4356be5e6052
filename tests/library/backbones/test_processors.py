"""Mean and deviation of networks of other libraries: those of their processor, or a guess that is said."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import mhprobe
from mhprobe.backbones import colours_of, input_spec
from mhprobe.backbones.huggingface import colours_in
from models import huggingface, huggingface_swin, torchvision_vit

IMAGENET = (0.485, 0.456, 0.406)
CLIP = (0.48145466, 0.4578275, 0.40821073)
USUAL = {
    "ViTModel": (0.5,) * 3,
    "DeiTModel": IMAGENET,
    "BeitModel": (0.5,) * 3,
    "Dinov2Model": IMAGENET,
    "DINOv3ViTModel": IMAGENET,
    "CLIPVisionModel": CLIP,
    "SiglipVisionModel": (0.5,) * 3,
    "SwinModel": IMAGENET,
}


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    """A folder of one picture in ImageNet's mean colour."""
    folder = tmp_path_factory.mktemp("grey")
    Image.new("RGB", (64, 64), (124, 116, 104)).save(folder / "grey.png")
    return folder


@pytest.mark.parametrize("name", USUAL)
def test_a_network_without_a_processor_gets_the_mean_of_its_familys_weights_as_a_guess(name):
    model = huggingface_swin() if name == "SwinModel" else huggingface(name)
    assert input_spec(model)["mean"] == pytest.approx(USUAL[name], abs=1e-6)
    reading = colours_of(model)
    assert reading.guess and name in reading.source and reading.option == "mean and std"


def saved(model, folder, name="preprocessor_config.json", **settings):
    model.save_pretrained(folder)
    (folder / name).write_text(json.dumps(settings))
    return type(model).from_pretrained(folder).eval()


OWN = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}


@pytest.mark.parametrize(
    ("file", "settings"),
    [("preprocessor_config.json", OWN), ("processor_config.json", {"image_processor": OWN})],
)
def test_the_processor_beside_the_weights_is_read_in_a_notebook(file, settings, tmp_path, grey):
    model = saved(huggingface("Dinov2Model"), tmp_path, file, **settings)
    loader = mhprobe.photos(grey, model)
    assert (loader.mean, loader.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert loader.readings["mean and std"] == colours_of(model)
    assert not colours_of(model).guess and colours_of(model).source == file


@pytest.mark.parametrize(
    "settings",
    [
        OWN, {**OWN, "rescale_factor": 1 / 127.5}, {**OWN, "do_rescale": False},
        {**OWN, "do_normalize": False}, {"image_processor": {**OWN, "rescale_factor": 0.5}},
    ],
)  # fmt: skip
def test_pixels_become_what_the_processor_would_make_of_them(settings):
    found = colours_in(settings)
    mean, std = np.array(found["mean"]), np.array(found["std"])
    inner = settings.get("image_processor", settings)
    byte = np.array([0.0, 100.0, 255.0])
    value = byte * (
        1.0 if inner.get("do_rescale") is False else inner.get("rescale_factor", 1 / 255)
    )
    if inner.get("do_normalize", True):
        value = (value - inner["image_mean"]) / inner["image_std"]
    np.testing.assert_allclose((byte / 255 - mean) / std, value, rtol=1e-9)


def test_what_the_user_gives_goes_before_and_a_guess_is_said_once(grey, caplog):
    caplog.set_level(logging.WARNING, logger="mhprobe")  # a command before may have asked for more
    model = huggingface("CLIPVisionModel")
    given = mhprobe.photos(grey, model, mean=IMAGENET, std=(0.229, 0.224, 0.225))
    assert not caplog.messages and given.readings["mean and std"].source == "as given"
    image = next(iter(given))
    assert float(image.abs().max()) < 0.02  # the mean colour, to half a step of 8 bits
    mhprobe.photos(grey, model)
    (line,) = caplog.messages
    assert "mean and std: (0.4815, 0.4578, 0.4082)" in line and "a guess" in line
    with pytest.raises(mhprobe.UserError, match="mean: expected 3 numbers from 0 to 1"):
        mhprobe.photos(grey, model, mean=(124, 116, 104))


def test_torchvisions_and_timms_are_no_guess_and_a_network_of_nothing_is(grey, caplog):
    assert not colours_of(torchvision_vit()).guess
    sizes = dict(img_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=3)
    model = timm.create_model("vit_tiny_patch16_224", **sizes).eval()
    assert (
        not colours_of(model).guess and "of timm's vit_tiny_patch16_224" in colours_of(model).source
    )
    model.pretrained_cfg = {"input_size": (3, 32, 32)}
    mhprobe.photos(grey, model)
    assert "a guess" in caplog.messages[-1]


def test_the_page_of_a_look_says_where_the_mean_is_from_and_takes_another(grey):
    model = huggingface("Dinov2Model")
    with torch.no_grad():
        page = mhprobe.look(model, grey, untrained=False, show_progress=False).page
        given = mhprobe.look(
            model, grey, untrained=False, show_progress=False, mean=0.5, std=0.5
        ).page
    assert "Mean and std" in page and "<strong>(a guess)</strong>" in page
    assert "(0.5, 0.5, 0.5) and (0.5, 0.5, 0.5), as given" in given and "a guess" not in given
