"""Evaluation counts every image once; training repeats and loses none, also when it is cut short at any step."""

from __future__ import annotations

import pickle
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch

from data_sets import Noise
from mhprobe.data.augment import Augment
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.data.cache import open_cache
from mhprobe.data.loader import EvalOrder, Images, Loader, TrainLoader, TrainOrder
from mhprobe.errors import UserError


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Images:
    cached = open_cache(Noise((23, 6)), tmp_path_factory.mktemp("cache"), show=False).splits[
        "train"
    ]
    return Images(cached, np.arange(23)[::-1].copy())


def test_a_batch_holds_the_images_its_indices_name(images):
    whole = np.load(images.cached.folder / "train-images.npy")
    for batch in Loader(images, EvalOrder(23, 5)):
        assert (
            batch.images.dtype == torch.uint8
            and batch.labels.dtype == batch.index.dtype == torch.int64
        )
        np.testing.assert_array_equal(
            batch.images, whole[22 - batch.index]
        )  # positions are reversed
        np.testing.assert_array_equal(batch.labels, (22 - batch.index) % 3)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 200])
@pytest.mark.parametrize("num_images", [1, 2, 7, 101])
def test_evaluation_counts_every_image_once_in_equal_batches(num_images, batch_size, world_size):
    ranks = [
        list(EvalOrder(num_images, batch_size, rank, world_size)) for rank in range(world_size)
    ]
    shapes = [[len(picks.index) for picks in batches] for batches in ranks]
    assert all(shape == shapes[0] for shape in shapes)
    assert all(
        len(EvalOrder(num_images, batch_size, r, world_size)) == len(shapes[0])
        for r in range(world_size)
    )
    seen = np.concatenate([picks.index[picks.valid] for batches in ranks for picks in batches])
    np.testing.assert_array_equal(np.sort(seen), np.arange(num_images))
    everything = np.concatenate([picks.index for batches in ranks for picks in batches])
    assert (
        everything.min() >= 0 and everything.max() < num_images
    )  # padding repeats images that exist
    assert len(everything) - num_images < world_size


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_training_epoch_repeats_no_image_and_ranks_share_it_out(world_size):
    orders = [
        TrainOrder(101, 12 // world_size, seed=4, rank=r, world_size=world_size)
        for r in range(world_size)
    ]
    epochs = []
    for epoch in (0, 1):
        for order in orders:
            order.set_epoch(epoch)
        batches = [
            np.sort(np.concatenate([p.index for p in step])) for step in zip(*orders, strict=True)
        ]
        assert len(batches) == len(orders[0]) == 101 // 12
        assert len(np.unique(np.concatenate(batches))) == 8 * 12
        epochs.append(batches)
    assert not np.array_equal(epochs[0][0], epochs[1][0])
    # the same images make each step, whatever the number of ranks
    alone = TrainOrder(101, 12, seed=4)
    for expected, batch in zip(alone, epochs[0], strict=True):
        np.testing.assert_array_equal(np.sort(expected.index), batch)


def test_a_batch_larger_than_the_set_is_cut_to_it_and_said_once(caplog):
    batches = [list(TrainOrder(7, 64, seed=0, rank=rank, world_size=2)) for rank in range(2)]
    assert [len(rank) for rank in batches] == [1, 1]
    assert [len(rank[0].index) for rank in batches] == [3, 3]
    assert [r.getMessage() for r in caplog.records] == [
        "batch_size: 64 images on each of 2 processes exceed the 7 training images: using 3."
    ]
    with pytest.raises(UserError, match="1 images for 2 processes; use fewer"):
        TrainOrder(1, 4, seed=0, world_size=2)


@pytest.mark.parametrize(
    "options", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}], ids=str
)
def test_mixed_images_are_the_same_on_any_number_of_ranks(tmp_path, options, monkeypatch):
    """The partner of a rank's first image is on another rank, and all ranks draw one share, one box."""

    def steps(world: int) -> list[list[Batch]]:
        data = ImageData(
            Noise((40, 6)), 12 // world, augment=Augment(**options), cache_dir=tmp_path
        )
        ranks = []
        for rank in range(world):
            monkeypatch.setattr(data, "_rank_and_world", lambda rank=rank: (rank, world))
            ranks.append([data.transform(batch, train=True) for batch in data.train_dataloader()])
        return [list(step) for step in zip(*ranks, strict=True)]

    (alone,), *_ = steps(1)
    assert len(alone.images) == 12 and alone.targets.shape == (12, 3) and alone.valid.all()
    for world in (2, 3):
        step, *_ = steps(world)
        for name in ("images", "targets", "labels", "index", "valid"):
            together = torch.cat([getattr(batch, name) for batch in step])
            assert torch.equal(together, getattr(alone, name)), (world, name)
        assert not torch.equal(
            step[0].targets[0], step[0].targets[0].round()
        )  # the first image is blended, too


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_leaves_the_global_generator_alone_and_workers_change_nothing(images, num_workers):
    state = torch.get_rng_state()
    loader = TrainLoader(images, TrainOrder(23, 5, seed=0), num_workers)
    taken = [batch.index.tolist() for batch in loader]
    loader._iterator = None
    assert torch.equal(torch.get_rng_state(), state)
    assert taken == [picks.index.tolist() for picks in TrainOrder(23, 5, seed=0)]


def test_a_pickled_split_carries_its_path_not_its_images(images):
    images.cached.images  # noqa: B018  mapped by now
    assert len(pickle.dumps(images.cached)) < 500
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(images.cached)).images, images.cached.images
    )


def test_other_data_cannot_be_resumed(images):
    state = TrainLoader(images, TrainOrder(23, 5, seed=0)).state_dict()
    with pytest.raises(UserError, match="batch_size was 5, is 4; world_size was 1, is 2"):
        TrainLoader(images, TrainOrder(23, 4, seed=0, world_size=2)).load_state_dict(state)


# the whole of it, in Lightning's fit loop

STEPS_PER_EPOCH, EPOCHS = 3, 3


class Recorder(L.LightningModule):
    """Writes down what every training step was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.steps: list[tuple] = []

    def training_step(self, batch, batch_idx):
        pixels = batch.images.double().sum((1, 2, 3)).tolist()  # tells augmentations apart
        self.steps.append((self.current_epoch, batch_idx, batch.index.tolist(), pixels))
        return self.weight * 1.0

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Killed(Exception):
    pass


class SaveAndDie(L.Callback):
    """Checkpoints at the ``at``-th call of one hook, then dies."""

    def __init__(self, hook: str, at: int, path: Path) -> None:
        self.left, self.path = at, path
        setattr(self, hook, self._hit)

    def _hit(self, trainer, *_):
        self.left -= not trainer.sanity_checking
        if self.left == 0:
            trainer.save_checkpoint(self.path)
            raise Killed


def fit(cache_dir, num_workers=0, die=None, ckpt_path=None, **trainer) -> list[tuple]:
    data = ImageData(
        Noise((40, 5), pixels=12),
        12,
        num_workers=num_workers,
        cache_dir=cache_dir,
        augment=Augment(2, flip=True),
    )
    assert data.sizes["train"] == 36
    model = Recorder()
    run = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[die] if die else None,
        **trainer,
    )
    try:
        run.fit(model, datamodule=data, ckpt_path=ckpt_path)
    except Killed:
        assert die is not None
    else:
        assert die is None
    return model.steps


KILLS = [
    *(("on_train_batch_end", step) for step in range(1, STEPS_PER_EPOCH * EPOCHS + 1)),
    *(("on_validation_end", epoch) for epoch in range(1, EPOCHS + 1)),
    *(("on_train_epoch_end", epoch) for epoch in range(1, EPOCHS + 1)),
]


@pytest.mark.parametrize(
    "trainer", [{}, {"val_check_interval": 2}, {"limit_train_batches": 2}], ids=str
)
def test_a_run_killed_at_any_step_goes_on_with_the_very_images_of_the_uninterrupted_one(
    tmp_path, trainer
):
    whole = fit(tmp_path, **trainer)
    per_epoch = trainer.get("limit_train_batches", STEPS_PER_EPOCH)
    assert len(whole) == per_epoch * EPOCHS
    for hook, at in KILLS:
        if hook == "on_train_batch_end" and at > len(whole):
            continue
        before = fit(tmp_path, die=SaveAndDie(hook, at, tmp_path / "last.ckpt"), **trainer)
        after = fit(tmp_path, ckpt_path=tmp_path / "last.ckpt", **trainer)
        assert before + after == whole, (hook, at)
    # the comparison can fail: order and augmentation do change from epoch to epoch
    assert len({str(indices) for _, _, indices, _ in whole}) == len(whole)
    assert len({pixels for *_, batch in whole for pixels in batch}) > 36


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_run_killed_with_workers_prefetching_goes_on_exactly(tmp_path, step):
    whole = fit(tmp_path)
    before = fit(tmp_path, 2, die=SaveAndDie("on_train_batch_end", step, tmp_path / "last.ckpt"))
    after = fit(tmp_path, 2, ckpt_path=tmp_path / "last.ckpt")
    assert before + after == whole
