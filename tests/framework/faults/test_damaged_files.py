"""Any file that lost or changed a few bits is answered in one line, or gives what the whole one gives.

FUZZ=2000 python -m pytest tests/framework/faults: so many damages of each kind of file instead of a few.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mhprobe
from data_sets import Noise, encoded, write_tar, write_zip
from mhprobe.backbones import build
from mhprobe.data.cache import open_cache
from mhprobe.data.images import ImageFolder
from mhprobe.errors import UserError
from mhprobe.framework.training.checkpoints import AtomicCheckpointIO
from mhprobe.heads import HeadLayout
from mhprobe.io.head_tables import read_kept
from mhprobe.masking.base import Scores
from mhprobe.masking.parts.cache import MaskCache
from mhprobe.weights.checkpoint import load_checkpoint, load_weights, save_weights

BUDGET = int(os.environ.get("FUZZ", 24))
BACKBONE = {
    "name": "vit_tiny_patch16_224",
    "img_size": 8,
    "patch_size": 4,
    "embed_dim": 12,
    "depth": 1,
    "num_heads": 2,
}
ABOUT = {"backbone": BACKBONE, "class_names": ["ape", "bee"], "data": "zoo"}


def flip(data: bytearray, rng: np.random.Generator) -> None:
    where = int(rng.integers(8 * len(data)))
    data[where // 8] ^= 1 << where % 8


def cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[int(rng.integers(len(data))) :]


def blank(data: bytearray, rng: np.random.Generator) -> None:
    """A block that never reached the disk."""
    start = int(rng.integers(len(data)))
    data[start : start + 512] = bytes(len(data[start : start + 512]))


def lose(data: bytearray, rng: np.random.Generator) -> None:
    start = int(rng.integers(len(data)))
    del data[start : start + int(rng.integers(1, 64))]


DAMAGES = (flip, flip, flip, cut, blank, lose)


class Kind(NamedTuple):
    """make writes the whole files and names those to damage; read gives what they hold, to be compared."""

    make: Callable[[Path], list[str]]
    read: Callable[[Path], Any]
    same: bool = True  # whether damage that is not noticed must change nothing


def jpegs() -> dict[str, bytes]:
    names = [
        f"{split}/{name}/{i}.jpg"
        for split in ("train", "test")
        for name in ("cat", "dog")
        for i in range(2)
    ]
    return {name: encoded(seed, format="JPEG") for seed, name in enumerate(names)}


def pixels(name: str) -> Callable[[Path], list[np.ndarray]]:
    def read(folder: Path) -> list[np.ndarray]:
        cache = open_cache(ImageFolder(folder / name, stored_size=16), folder / "cache", show=False)
        return [np.array(part) for s in cache.splits.values() for part in (s.images, s.labels)]

    return read


def archive(name: str, write: Callable[[Path, dict[str, bytes]], Path]) -> Kind:
    def make(folder: Path) -> list[str]:
        path = write(folder / name, jpegs())
        if name.endswith(".tar"):  # has no checksum of its own
            (folder / f"{name}.sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
        return [name]

    return Kind(make, pixels(name))


def make_cache(folder: Path) -> list[str]:
    open_cache(Noise(), folder, show=False)
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".npy", ".json")
    ]


def read_cache(folder: Path) -> list[np.ndarray]:
    cache = open_cache(Noise(), folder, show=False)
    return [np.array(part) for s in cache.splits.values() for part in (s.images, s.labels)]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    built = build(**BACKBONE, num_classes=2).eval()
    with torch.no_grad():
        mhprobe.attach(built).values[1] = 0.5
    return built


def make_pair(folder: Path) -> list[str]:
    save_weights(model(), folder / "m.safetensors", ABOUT)
    return ["m.safetensors", "m.json", "m.json"]


def make_checkpoint(folder: Path) -> list[str]:
    state = {f"backbone.{key}": value for key, value in model().state_dict().items()}
    content = {
        "state_dict": {**state, "gates.values": torch.tensor([1.0, 0.5])},
        "mhprobe": ABOUT,
        "epoch": 3,
    }
    AtomicCheckpointIO().save_checkpoint(content, folder / "m.ckpt")
    return ["m.ckpt"]


def weights(name: str) -> Callable[[Path], list[np.ndarray]]:
    def read(folder: Path) -> list[np.ndarray]:
        loaded, about = load_weights(folder / name)
        gates = mhprobe.attach(loaded).values
        assert about["class_names"] == ABOUT["class_names"]
        return [value.detach().numpy() for value in (*loaded.state_dict().values(), gates)]

    return read


def read_checkpoint(folder: Path) -> list[np.ndarray]:
    found = load_checkpoint(folder / "m.ckpt")
    assert found["epoch"] == 3
    return [value.numpy() for value in found["state_dict"].values()]


LAYOUT: HeadLayout = mhprobe.attach(build(**{**BACKBONE, "num_heads": 6}, num_classes=2)).layout


def make_table(folder: Path) -> list[str]:
    (folder / "gates.csv").write_text(
        "head,kept,value\n" + "".join(f"{h},{h % 2},{h / 7}\n" for h in range(6))
    )
    return ["gates.csv"]


def read_table(folder: Path) -> list[np.ndarray]:
    kept = read_kept(folder / "gates.csv", LAYOUT)
    assert kept.shape == (6,) and kept.any()
    return [kept.numpy()]


MASKS = torch.eye(4, 6, dtype=torch.bool)


def make_scores(folder: Path) -> list[str]:
    torch.manual_seed(0)
    cache = MaskCache(folder, "key")
    cache.save(MASKS, None, Scores(torch.rand(4, 9) < 0.5, torch.rand(4, 9)))
    return ["key.scores"]


def read_scores(folder: Path) -> list[np.ndarray]:
    """What is known, where something is; the rest from a whole file."""
    whole = folder.with_name(f"{folder.name}-whole")
    whole.mkdir(exist_ok=True)
    make_scores(whole)
    _, right, losses = MaskCache(whole, "key").load(MASKS, None, 9)
    known, ours_right, ours_losses = MaskCache(folder, "key").load(MASKS, None, 9)
    right[known], losses[known] = ours_right[known], ours_losses[known]
    return [right.numpy(), losses.numpy()]


KINDS = {
    "tar.gz": archive("a.tar.gz", write_tar),
    "tar with its sum": archive("a.tar", write_tar),
    "zip": archive("a.zip", write_zip),
    "cache of images": Kind(make_cache, read_cache),
    "weights": Kind(make_pair, weights("m.safetensors")),
    "weights in a checkpoint": Kind(make_checkpoint, weights("m.ckpt")),
    "checkpoint": Kind(make_checkpoint, read_checkpoint),
    "cache of masks": Kind(make_scores, read_scores),
    "table of heads": Kind(
        make_table, read_table, same=False
    ),  # people edit tables: another 0 or 1 is no damage
}


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_answered_in_a_line_or_changes_nothing(tmp_path, name, caplog):
    caplog.set_level(logging.CRITICAL)
    kind, rng = KINDS[name], np.random.default_rng(0)
    whole = tmp_path / "whole"
    whole.mkdir()
    files = kind.make(whole)
    # reading leaves caches behind
    right = kind.read(Path(shutil.copytree(whole, tmp_path / "right")))
    noticed = 0
    for number in range(BUDGET):
        folder = Path(shutil.copytree(whole, tmp_path / str(number)))
        path, damage = folder / files[number % len(files)], DAMAGES[rng.integers(len(DAMAGES))]
        data = bytearray(path.read_bytes())
        damage(data, rng)
        path.write_bytes(data)
        try:
            found = kind.read(folder)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 600, (
                number,
                damage.__name__,
                str(error),
            )
            noticed += 1
        else:
            for ours, theirs in zip(found, right, strict=True) if kind.same else ():
                np.testing.assert_array_equal(
                    ours, theirs, err_msg=f"{number} {damage.__name__} {path.name}"
                )
        shutil.rmtree(folder)
    assert noticed > BUDGET / 4 or "cache" in name  # a cache that is damaged is made again
