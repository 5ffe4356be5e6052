"""What is white in a file, how a photograph is cut for a network's shape, and files that cannot be read."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
import timm
from PIL import Image

import mhprobe
from data_sets import class_files, encoded, write_folder
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.cache import open_cache
from mhprobe.data.decoding import decode, levels_given
from mhprobe.data.images import ImageFolder
from mhprobe.data.photos import PhotoLoader, Photos
from mhprobe.errors import UserError

GREY, GREY_ALPHA, RGB, RGBA = 0, 4, 2, 6  # colour types of PNG
NEUTRAL = ((0.0,) * 3, (1.0,) * 3)


def png16(values: np.ndarray, kind: int) -> bytes:
    """A PNG of 16 bits a channel, which Pillow writes of grey alone. values: (h, w, channels)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def tiff(values: np.ndarray, kind: int = 1, colours: int | None = None, planes: int = 1) -> bytes:
    """An uncompressed TIFF of (h, w, channels) values. kind: 1 whole numbers, 2 signed ones, 3 floating point.

    colours: 0 for white 0, 1 for black 0, 2 for red, green, blue. planes: 2 says one after the other.
    """
    height, width, channels = values.shape
    bits, usual = 8 * values.dtype.itemsize, 2 if channels == 3 else 1
    data, at = values.tobytes(), 8
    wide = struct.pack(f"<{channels}H", *[bits] * channels)
    tags = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, at + len(data)),
        (259, 3, 1, 1), (262, 3, 1, usual if colours is None else colours), (273, 4, 1, at),
        (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(data)), (284, 3, 1, planes),
        (339, 3, 1, kind),
    ]  # fmt: skip
    if channels == 2:  # what the second is, is not said
        tags.insert(-1, (338, 3, 1, 0))
    if channels <= 2:
        tags[2] = (258, 3, channels, sum(bits << 16 * place for place in range(channels)))
        wide = b""
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    head = struct.pack("<2sHI", b"II", 42, at + len(data) + len(wide))
    return head + data + wide + directory + bytes(4)


def ramp(bits: int, channels: int = 1) -> np.ndarray:
    """(16, 16, channels) from black to the largest value of so many bits."""
    grey = np.linspace(0, 2**bits - 1, 256).round().astype(np.uint16)
    return np.repeat(grey.reshape(16, 16, 1), channels, axis=2)


FORMS = {
    "grey PNG": lambda bits: png16(ramp(bits), GREY),
    "grey PNG with transparency": lambda bits: png16(
        np.concatenate([ramp(bits), ramp(16)], axis=2), GREY_ALPHA
    ),
    "colour PNG": lambda bits: png16(ramp(bits, 3), RGB),
    "colour PNG with transparency": lambda bits: png16(ramp(bits, 4), RGBA),
    "grey TIFF": lambda bits: tiff(ramp(bits)),
    "colour TIFF": lambda bits: tiff(ramp(bits, 3)),
}


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("form", FORMS)
def test_the_brightest_value_of_so_many_bits_is_white(form, bits):
    expected = np.repeat(ramp(bits) >> (bits - 8), 3, axis=2)
    found = decode(FORMS[form](bits), 16, True, "x")
    np.testing.assert_array_equal(found, expected)
    assert found.max() == 255 and found.min() == 0  # of 16 bits 12 were once nearly black


def test_levels_that_were_given_are_black_and_white_of_any_kind_of_pixels(tmp_path):
    shares = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16, 1)
    for values, kind, levels in (
        (shares, 3, 1), (255 * shares, 3, 255), (4095 * shares - 1024, 3, (-1024, 3071)),
        ((4095 * shares - 1024).astype(np.int32), 2, [-1024, 3071]),
        ((4095 * shares - 1024).astype(np.int16), 2, [-1024, 3071]),
        ((100 * shares).astype(np.uint8), 1, 100),
    ):  # fmt: skip
        data = tiff(values, kind)
        root = write_folder(tmp_path / f"{values.dtype}{levels}", {"a.tif": data})
        loader = PhotoLoader(root, (16, 16), *NEUTRAL, levels=levels)
        seen = next(iter(loader))[0, 0].numpy()
        # a step of the file's own values, cut off, and half a step of 8 bits
        np.testing.assert_allclose(seen, shares[..., 0], atol=0.013)
        assert seen.max() == 1 and seen.min() == 0


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        (np.ones((8, 8, 1), np.float32), 3, "floating-point numbers for pixels, from 1 to 1"),
        (
            np.full((8, 8, 1), 70_000, np.int32),
            2,
            "whole numbers of 32 bits for pixels, from 70000",
        ),
        (np.ones((8, 8, 6), np.uint8), 1, "a TIFF of 6 channels of whole numbers of 8 bits"),
        (np.ones((8, 8, 3), np.float32), 3, "3 channels of floating-point numbers of 32 bits"),
    ],
)
def test_pixels_that_do_not_say_what_is_white_are_called_what_they_are(values, kind, says):
    with pytest.raises(UserError, match=says):
        decode(tiff(values, kind), 8, True, "x.tif")


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (dict(values=ramp(16), colours=0), "whole numbers of 16 bits whose 0 is white"),
        (dict(values=ramp(16) / np.float32(9), kind=3, colours=0), "of 32 bits whose 0 is white"),
        (dict(values=ramp(16, 3), planes=2), "3 channels of whole numbers of 16 bits in planes"),
        (dict(values=ramp(8).astype(np.int8), kind=2), "signed whole numbers of 8 bits"),
        (dict(values=ramp(8, 2).astype(np.uint8)), "2 channels of whole numbers of 8 bits"),
    ],
)
def test_a_tiff_that_pillow_opens_and_misreads_is_refused_by_its_form(form, says):
    """It gave a negative, noise, and the first of two channels, without a word."""
    data = tiff(**form)
    with pytest.raises(UserError, match=rf"a\.tif is a TIFF of .*{says}, which is not read"):
        decode(data, 16, False, "a.tif", levels_given([0, 100], "levels"))


def test_a_tiff_whose_0_is_white_is_read_where_pillow_turns_it_and_whole_numbers_have_no_sign():
    grey = ramp(8).astype(np.uint8)
    turned = decode(tiff(255 - grey, colours=0), 16, False, "a.tif")
    np.testing.assert_array_equal(turned, np.repeat(grey, 3, axis=2))
    large = tiff(grey.astype(np.uint32) << 24)
    read = decode(large, 16, False, "a.tif", levels_given(255 << 24, "levels"))
    np.testing.assert_array_equal(read, np.repeat(grey, 3, axis=2))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab", "is a pointer of Git LFS"),
        (b"\n<!DOCTYPE html><html><title>404", "is a page of HTML, as of a download that failed"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "is a HEIC, a picture in a format that is not read"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "is a video"),
        (bytes(128) + b"DICM", "is a DICOM, a picture in a format that is not read"),
        (b"PK\3\4data", "is a zip archive"),
        (encoded(0, format="JPEG2000"), "is a JPEG 2000, a picture in a format that is not read"),
        (b"hello", r"is damaged \(not an image\)"),  # the control
    ],
)
def test_a_file_that_is_no_picture_of_ours_is_called_what_it_is(data, says):
    with pytest.raises(UserError, match=rf"^root: a\.jpg {says}"):
        decode(data, 16, True, "a.jpg")


@pytest.mark.parametrize("levels", [0, -1, True, "white", [1], [5, 5], [1, 2, 3], float("nan")])
def test_levels_of_no_black_and_white_are_refused(levels):
    with pytest.raises(UserError, match="levels: expected the value of a white pixel"):
        ImageFolder("anywhere", levels=levels)


def test_all_files_of_a_set_have_the_white_of_its_largest_value_and_it_is_said(tmp_path, caplog):
    dark, bright = png16(ramp(10), GREY), png16(ramp(12), GREY)
    files = {"a.png": dark, "b.png": bright, "c.png": encoded(0, 16, 16)}
    loader = PhotoLoader(write_folder(tmp_path, files), (16, 16), *NEUTRAL)
    images = next(iter(loader))
    # 1,023 of 4,095; alone it would be white
    assert [round(float(image.max()) * 255) for image in images[:2]] == [63, 255]
    (line,) = [text for text in caplog.messages if "levels" in text]
    assert "12 of 16 bits, white is 4095" in line and "a guess" in line and "levels" in line
    assert loader.readings["levels"].guess
    caplog.clear()
    eight = write_folder(tmp_path / "8", {"c.png": files["c.png"]})
    assert "levels" not in PhotoLoader(eight, (16, 16), *NEUTRAL).readings
    assert not caplog.messages


def test_a_data_set_remembers_from_its_cache_how_it_was_read(tmp_path, caplog):
    files = class_files(12, 2, width=16, height=16) | {"train/cat/0.png": png16(ramp(12), GREY)}
    source = ImageFolder(write_folder(tmp_path / "set", files), 16)
    for _ in range(2):  # decoded, then from the cache
        caplog.clear()
        data = ImageData(source, batch_size=2, cache_dir=tmp_path / "cache")
        data.prepare_data()
        assert data.readings["levels"].guess and "4095" in data.readings["levels"].taken
        assert sum("12 of 16 bits" in text for text in caplog.messages) == 1
    other = ImageFolder(source.root, 16, levels=1023)
    assert open_cache(other, tmp_path / "cache").readings[-1].what == "classes"


def disc(height: int, width: int) -> Image.Image:
    """A white disc in the middle of a black picture."""
    y, x = np.mgrid[:height, :width]
    inside = (y - height / 2) ** 2 + (x - width / 2) ** 2 < (0.4 * min(height, width)) ** 2
    return Image.fromarray(np.repeat(255 * inside[..., None].astype(np.uint8), 3, axis=2))


@pytest.mark.parametrize("photo", [(100, 200), (100, 100), (200, 100)])
@pytest.mark.parametrize("size", [(32, 64), (64, 32), (32, 32)])
def test_a_disc_stays_round_and_nothing_more_is_lost_than_must_be(tmp_path, photo, size):
    disc(*photo).save(tmp_path / "disc.png")
    on = next(iter(PhotoLoader(tmp_path, size, *NEUTRAL)))[0, 0].numpy() > 0.5
    cut = max(size[0] / photo[0], size[1] / photo[1])  # it covers the network's shape
    expected = min(0.8 * min(photo) * cut, *size)
    if 0.8 * min(photo) * cut <= min(size):
        # to two pixels of its edge
        assert abs(on.any(1).sum() - expected) <= 2 and abs(on.any(0).sum() - expected) <= 2


def test_a_data_set_is_cut_to_the_shape_of_a_network_and_not_squeezed(tmp_path):
    file = io.BytesIO()
    disc(64, 64).save(file, "PNG")
    files = dict.fromkeys(class_files(12, 2), file.getvalue())
    data = ImageData(ImageFolder(write_folder(tmp_path / "set", files), 64), 2, cache_dir=tmp_path)
    data.spec = InputSpec((32, 64), *NEUTRAL)
    data.prepare_data()
    data.setup()
    on = data.some("test", 1).images[0, 0].numpy() > 0.5
    assert on[16].sum() == pytest.approx(51, abs=2)  # its width at the middle; it was 51 by 25
    assert on.any(1).all()  # and its height is cut, not pressed
    assert "the middle" in data.readings["size"].taken and "64 x 32" in data.readings["size"].taken
    wide = ImageFolder(data.source.root, [32, 64])
    assert wide.scan().size == (32, 64)


def bad_files(root) -> None:
    """A file of each kind that cannot be read, and one whose name is no UTF-8."""
    (root / "damaged.png").write_bytes(encoded(1)[:200])
    (root / "text.jpg").write_text("no picture")
    (root / "gone.png").symlink_to(root / "nowhere.png")
    (root / "device.png").symlink_to("/dev/zero")
    os.mkfifo(root / "pipe.png")
    with (root / "huge.png").open("wb") as file:
        file.truncate(10**10)
    (root / os.fsdecode(b"caf\xe9.png")).write_bytes(encoded(2))


def test_one_bad_file_never_costs_the_photographs_of_a_folder(tmp_path, caplog):
    root = write_folder(tmp_path / "photos", {f"{i}.png": encoded(i + 10) for i in range(10)})
    bad_files(root)
    loader = PhotoLoader(root, (16, 16), *NEUTRAL)
    images = next(iter(loader))
    assert len(images) == len(loader.files) == 11  # with the one of a foreign name
    (line,) = [text for text in caplog.messages if "left out" in text]
    assert "6 photographs that cannot be read" in line
    for _ in range(2):
        data = ImageData(Photos(root, 16), batch_size=2, cache_dir=tmp_path / "cache")
        data.prepare_data()
        data.setup()
        assert len(data.splits["train"]) + len(data.splits["val"]) + len(data.splits["test"]) == 11
        assert "6 photographs" in data.readings["left out"].taken


def test_a_folder_of_nothing_but_bad_files_is_refused(tmp_path):
    write_folder(tmp_path, {"a.png": b"no picture"})
    with pytest.raises(UserError, match=r"has no photographs that can be read: .*not an image"):
        next(iter(PhotoLoader(tmp_path, (16, 16), *NEUTRAL)))


def test_a_class_whose_name_is_no_utf8_is_read(tmp_path):
    strange = os.fsdecode(b"caf\xe9")
    files = class_files(3, 2, classes=("cat", strange))
    contents = ImageFolder(write_folder(tmp_path, files), 16).scan()
    assert contents.class_names == (r"caf\xe9", "cat")
    assert len([*contents.images()]) == 10


def test_a_network_of_grey_images_sees_the_brightness(tmp_path):
    Image.fromarray(np.full((32, 32, 3), (255, 0, 0), np.uint8)).save(tmp_path / "red.png")
    sizes = dict(img_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=3)
    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, **sizes).eval()
    loader = mhprobe.photos(tmp_path, model, mean=0, std=1)
    image = next(iter(loader))
    assert image.shape == (1, 1, 32, 32)
    assert float(image.mean()) == pytest.approx(0.299, abs=2e-3)  # a step of 8 bits is .004
    assert "grey" in loader.readings["colours"].taken
    assert loader.readings["mean and std"].source == "as given"
    assert mhprobe.measure(model, loader, [mhprobe.measures.WriteNorm])["write_norm"].shape == (3,)


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
@pytest.mark.parametrize("first", [True, False])
def test_class_folders_of_arrays_have_any_number_of_channels(tmp_path, channels, first):
    rng = np.random.default_rng(0)
    values = {
        name: rng.integers(0, 4096, (16, 16, channels), dtype=np.uint16)
        for name in class_files(12, 2)
    }
    files = {
        name.replace(".png", ".npy"): npy(of.transpose(2, 0, 1) if first else of)
        for name, of in values.items()
    }
    source = ImageFolder(write_folder(tmp_path / "set", files), 16)
    data = ImageData(source, batch_size=2, cache_dir=tmp_path / "cache")
    data.prepare_data()
    data.setup()
    assert data.channels == channels
    stored = data.splits["test"].cached.images[0]
    np.testing.assert_array_equal(stored, (values["test/cat/0.png"] >> 4).transpose(2, 0, 1))
    assert data.some("test", 2).images.shape == (2, channels, 16, 16)
    assert "12 of 16 bits" in data.readings["levels"].taken
    smaller = ImageFolder(source.root, [8, 4], levels=4095)
    assert open_cache(smaller, tmp_path / "cache").splits["test"].images.shape[1:] == (
        channels,
        8,
        4,
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (npy(np.ones((8, 8, 3), np.float32)), "floating-point numbers"),
        (npy(np.ones(8, np.uint8)), r"expected \(height, width, channels\), got \(8,\)"),
        (npy(np.array([object()] * 4)), "no whole array of numbers"),
        (npy(np.ones((8, 8, 3), np.uint8))[:-5], "no whole array of numbers"),
        (npy(np.ones((8, 8, 3), np.uint8)).replace(b"(8, 8, 3)", b"(8, 8,99)"), "no whole array"),
        (b"\x93NUMPY", "no whole array of numbers"),
        (npy(np.ones((4, 900, 3), np.uint8)), "900 x 4 pixels"),
    ],
)
def test_an_array_that_is_no_image_is_refused_by_what_it_is(data, says):
    with pytest.raises(UserError, match=says):
        decode(data, 8, True, "a.npy")


def test_arrays_of_several_numbers_of_channels_are_refused(tmp_path):
    files = {
        name.replace("png", "npy"): npy(np.ones((8, 8, 4), np.uint8)) for name in class_files()
    }
    root = write_folder(
        tmp_path / "set", files | {"train/dog/2.npy": npy(np.ones((8, 8, 5), np.uint8))}
    )
    with pytest.raises(UserError, match="has 5 channels, expected 4"):
        open_cache(ImageFolder(root, 8), tmp_path, show=False)
    mixed = write_folder(
        tmp_path / "mixed", class_files() | {"train/dog/2.npy": files["train/dog/2.npy"]}
    )
    with pytest.raises(UserError, match="expected pictures alone, or arrays alone"):
        ImageFolder(mixed, 8).scan()
