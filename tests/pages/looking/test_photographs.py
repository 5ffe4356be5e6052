"""Photographs come as cameras, scanners and bad disks leave them: they are read right, or named in a line."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mhprobe.data.photos import PhotoLoader, listed
from mhprobe.errors import UserError
from mhprobe.pages.looking.photographs import masks, photographs
from pages.looking.conftest import photo


def test_photographs_are_what_the_loader_gives(folder):
    found = photographs(listed(folder, "look"), 16)
    loader = PhotoLoader(folder, (16, 16), (0, 0, 0), (1, 1, 1))
    assert found.names == loader.files
    np.testing.assert_allclose(found.pixels.float() / 255, next(iter(loader)), atol=1e-6)
    assert all(picture.startswith("data:image/jpeg;base64,") for picture in found.pictures)


def test_at_most_twelve_are_taken_evenly(tmp_path):
    for number in range(30):
        photo(number, 8).save(tmp_path / f"{number:02}.png")
    found = photographs(listed(tmp_path, "look"), 8)
    assert len(found.names) == 12 and found.notes[0].startswith("12 of the 30 photographs")
    assert found.names[0] < "05" and found.names[-1] > "24.png"


def test_cmyk_animations_and_turned_photographs_are_read(tmp_path):
    photo(1).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    photo(1).save(tmp_path / "moves.gif", save_all=True, append_images=[photo(2)])
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held sideways
    photo(1).transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=turned)
    photo(1).save(tmp_path / "upright.png")
    found = photographs(listed(tmp_path, "look"), 40)
    pixels = dict(zip(found.names, found.pixels.float(), strict=True))
    assert [note.split(":")[0] for note in found.notes] == ["frames"]
    for name, reach in (
        ("cmyk.jpg", 30),
        ("moves.gif", 30),
        ("turned.png", 1),
    ):  # JPEG and 256 colours lose something
        assert (pixels[name] - pixels["upright.png"]).abs().mean() < reach, name
    assert (
        pixels["upright.png"].flip(1) - pixels["upright.png"]
    ).abs().mean() > 30  # and not any turn would do


def test_broken_and_huge_ones_are_named_and_left_out(tmp_path):
    photo(1).save(tmp_path / "whole.png")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    Image.new("1", (10_000, 10_000)).save(tmp_path / "hundred_megapixels.png")
    found = photographs(listed(tmp_path, "look"), 8)
    assert found.names == ["whole.png"]
    assert [line.split()[2] for line in found.notes] == ["broken.jpg", "hundred_megapixels.png"]


@pytest.mark.parametrize("content", [{}, {"notes.txt": b"no image"}, {"a.png": b"broken"}])
def test_a_folder_without_photographs_is_refused_in_a_line(tmp_path, content):
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match="no photographs that can be read"):
        photographs(listed(tmp_path, "look"), 8)
    with pytest.raises(UserError, match="does not exist"):
        photographs(listed(tmp_path / "nowhere", "look"), 8)


def test_masks_are_of_the_same_names_and_bright_where_it_is_salient(tmp_path):
    drawn = np.zeros((40, 40), dtype=np.uint8)
    drawn[10:30, 20:40] = 3  # numbers of objects: dark to the eye
    Image.fromarray(drawn).save(tmp_path / "a.png")
    (found,) = masks(tmp_path, ["a.jpg"], (40, 40))
    assert found.tolist() == (drawn > 0).astype(int).tolist()
    with pytest.raises(UserError, match=r"no mask for b\.jpg"):
        masks(tmp_path, ["b.jpg"], (40, 40))
    with pytest.raises(
        UserError, match=r"a\.png for one/a\.jpg and two/a\.jpg; expected one image"
    ):
        masks(tmp_path, ["one/a.jpg", "two/a.jpg"], (40, 40))
    (tmp_path / "two").mkdir()
    Image.fromarray(drawn).save(tmp_path / "two" / "a.png")
    with pytest.raises(UserError, match=r"a\.png and \S*a\.png for a\.jpg"):
        masks(tmp_path, ["a.jpg"], (40, 40))


@pytest.mark.parametrize(
    ("channels", "shown"), [(1, ""), (2, "mean of 2 channels, grey"), (13, "channels 1 to 3 of 13")]
)
def test_arrays_keep_their_channels_and_their_pictures_say_which_they_show(
    tmp_path, channels, shown
):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, channels), dtype=np.uint8)
    for number, image in enumerate(pixels):
        np.save(tmp_path / f"{number}.npy", image)
    found = photographs(listed(tmp_path, "look"), 16, channels=channels)
    np.testing.assert_array_equal(found.pixels, pixels.transpose(0, 3, 1, 2))
    assert found.notes == ([f"Pictures show {shown}."] if shown else [])
    assert all(picture.startswith("data:image/jpeg;base64,") for picture in found.pictures)


def test_photographs_for_a_network_of_other_channels_are_refused_with_what_to_give(folder):
    with pytest.raises(UserError, match=r"has 3 channels, expected 13, .* Give \.npy arrays"):
        photographs(listed(folder, "look"), 16, channels=13)


def test_files_of_several_frames_are_said_as_elsewhere(tmp_path):
    """Of a stack of slices the first was taken without a word."""
    photo(1).save(tmp_path / "one.tif")  # negative control
    alone = photographs(listed(tmp_path, "look"), 8)
    photo(1).save(tmp_path / "stack.tif", save_all=True, append_images=[photo(2)])
    found = photographs(listed(tmp_path, "look"), 8)
    assert alone.notes == []
    assert (
        len(found.notes) == 1
        and "the first of 1 file with several, e.g. stack.tif" in found.notes[0]
    )


def test_a_mask_whose_name_is_spelled_in_other_characters_of_unicode_is_found(tmp_path):
    """macOS writes an accent as a character of its own."""
    (tmp_path / "masks").mkdir()
    photo(1).save(tmp_path / "masks" / "cafe\u0301.png")
    assert masks(tmp_path / "masks", ["caf\u00e9.jpg"], (8, 8)).shape == (1, 8, 8)
    with pytest.raises(UserError, match="no mask"):  # negative control: another name
        masks(tmp_path / "masks", ["cafe.jpg"], (8, 8))
