"""``mhprobe.photos``: from a folder of photographs to what a model wants to see."""

from __future__ import annotations

import re
import zipfile

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import mhprobe

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.4, 0.2)


@pytest.fixture
def model():
    made = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=3
    )
    made.pretrained_cfg = {**made.pretrained_cfg, "mean": MEAN, "std": STD}
    return made.eval()


@pytest.fixture
def folder(tmp_path):
    """Three photographs in two folders: one of the model's size, a wide one of three stripes, a grey one."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    stripes = np.zeros((64, 192, 3), dtype=np.uint8)
    for place, colour in enumerate([(255, 0, 0), (0, 200, 0), (0, 0, 255)]):
        stripes[:, 64 * place : 64 * (place + 1)] = colour
    (tmp_path / "photos" / "sea").mkdir(parents=True)
    for name, pixels in (
        ("b.png", noise),
        ("sea/a.png", stripes),
        ("c.png", np.full((50, 40), 90, dtype=np.uint8)),
    ):
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("no photograph")
    return tmp_path / "photos", noise


def test_photographs_come_in_the_size_and_with_the_mean_of_the_model(folder, model):
    where, noise = folder
    loader = mhprobe.photos(where, model, batch_size=2)
    assert loader.files == ["b.png", "c.png", "sea/a.png"] and len(loader) == 2
    batches = list(loader)
    assert [tuple(batch.shape) for batch in batches] == [(2, 3, 32, 32), (1, 3, 32, 32)]
    images = torch.cat(batches)
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    # of its size already, so nothing but the normalisation is done; 1e-6 is float32
    expected = (torch.from_numpy(noise).permute(2, 0, 1) / 255 - mean) / std
    torch.testing.assert_close(images[0], expected, rtol=0, atol=1e-6 * 10)
    shown = images[2] * std + mean
    # the middle of the stripes; the other two are cut off
    torch.testing.assert_close(
        shown.mean((1, 2)), torch.tensor([0, 200 / 255, 0]), rtol=0, atol=0.02
    )
    assert torch.equal(images, torch.cat(list(loader)))  # it can be walked again


def test_a_measure_and_a_masking_curve_take_the_loader(folder, model):
    loader = mhprobe.photos(folder[0], model, limit=2)
    assert loader.files == ["b.png", "sea/a.png"]
    assert mhprobe.measure(model, loader, [mhprobe.measures.WriteNorm])["write_norm"].shape == (3,)
    assert [row["heads_masked"] for row in mhprobe.masking_curve(model, loader, units="layer")] == [
        0,
        3,
    ]


def test_photographs_in_formats_that_are_not_read_are_counted(folder, model, caplog):
    """A phone's folder of forty HEIC and ten JPEG files once was ten photographs, without a word."""
    for name in ("d.HEIC", "sea/e.avif", ".hidden.heic"):
        (folder[0] / name).write_bytes(b"photograph")
    assert mhprobe.photos(folder[0], model).files == ["b.png", "c.png", "sea/a.png"]
    (line,) = caplog.messages
    assert "2 photographs are left out" in line and "d.HEIC" in line


@pytest.mark.parametrize("alone", [True, False])
def test_what_an_archive_lists_and_nobody_can_read_is_told(folder, model, tmp_path, caplog, alone):
    """A giant in a zip was left out without a word, and where it was alone there were no photographs."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("giant.png", b"png")
        archive.writestr("giant.mp4", b"film")  # is no photograph
        if not alone:
            archive.write(folder[0] / "b.png", "b.png")
    data = bytearray(path.read_bytes())
    for at in [found.start() for found in re.finditer(b"PK\x01\x02", bytes(data))][:2]:
        data[at + 24 : at + 28] = (3 * 2**30).to_bytes(4, "little")
    path.write_bytes(data)
    if alone:
        with pytest.raises(mhprobe.UserError, match=r"can be read: .*giant\.png claims 3,221"):
            mhprobe.photos(path, model)
        return
    assert mhprobe.photos(path, model).files == ["b.png"]
    (line,) = [line for line in caplog.messages if "giant" in line]
    assert "left out: 1 photograph that cannot be read" in line and "giant.png claims" in line


def test_an_array_of_other_byte_order_is_the_same(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (2, 32, 32, 3), dtype=np.uint16)
    for name in ("<u2", ">u2"):
        (tmp_path / name[1:]).mkdir(exist_ok=True)
        np.save(tmp_path / name[1:] / f"{name == '>u2'}.npy", values[0].astype(name))
    both = next(iter(mhprobe.photos(tmp_path, of_channels(3), mean=0, std=1)))
    assert torch.equal(both[0], both[1])


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("i8", "signed whole numbers of 64 bits"),
        ("i2", "signed whole numbers of 16 bits"),
        ("u4", "whole numbers of 32 bits"),
    ],
)
def test_an_array_of_other_whole_numbers_is_called_what_it_is(tmp_path, dtype, words):
    np.save(tmp_path / "a.npy", np.zeros((32, 32, 3), dtype))
    with pytest.raises(mhprobe.UserError, match=rf"a\.npy has {words} for pixels"):
        next(iter(mhprobe.photos(tmp_path, of_channels(3))))


def test_what_holds_no_photographs_is_refused(tmp_path, model):
    with pytest.raises(
        mhprobe.UserError,
        match=r"photos: .* has no photographs that can be read \(\.jpg, .*, \.npy\)",
    ):
        mhprobe.photos(tmp_path, model)
    with pytest.raises(mhprobe.UserError, match=r"photos: .*nowhere does not exist"):
        mhprobe.photos(tmp_path / "nowhere", model)
    with pytest.raises(mhprobe.UserError, match=r"batch_size and limit are at least 1, got 0"):
        mhprobe.photos(tmp_path, model, batch_size=0)
    with pytest.raises(
        mhprobe.UserError, match=r"batch_size and limit are at least 1, got 32 and 0"
    ):
        mhprobe.photos(tmp_path, model, limit=0)  # it once meant all of them


def of_channels(channels):
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=12,
        depth=1,
        num_heads=3,
        in_chans=channels,
    ).eval()


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_arrays_of_as_many_channels_as_the_model_takes_are_its_images(tmp_path, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, channels), dtype=np.uint8)
    for number, image in enumerate(pixels):
        np.save(tmp_path / f"{number}.npy", image)
    loader = mhprobe.photos(tmp_path, of_channels(channels), mean=0, std=1)
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(next(iter(loader)), expected, atol=1e-6, rtol=0)
    assert "colours" not in loader.readings  # nothing was turned grey


def test_arrays_stand_before_photographs_only_where_photographs_do_not_fit(folder, caplog):
    where, _ = folder
    mhprobe.photos(where, of_channels(3))
    assert "left out" not in caplog.text  # the control: nothing stands beside them
    np.save(where / "d.npy", np.zeros((32, 32, 4), np.uint8))
    assert mhprobe.photos(where, of_channels(4)).files == ["d.npy"]
    assert "of 3 photographs and 1 .npy array the arrays are taken, the others" in caplog.text
    assert mhprobe.photos(where, of_channels(3)).files == ["b.png", "c.png", "sea/a.png"]
    assert "of 3 photographs and 1 .npy array the photographs are taken" in caplog.text


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_an_array_with_pixels_that_are_no_numbers_is_left_out_and_says_how_many(
    tmp_path, caplog, odd
):
    pixels = np.full((32, 32, 4), 0.5, np.float32)
    np.save(tmp_path / "a.npy", pixels)
    pixels[3, 4, :2] = odd
    np.save(tmp_path / "b.npy", pixels)
    loader = mhprobe.photos(tmp_path, of_channels(4), levels=1)
    assert len(next(iter(loader))) == 1 and loader.files == ["a.npy"]
    assert "b.npy has NaN or infinity for 2 of 4,096 values" in caplog.text


def test_an_image_of_other_channels_costs_itself_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((32, 32, 4), np.uint8))
    np.save(tmp_path / "b.npy", np.zeros((32, 32, 5), np.uint8))
    loader = mhprobe.photos(tmp_path, of_channels(4))
    assert next(iter(loader)).shape == (1, 4, 32, 32) and loader.files == ["a.npy"]
    with pytest.raises(
        mhprobe.UserError,
        match=r"a\.npy has 4 channels, expected 13, as the network takes\. Give \.npy arrays",
    ):
        next(iter(mhprobe.photos(tmp_path, of_channels(13))))


def test_files_of_several_frames_are_said(folder, model, caplog):
    """Of a stack of slices the first was taken without a word."""
    where, noise = folder
    slices = [Image.fromarray(noise), Image.fromarray(255 - noise)]
    for name in ("stack.tif", "moves.gif", "moves.png"):
        slices[0].save(where / name, save_all=True, append_images=slices[1:])
    slices[0].save(where / "one.tif")  # negative control
    loader = mhprobe.photos(where, model)
    images = torch.cat(list(loader))
    assert "first of 3 files with several, e.g. moves.gif" in str(loader.readings["frames"])
    assert "frames" in caplog.text
    stack, one = (images[loader.files.index(name)] for name in ("stack.tif", "one.tif"))
    assert torch.equal(stack, one)
