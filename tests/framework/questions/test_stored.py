"""What was measured is kept for later runs, in bounded room."""

import os

import torch

from mhprobe.framework.questions import stored


def test_what_was_not_used_for_longest_makes_room(tmp_path, monkeypatch):
    columns = {"value": torch.zeros(1000)}
    for age, key in enumerate(("third", "second", "first")):
        stored.write_columns(tmp_path, key, columns)
        os.utime(tmp_path / f"{key}.safetensors", (1000 + age, 1000 + age))
    assert stored.read_columns(tmp_path, "third") is not None  # the oldest, and used now
    size = (tmp_path / "first.safetensors").stat().st_size
    monkeypatch.setattr(stored, "ROOM", 3 * size + 3)
    stored.write_columns(tmp_path, "new", columns)
    assert {path.stem for path in tmp_path.iterdir()} == {"third", "first", "new"}


def test_nothing_goes_while_there_is_room(tmp_path):
    for key in "abc":
        stored.write_columns(tmp_path, key, {"value": torch.zeros(3)})
    assert len(list(tmp_path.iterdir())) == 3
