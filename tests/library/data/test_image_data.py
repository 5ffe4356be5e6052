"""ImageData: disjoint stratified splits, the right transform in each stage, ranks, limits; the yamls construct it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
import torchvision
from hydra.utils import instantiate
from omegaconf import OmegaConf

import runs
from data_sets import Noise, class_files, write_flowers, write_pets, write_zip
from mhprobe.data.augment import Augment
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.errors import UserError

CONF = Path(__file__).parents[3] / "conf"


def noise(cache_dir, sizes=(60, 31), **options) -> ImageData:
    return ImageData(Noise(sizes), **{"batch_size": 8, "cache_dir": cache_dir, **options})


def test_train_and_val_share_no_image_and_keep_class_shares(tmp_path):
    data = noise(tmp_path, val_fraction=0.2)
    train, val = data.splits["train"], data.splits["val"]
    assert data.sizes == {"train": 48, "val": 12, "test": 31}
    np.testing.assert_array_equal(
        np.sort(np.concatenate([train.positions, val.positions])), np.arange(60)
    )
    assert np.bincount(val.labels).tolist() == [4, 4, 4]
    assert not np.array_equal(
        noise(tmp_path, val_fraction=0.2, seed=1).splits["val"].positions, val.positions
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_memory_is_pinned_where_the_run_is_on_a_gpu_not_where_there_is_one(
    device, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    data = noise(tmp_path)
    data.trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device(device)), global_rank=0, world_size=1
    )
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        assert loader.pin_memory == (device == "cuda")
    assert (
        next(data.batches("test")).images.device.type == "cpu"
    )  # a walk over a split knows its own device


def test_limits_cut_each_split_and_keep_class_shares(tmp_path):
    data = noise(tmp_path, limit_train=9, limit_val=3, limit_test=6)
    assert data.sizes == {"train": 9, "val": 3, "test": 6}
    assert all(
        (np.bincount(images.labels) == len(images) // 3).all() for images in data.splits.values()
    )
    whole = noise(tmp_path)
    assert set(data.splits["train"].positions) <= set(whole.splits["train"].positions)
    assert noise(tmp_path, limit_test=1000).sizes["test"] == 31


def test_runs_with_other_seeds_keep_the_same_test_images(tmp_path):
    """So that their numbers on some of the test images can be compared image by image."""
    one, other = (
        noise(tmp_path, seed=seed, limit_train=9, limit_val=3, limit_test=6) for seed in (0, 1)
    )
    assert one.splits["test"].positions.tolist() == other.splits["test"].positions.tolist()
    for split in ("train", "val"):  # the control: these do differ
        assert one.splits[split].positions.tolist() != other.splits[split].positions.tolist()


def test_a_share_of_the_validation_images_can_be_set_aside(tmp_path):
    whole, some = noise(tmp_path), noise(tmp_path, calibration_fraction=0.4)
    assert "calibration" not in whole.sizes and whole.set_aside is None
    assert some.sizes["calibration"] == round(0.4 * whole.sizes["val"])
    parts = [set(some.splits[split].positions.tolist()) for split in ("val", "calibration")]
    assert not parts[0] & parts[1] and parts[0] | parts[1] == set(
        whole.splits["val"].positions.tolist()
    )
    assert some.splits["train"].positions.tolist() == whole.splits["train"].positions.tolist()
    assert (
        some.set_aside
        == noise(tmp_path, calibration_fraction=0.4, limit_test=5).set_aside
        is not None
    )
    assert some.images_of("train", "val") != whole.images_of("train", "val")
    assert noise(tmp_path, calibration_fraction=0.4, limit_calibration=2).sizes["calibration"] == 2
    for share, words in (
        (0.01, "are 0, expected at least one"),
        (1.0, "from 0 to below 1"),
        ("a", "got 'a'"),
    ):
        with pytest.raises(UserError, match=words):
            _ = noise(tmp_path, calibration_fraction=share).splits


def test_the_fingerprint_names_pixels_and_splits(tmp_path):
    same = [
        noise(tmp_path / where, batch_size=size).fingerprint for where, size in (("a", 8), ("b", 3))
    ]
    assert same[0] == same[1]
    others = [
        {"seed": 1},
        {"val_fraction": 0.2},
        {"limit_test": 5},
        {"limit_train": 5},
        {"sizes": (60, 30)},
    ]
    assert len(
        {same[0], *(noise(tmp_path / "a", **other).fingerprint for other in others)}
    ) == 1 + len(others)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_batches_cover_a_split_exactly_over_the_ranks(tmp_path, split, world_size):
    index, labels = [], []
    for rank in range(world_size):
        data = noise(tmp_path, augment=Augment(2, flip=True))
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world_size)
        for batch in data.batches(split):
            index += batch.index[batch.valid].tolist()
            labels += batch.labels[batch.valid].tolist()
            assert batch.images.dtype == torch.float32
            # evaluation: the stored image, scaled to [-1, 1], not augmented
            stored = np.asarray(data.splits[split].cached.images)[
                data.splits[split].rows[batch.index]
            ]
            np.testing.assert_allclose(batch.images, stored / 127.5 - 1, atol=1e-6)
    assert sorted(index) == list(range(data.sizes[split]))
    np.testing.assert_array_equal(data.splits[split].labels[index], labels)


class Watcher(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[str, list] = {"train": [], "val": [], "test": []}

    def training_step(self, batch, batch_idx):
        self.seen["train"].append((self.current_epoch, batch))
        return self.weight * 1.0

    def validation_step(self, batch, batch_idx):
        self.seen["val"].append((self.current_epoch, batch))

    def test_step(self, batch, batch_idx):
        self.seen["test"].append((self.current_epoch, batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_lightning_gets_augmented_training_and_plain_evaluation_batches(tmp_path):
    data = noise(tmp_path, augment=Augment(2, flip=True, mixup=0.5))
    data.spec = InputSpec((16, 16), (0.4,) * 3, (0.2,) * 3)
    model = Watcher()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data, verbose=False)
    for split, steps in model.seen.items():
        for epoch, batch in steps:
            assert batch.images.shape[1:] == (3, 16, 16)
            if (
                split == "train"
            ):  # what is mixed comes with the image before the first: here the last, of the only rank
                parts = {name: getattr(batch, name) for name in ("labels", "index", "valid")}
                batch = batch._replace(
                    **{name: torch.cat([part[-1:], part]) for name, part in parts.items()}
                )
            where = data.splits[split].rows[batch.index]
            raw = batch._replace(
                images=torch.from_numpy(data.splits[split].cached.images[where]), targets=None
            )
            expected = data.transform(raw, train=split == "train", epoch=epoch)
            torch.testing.assert_close(batch.images, expected.images, rtol=0, atol=0)
            assert (batch.targets is not None) == (split == "train")
    assert sorted(i for _, batch in model.seen["test"] for i in batch.index.tolist()) == list(
        range(31)
    )


@pytest.mark.parametrize(
    ("size", "most"),
    [((8, 8), 500), ((32, 32), 500), ((112, 112), 79), ((224, 112), 39), ((1400, 1000), 1)],
)
def test_batches_of_tests_hold_a_million_pixels_unless_a_number_is_given(tmp_path, size, most):
    data, asked = noise(tmp_path), noise(tmp_path, eval_batch_size=40)
    data.spec = asked.spec = InputSpec(size)
    assert data.eval_batch_size == most and (most == 1 or most * size[0] * size[1] <= 1e6)
    assert asked.eval_batch_size == 40


@pytest.mark.parametrize(
    "options, line",
    [
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        (
            {"eval_batch_size": 0},
            "eval_batch_size: expected a whole number of at least 1, or None for a million pixels, "
            "got 0",
        ),
        ({"batch_size": "many"}, "batch_size: expected a whole number of at least 1, got 'many'"),
        ({"limit_train": 0}, "limit_train: expected a whole number of at least 1, got 0"),
        ({"num_workers": -1}, "num_workers: expected a whole number of at least 0, got -1"),
        ({"val_fraction": 1.5}, "val_fraction: expected a share between 0 and 1, got 1.5"),
        (
            {"val_fraction": 0.001},
            "val_fraction: 0.001 of 60 training images leaves 0 to validate and 60 to train",
        ),
        ({"sizes": (3, 3)}, "every class needs one to train on"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, options, line):
    with pytest.raises(UserError, match=line):
        noise(tmp_path, **options).setup()


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (CONF / "data").glob("*.yaml") if path.stem != "base")
)
def test_every_data_yaml_constructs_its_data(tmp_path, name, monkeypatch):
    settings = runs.composed("train", f"data={name}", f"cache_dir={tmp_path}", "seed=3").data
    assert (settings.seed, settings.cache_dir) == (3, str(tmp_path))
    expected = {"train": 18, "val": 2, "test": 4}
    if "root" not in OmegaConf.load(CONF / "data" / f"{name}.yaml"):  # what is made or shipped
        expected = {"train": 36, "val": 4, "test": 8} if "train" in settings.source else None
    elif name == "pets":
        settings.root = str(write_pets(tmp_path, each=10))
        expected = {"train": 18, "val": 2, "test": 20}
    elif name == "flowers":
        monkeypatch.setattr(
            torchvision.datasets.Flowers102, "_check_integrity", lambda self: True
        )  # sums of the real
        settings.root = str(write_flowers(tmp_path, each=5))
        expected = {"train": 18, "val": 2, "test": 10}
    elif name == "photos":
        settings.root = str(write_zip(tmp_path / "set.zip", class_files(train=10, test=2)))
        expected = {"train": 6, "val": 6, "test": 12}  # masks are not chosen on a single image
    else:
        settings.root = str(write_zip(tmp_path / "set.zip", class_files(train=10, test=2)))
    if "stored_size" in settings.source:
        settings.source.stored_size = 40
    if "train" in settings.source:  # as many as one likes
        settings.source.train, settings.source.test = 40, 8
    data = instantiate(settings)
    assert isinstance(data, ImageData) and isinstance(data.augment, Augment)
    data.prepare_data()
    assert data.sizes == expected or (
        expected is None and all(data.sizes.values())
    )  # shipped: as many as there are
    if data.unlabelled:
        with pytest.raises(UserError, match="photos has no labels, and training needs them"):
            data.train_dataloader()
    else:
        data.transform(next(iter(data.train_dataloader())), train=True)


def test_digits_are_never_mirrored():
    assert runs.composed("train", "data=digits").data.augment.flip is False


def test_chosen_images_are_stored_as_bytes_and_walked_in_their_order(tmp_path):
    made = noise(tmp_path, batch_size=4)
    stored, positions = made.stored("test", range(6)), torch.arange(6)
    assert (
        stored.images.dtype is torch.uint8
        and stored.valid.all()
        and torch.equal(stored.index, positions)
    )
    assert torch.equal(
        torch.cat([batch.index for batch in made.batches("test", images=positions)]), positions
    )


def test_so_many_images_are_taken_evenly_from_a_split(tmp_path):
    """Archives of class folders are in their classes' order: the first 1,000 test images of CIFAR-10 are airplanes."""
    made = noise(tmp_path, batch_size=4)
    even = [2, 7, 12, 18, 23, 28]  # the middles of six parts of 31
    batches = list(made.batches("test", images=6))
    assert torch.cat([batch.index[batch.valid] for batch in batches]).tolist() == even
    some = made.some("test", 6)
    assert torch.equal(some.images, torch.cat([batch.images[batch.valid] for batch in batches]))
    assert torch.equal(some.labels, made.stored("test", even).labels)
    assert len(made.some("test", 10**6).images) == made.sizes["test"]
    assert [
        at for batch in made.batches("test", images=100) for at in batch.index.tolist()
    ] == list(range(31))
