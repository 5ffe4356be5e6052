"""What is kept in tensors is what was written, or is not there."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from mhprobe.framework.questions import stored
from mhprobe.io.tensors import digest, packed, read_outcomes, unpacked, write_outcomes

VALUES = {
    "value": torch.tensor([0.5, torch.nan, 2.0], dtype=torch.float64),
    "images": torch.tensor(7),
}
RIGHT = torch.tensor([True, False, True, True])


def kept(folder):
    return stored.read_columns(folder, "key")


def test_tensors_come_back_with_what_was_said_of_them(tmp_path):
    (tmp_path / "x").write_bytes(packed(VALUES, {"of": "heads"}))
    tensors, about = unpacked(tmp_path / "x")
    assert about == {"of": "heads"} and set(tensors) == set(VALUES)
    torch.testing.assert_close(tensors, VALUES, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("edit", ["a value", "what is said of it", "no digest"])
def test_numbers_that_somebody_edited_are_measured_again(tmp_path, edit):
    stored.write_columns(tmp_path, "key", VALUES)
    path = tmp_path / "key.safetensors"
    assert kept(tmp_path).columns["value"][0] == 0.5
    tensors, about = unpacked(path)
    digest = {} if edit == "no digest" else {"sha256": unpacked_digest(path)}
    if edit == "a value":
        tensors["value"][0] = 0.7
    if edit == "what is said of it":
        about["axes"] = '{"value": ["other"]}'
    save_file(tensors, path, {**about, **digest})
    assert load_file(path)["images"] == 7 and kept(tmp_path) is None


def unpacked_digest(path) -> str:
    from safetensors import safe_open

    with safe_open(str(path), "pt") as file:
        return file.metadata()["sha256"]


def test_every_bit_that_flips_is_seen(tmp_path):
    stored.write_columns(tmp_path, "key", VALUES)
    path = tmp_path / "key.safetensors"
    data = path.read_bytes()
    for place in range(8, len(data), 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found = kept(tmp_path)
        assert found is None or (
            found.columns.keys() == VALUES.keys() and found.columns["value"][2] == 2
        ), place


def test_outcomes_that_were_edited_are_none(tmp_path):
    path = write_outcomes(tmp_path, RIGHT, torch.arange(4), "same")
    assert torch.equal(read_outcomes(tmp_path).right, RIGHT)
    save_file(
        {**load_file(path), "right": torch.ones(4, dtype=torch.uint8)}, path, {"images": "same"}
    )
    assert read_outcomes(tmp_path) is None
    assert read_outcomes(tmp_path / "nowhere") is None


def test_the_same_content_is_the_same_bytes():
    about = {f"key {number}": "ä" * number for number in range(5)}
    tensors = {"a": torch.arange(5), "b": torch.zeros(2, 3, dtype=torch.bool)}
    assert len({packed(tensors, about) for _ in range(20)}) == 1
    assert (
        len({save(tensors, about) for _ in range(20)}) > 1
    )  # negative control: safetensors alone writes them anyhow


@pytest.mark.parametrize("number", [torch.tensor(0.5).expand(1), torch.tensor(0.5).expand(1, 1)])
def test_a_number_that_was_repeated_once_has_a_digest(number):
    """A network of one head: the probe ended in a traceback, since such a tensor counts as contiguous."""
    assert number.stride(-1) == 0 and number.is_contiguous()
    assert digest({"value": number}) == digest({"value": torch.full(number.shape, 0.5)})
