"""Files of strangers, damaged or forged in any place: folders of timm and transformers, answers, photographs.

Each is read, or answered in one line; nothing is connected to, no program is started.
FUZZ=2000 python -m pytest tests/framework/faults/test_strangers_files.py: so many of each instead of a few.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from test_by_structure import Bounded, alone, fuzzed, places, plain, replaced  # noqa: F401

from mhprobe.backbones.parts.folders import read_config
from mhprobe.data.base import ImageData
from mhprobe.data.decoding import FORMATS, decode, refuse_bombs
from mhprobe.data.images import ImageFolder
from mhprobe.data.photos import PhotoLoader
from mhprobe.io.tensors import packed
from mhprobe.pages.looking.network import network_to_look_at
from mhprobe.weights.teacher import Recalled

SMALL = dict(img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2)
OF_TIMM = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 0,
    "model_args": SMALL,
    "pretrained_cfg": {"input_size": [3, 16, 16], "mean": [0.5] * 3, "std": [0.5] * 3},
}


def forged(data, whole):
    """A JSON with up to three parts replaced, taken away or added."""
    known = places(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(known))
        added = (
            *place,
            data.draw(st.sampled_from(["auto_map", "url", "checkpoint_path", "depth"])),
        )
        value = data.draw(plain | st.integers(0, 2**40))
        whole = replaced(whole, data.draw(st.sampled_from([place, added])), value)
        known = [place for place in known if place in places(whole)] or [()]
    return whole


@pytest.fixture(scope="module")
def of_timm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timm")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, **SMALL)
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


@fuzzed
@given(data=st.data())
def test_a_folder_of_timm_with_any_setting_replaced(of_timm, data):
    (of_timm / "config.json").write_text(json.dumps(forged(data, OF_TIMM)))
    with Bounded():
        assert isinstance(network_to_look_at(of_timm).model, torch.nn.Module)


@pytest.fixture(scope="module")
def of_transformers(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("transformers")
    sizes = dict(hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = transformers.Dinov2Config(image_size=16, patch_size=8, **sizes)
    transformers.Dinov2Model(config).save_pretrained(folder)
    return folder, json.loads((folder / "config.json").read_text())


PROCESSOR = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "rescale_factor": 0.1,
    "do_rescale": True,
}


@fuzzed
@given(data=st.data())
def test_a_folder_of_transformers_with_any_setting_replaced(of_transformers, data):
    folder, config = of_transformers
    (folder / "config.json").write_text(json.dumps(forged(data, config)))
    nested = data.draw(st.booleans())
    processor = forged(data, {"image_processor": PROCESSOR} if nested else PROCESSOR)
    name = "processor_config.json" if nested else "preprocessor_config.json"
    (folder / name).write_text(json.dumps(processor))
    with Bounded():
        assert all(np.isfinite(network_to_look_at(folder).spec["mean"]))
    (folder / name).unlink()


@fuzzed
@given(text=st.binary(max_size=60) | plain.map(lambda value: json.dumps(value).encode()))
def test_a_configuration_of_any_bytes(text):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(text)
        with Bounded():
            assert isinstance(read_config(Path(folder)), dict)


def encoded() -> dict[str, bytes]:
    """A picture in each format that is read, of 8 bits and of more."""
    colours = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    grey = np.linspace(0, 4095, 120).reshape(12, 10)
    found = {}
    for name in FORMATS:
        file = io.BytesIO()
        Image.fromarray(colours).save(file, name)
        found[name] = file.getvalue()
    for name, values in (("PNG", grey.astype(np.uint16)), ("TIFF", grey.astype(np.float32))):
        file = io.BytesIO()
        Image.fromarray(values).save(file, name)
        found[f"{name} {values.dtype}"] = file.getvalue()
    return found


ENCODED = encoded()


def damaged(data, whole: bytes) -> bytes:
    """Bytes with a few changed, a part cut out or put in, or an end cut off."""
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        # headers are at the beginning: half of the changes go there
        place = data.draw(st.integers(0, len(changed)) | st.integers(0, min(64, len(changed))))
        length = data.draw(st.sampled_from([0, 1, 2, 4, 40]))
        changed[place : place + length] = data.draw(st.binary(max_size=4))
    return bytes(changed[: data.draw(st.just(len(changed)) | st.integers(0, len(changed)))])


@fuzzed
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("name", ENCODED)
def test_a_photograph_with_any_bytes_changed(name, data):
    refuse_bombs()
    with Bounded():
        image = decode(damaged(data, ENCODED[name]), (8, 16), True, "a.png")
        assert image.shape == (8, 16, 3) and image.dtype == np.uint8


@fuzzed
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_a_folder_of_damaged_photographs_gives_those_that_can_be_read(data):
    names = data.draw(st.lists(st.sampled_from([*ENCODED]), min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            (Path(folder) / f"{number}.png").write_bytes(damaged(data, ENCODED[name]))
        (Path(folder) / "whole.png").write_bytes(ENCODED["PNG"])
        with Bounded():
            loader = PhotoLoader(folder, (8, 8), (0.5,) * 3, (0.5,) * 3)
            images = next(iter(loader))
            assert len(images) == len(loader.files) and "whole.png" in loader.files


TABLES = (
    "labels.csv",
    "train.parquet",
    "a/b.tsv",
    "meta.jsonl",
    "labels.xlsx",
    "data.arrow",
    "x.npz",
)


@fuzzed
@given(
    names=st.lists(st.sampled_from([*TABLES, "a/0.png", "1.png"]), min_size=1, max_size=4),
    content=st.binary(max_size=80),
    single=st.booleans(),
)
def test_tables_of_labels_of_any_bytes_are_called_what_they_are(names, content, single):
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_bytes(content)
        root = Path(folder) / names[0] if single else Path(folder)
        with Bounded():
            ImageData(ImageFolder(root), 4, cache_dir=Path(folder) / "cache").list_images()
            raise AssertionError("a table was taken for class folders")


def arrays() -> dict[str, bytes]:
    """Class folders of arrays of 13 channels, by name."""
    numbers = np.random.default_rng(0).integers(0, 256, (8, 8, 13), dtype=np.uint8)
    file = io.BytesIO()
    np.save(file, numbers)
    names = [
        f"{split}/{name}/{n}.npy" for split in ("train", "test") for name in "ab" for n in "01"
    ]
    return dict.fromkeys(names, file.getvalue())


ARRAYS = arrays()


@fuzzed
@given(data=st.data())
def test_class_folders_of_arrays_with_any_bytes_changed(data):
    with tempfile.TemporaryDirectory() as folder:
        for name, whole in ARRAYS.items():
            file = Path(folder) / "data" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(damaged(data, whole) if data.draw(st.booleans()) else whole)
        with Bounded():
            source = ImageFolder(Path(folder) / "data", stored_size=8)
            images = ImageData(source, 4, cache_dir=Path(folder) / "cache", val_fraction=0.5)
            images.list_images()
            batch = next(iter(images.batches("test")))
            assert batch.images.shape[2:] == (8, 8) and bool(batch.images.isfinite().all())


class Small:
    """What ``Recalled`` asks of data: ten training images."""

    sizes: ClassVar = {"train": 10}

    def limited(self, **_):
        return self

    @property
    def splits(self):
        return {"train": type("Images", (), {"digests": np.arange(10, dtype=np.uint64)})}


tensors = st.one_of(
    st.builds(
        lambda shape, dtype: torch.ones(shape).to(dtype),
        st.lists(st.sampled_from([0, 1, 2, 9, 10, 11]), max_size=3),
        st.sampled_from([torch.float32, torch.float16, torch.bool, torch.int64]),
    ),
    st.sampled_from([torch.full((10, 2), value) for value in (torch.nan, torch.inf, 1.0)]),
    st.sampled_from([torch.arange(count) for count in (9, 10, 11)]),
)


@fuzzed
@given(
    answers=st.dictionaries(
        st.sampled_from(["logits", "digests", "answers", ""]), tensors, max_size=3
    ),
    about=st.dictionaries(
        st.sampled_from(["teacher", "images"]), st.sampled_from(["file", "images", ""])
    ),
    cut=st.none() | st.integers(0, 300),
)
def test_answers_of_any_shape_are_taken_refused_or_asked_again(answers, about, cut):
    teacher = Recalled.__new__(Recalled)
    teacher.file, teacher.logits = "file", torch.zeros(0, 2)
    with tempfile.TemporaryDirectory() as folder:
        teacher.shipped = Path(folder) / "m.answers"
        apart = {key: of.clone() for key, of in answers.items()}  # a file keeps none twice
        whole = packed(apart, {"teacher": "file", "images": "images"} | about)
        teacher.shipped.write_bytes(whole[:cut])
        with Bounded():
            logits = teacher._shipped(Small())
            assert logits is None or (logits.shape == (10, 2) and bool(logits.isfinite().all()))
