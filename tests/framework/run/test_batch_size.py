"""data.batch_size=auto: the largest that fits, by a device whose memory is simulated."""

from __future__ import annotations

import gc

import pytest
import torch

import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import batch_size, image_data, networks, trainers
from mhprobe.framework.training.classifier import GatedClassifier


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    cfg = runs.config(
        "train",
        tmp_path_factory.mktemp("auto"),
        "measure=[]",
        "masking=none",
        "data.batch_size=auto",
    )
    data = image_data.build_images(cfg)
    return cfg, data, networks.build_classifier(cfg, data)


@pytest.fixture(autouse=True)
def old_objects():
    """Memory is collected before each try: without those of all libraries, which take half a second to look through."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def memory(monkeypatch):
    """Limits what a training step takes; the list holds the sizes that were tried."""

    def holds(images: int) -> list[int]:
        tried: list[int] = []
        step = GatedClassifier.training_step

        def limited(self, batch, batch_idx):
            tried.append(len(batch.images))
            if len(batch.images) > images:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return step(self, batch, batch_idx)

        monkeypatch.setattr(GatedClassifier, "training_step", limited)
        return tried

    return holds


@pytest.mark.parametrize("holds", [1, 5, 37])
def test_the_largest_batch_that_fits_is_found_and_the_network_is_as_before(parts, memory, holds):
    cfg, data, model = parts
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    tried = memory(holds)
    assert batch_size.largest(cfg, model, data) == holds == data.batch_size
    assert {holds, holds + 1} <= set(tried)
    assert all(
        torch.equal(value, before[name]) for name, value in model.backbone.state_dict().items()
    )


def test_no_batch_is_larger_than_the_images_are_many(parts, memory):
    cfg, data, model = parts
    tried = memory(10**6)
    assert batch_size.largest(cfg, model, data) == 96 == max(tried)


def test_a_device_that_takes_no_image_is_said(parts, memory):
    memory(0)
    with pytest.raises(UserError, match="out of memory with a single image"):
        batch_size.largest(*(parts[0], parts[2], parts[1]))


def test_where_it_cannot_be_found_a_number_is_asked_for(parts, tmp_path):
    cfg, data, model = parts
    report = trainers.open_report(cfg, tmp_path, model.gates.layout)
    with pytest.raises(UserError, match="one GPU"):
        batch_size.settled(cfg, model, data, report)
    with pytest.raises(UserError, match="keeps its batches"):
        batch_size.settled(cfg.but(ckpt_path="last"), model, data, report)
    with pytest.raises(UserError, match=r"mhprobe\.train"):
        image_data.build_images(runs.config("probe", tmp_path, "data.batch_size=auto"))
    number = runs.config("train", tmp_path)
    assert batch_size.settled(number, model, data, report) is number
