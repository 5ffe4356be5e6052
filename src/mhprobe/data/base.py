"""ImageData: a source's images, split, loaded and transformed for a model, as Lightning wants them."""

import copy
import functools
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import lightning as L
import numpy as np
import torch

from mhprobe.data.augment import GREY, Augment, normalise, resized
from mhprobe.data.batch import Batch
from mhprobe.data.cache import Cache, NoneReadError, find_cache, open_cache, pixels_key
from mhprobe.data.draws import evenly_spread, fold, stratified
from mhprobe.data.loader import EvalOrder, Images, Loader, Opened, Picks, TrainLoader, TrainOrder
from mhprobe.data.source import Scan, Source
from mhprobe.errors import UserError, quoted, whole_number
from mhprobe.io.readings import Reading, log_readings

log = logging.getLogger(__name__)

SPLITS = {
    "train": "train",
    "validation": "val",
    "test": "test",
}  # by what options of a selection call them
ALL = (*SPLITS.values(), "calibration")
OF_SOURCE = {split: "test" if split == "test" else "train" for split in ALL}
AHEAD = {"fit": ALL, "validate": ("val",), "test": ("test",)}  # splits that Lightning will read
FEW_WORKERS = 8  # that any machine can start


@dataclass(frozen=True)
class InputSpec:
    """Input that a model expects: (height, width), and the mean and deviation per channel of pixels in [0, 1]."""

    size: tuple[int, int]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def drawn_of_each_class(data: "ImageData", split: str, count: int, seed: int) -> np.ndarray:
    """Return places of so many images of a split, (N,), of every class alike; of all if it has no more."""
    labels = data.splits[split].labels
    return np.arange(len(labels)) if count >= len(labels) else stratified(labels, count, seed)


class ImageData(L.LightningDataModule):
    """Use with ``Trainer(use_distributed_sampler=False)``: the loaders shard by rank themselves.

    source: where the images come from. root: what the source reads (the yaml hands it on).
    batch_size, eval_batch_size: images per process in training, and in tests and probes. The latter
        is by default 500, or as many as have a million pixels together: 79 of 112 px, 19 of 224 px.
    val_fraction: share of the source's train images, stratified, for validation.
    calibration_fraction: share of the
        validation images, stratified, that only promises look at: the split "calibration".
    num_workers: processes that load. A batch is one gather from a memory map, so they cost more
    than they hide.
    seed: of the split, the order and the augmentation. augment: of training images; None for none.
    cache_dir: folder of decoded images.
    limit_train, limit_val, limit_test, limit_calibration: keep only so many images (stratified),
        for quick runs. Which test images are kept does not depend on ``seed``.
    spec: input that the model expects, set before use; by default the stored size, scaled to [-1,
    1].
    """

    spec: InputSpec | None = None
    options_in = ""  # what stands in front of the source's options where a user gives them
    _classes: tuple[str, ...] = ()  # of the network that labels the images, where nobody else has

    def __init__(  # noqa: PLR0913 -- its arguments are the keys of conf/data/
        self,
        source: Source,
        batch_size: int,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
        val_fraction: float = 0.1,
        seed: int = 0,
        augment: Augment | None = None,
        cache_dir: str | Path = ".cache/mhprobe",
        limit_train: int | None = None,
        limit_val: int | None = None,
        limit_test: int | None = None,
        root: str | Path | None = None,
        calibration_fraction: float = 0.0,
        limit_calibration: int | None = None,
    ) -> None:
        super().__init__()
        self.source, self.root, self.cache_dir = source, root, cache_dir
        self.batch_size = batch_size
        self._eval_batch_size = eval_batch_size
        self.num_workers, self.seed = num_workers, seed
        self.val_fraction, self.calibration_fraction = val_fraction, calibration_fraction
        self.augment = augment or Augment()
        self._read: dict[str, Reading] = {}  # what was told, by what was read
        self._seen: dict[str, np.ndarray] = {}  # digests of decoded images, by split
        self._doubles_told = False
        self.limits = {
            "train": limit_train,
            "val": limit_val,
            "test": limit_test,
            "calibration": limit_calibration,
        }
        whole_number("num_workers", num_workers)
        whole_number("batch_size", batch_size, 1)
        whole_number("eval_batch_size", eval_batch_size, 1, none="a million pixels")
        for split, limit in self.limits.items():
            whole_number(f"limit_{split}", 1 if limit is None else limit, 1)
        if num_workers > (most := max(FEW_WORKERS, 2 * (os.cpu_count() or 1))):
            raise UserError(
                f"num_workers: expected at most {most}, two for each of this machine's processors, "
                "got "
                f"{num_workers}; each is a process with a copy of torch. 0 is usually the fastest."
            )
        if not isinstance(val_fraction, float) or not 0 < val_fraction < 1:
            raise UserError(
                f"val_fraction: expected a share between 0 and 1, got {quoted(val_fraction)}."
            )
        if not isinstance(share := calibration_fraction, int | float) or not 0 <= share < 1:
            raise UserError(
                f"calibration_fraction: expected a share from 0 to below 1, got {quoted(share)}."
            )

    @functools.cached_property
    def _key(self) -> dict[str, Any]:
        return pixels_key(self.source)

    @functools.cached_property
    def _scan(self) -> Scan:
        return Scan(self.source)

    @functools.cached_property
    def _listed(self) -> Cache:
        """Labels of all images, without the images."""
        where = (self.source, self.cache_dir)
        return open_cache(*where, wanted={}, key=self._key, scan=self._scan)

    @functools.cached_property
    def splits(self) -> dict[str, Images]:
        """The images of "train", "val" and "test", and of "calibration" where some are set aside.

        Those of a split are decoded when the first of them is read, as many as its limit leaves.
        """
        cached = self._listed.splits
        labels = cached["train"].labels
        val = stratified(labels, round(self.val_fraction * len(labels)), self.seed)
        train = np.setdiff1d(np.arange(len(labels)), val)
        if not len(val) or len(np.unique(labels[train])) < len(np.unique(labels)):
            raise UserError(
                f"val_fraction: {self.val_fraction} of {len(labels)} training images leaves "
                f"{len(val)} to "
                f"validate and {len(train)} to train on; every class needs one to train on. Change "
                "it or add images."
            )
        aside = val[stratified(labels[val], round(self.calibration_fraction * len(val)), self.seed)]
        if self.calibration_fraction and not 0 < len(aside) < len(val):
            raise UserError(
                f"calibration_fraction: {self.calibration_fraction} of {len(val)} validation "
                "images are "
                f"{len(aside)}, expected at least one and not all. Change it, or raise "
                "val_fraction."
            )
        whole = {
            "train": Images(cached["train"], train),
            "val": Images(cached["train"], np.setdiff1d(val, aside)),
            "test": Images(cached["test"], np.arange(len(cached["test"].labels))),
            **({"calibration": Images(cached["train"], aside)} if len(aside) else {}),
        }
        seeds = {
            split: self.seed if split != "test" else 0 for split in whole
        }  # runs with other seeds test alike
        if self._listed.may_lack:
            return {split: self._readable(split, of, seeds[split]) for split, of in whole.items()}
        limited = {
            split: images.limited(self.limits[split], seeds[split])
            for split, images in whole.items()
        }
        return {
            split: Images(
                images.listed,
                images.positions,
                decode=functools.partial(self._decode, split, images.positions, images is all_of),
            )
            for (split, images), all_of in zip(limited.items(), whole.values(), strict=True)
        }

    def _readable(self, split: str, images: Images, seed: int) -> Images:
        """Decode as many of the images as the limit leaves, others in the places of those that cannot be read."""
        of, limit = OF_SOURCE[split], self.limits[split]
        count = enough = len(images) if limit is None else min(limit, len(images))
        where = (self.source, self.cache_dir)
        while True:
            asked = images.limited(count, seed).positions
            last = count == len(images)
            try:
                cache = open_cache(*where, wanted={of: asked}, key=self._key, scan=self._scan)
            except NoneReadError:
                if last:
                    raise
                count = min(count + enough, len(images))
                continue
            decoded = cache.splits[of]
            if last or len(decoded.read) == enough:
                break
            count = min(count + enough - len(decoded.read), len(images))
        self._tell(cache)
        self._tell_of_doubles(split, decoded.digests)
        rows = np.arange(len(decoded.read))
        found = Images(images.listed, decoded.read, decode=lambda: (decoded, rows))
        _ = found.opened
        return found

    def _decode(self, split: str, positions: np.ndarray, unlimited: bool) -> Opened:
        """Open the decoded images at ``positions`` of the source's split, which are decoded if need be."""
        of, listed = OF_SOURCE[split], self._listed
        if of in listed.decoded:
            return listed.splits[of], positions
        every = np.arange(len(listed.splits[of].labels))
        # with all training images those of any seed are there
        whole = unlimited and split in ("train", "test")
        where = (self.source, self.cache_dir)
        cache = find_cache(*where, {of: every}, positions, self._key) if not whole else None
        rows = positions
        if cache is None:
            wanted = {of: every if whole else positions}
            cache = open_cache(*where, wanted=wanted, key=self._key, scan=self._scan)
            rows = positions if whole else np.arange(len(positions))
        self._tell(cache)
        self._tell_of_doubles(split, cache.splits[of].digests[rows])
        return cache.splits[of], rows

    @property
    def input_spec(self) -> InputSpec:
        """Input that batches are made for: ``spec``, or the stored size scaled to [-1, 1]."""
        halves = (0.5,) * self.channels
        return self.spec or InputSpec(self.stored_size, halves, halves)

    @property
    def eval_batch_size(self) -> int:
        """Images of a batch in tests and probes."""
        return self._eval_batch_size or max(
            1, min(500, 1_000_000 // math.prod(self.input_spec.size))
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Images per split."""
        return {split: len(images) for split, images in self.splits.items()}

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._listed.class_names or self._classes

    @property
    def unlabelled(self) -> bool:
        return not self._listed.class_names

    def refuse_unlabelled(self, what: str) -> None:
        """UserError where there are no labels, which ``what`` needs."""
        if self.unlabelled:
            raise UserError(
                f"data: {self.source.name} has no labels, and {what} needs them; expected images "
                "in class folders "
                f"(data=image_folder)."
            )

    # and not inference mode: some models put biases by, which are asked for slopes later
    @torch.no_grad()
    def label_by(
        self, model: torch.nn.Module, class_names: Sequence[str], device: torch.device | str = "cpu"
    ) -> None:
        """Give every image the class of the largest logit of ``model``, in eval mode.

        UserError for one not finite.
        """
        self._classes = tuple(class_names)
        for split, images in self.splits.items():
            classes = np.zeros(len(images), dtype=np.int64)
            for batch in self.batches(split, device):
                logits = model(batch.images)
                if not bool(logits.isfinite().all()):
                    raise UserError(
                        f"data: the network gives NaN or infinite logits to images of {split}, so "
                        "it cannot say their "
                        f"classes. Check its weights and the precision."
                    )
                classes[batch.index.cpu().numpy()] = logits.argmax(1).cpu().numpy()
            images.labels = classes

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def stored_size(self) -> tuple[int, int]:
        """(height, width) of the decoded images."""
        return self._listed.size

    def _named(self, cache: Cache) -> list[Reading]:
        """Readings of the source, with its options as the user calls them."""
        return [
            reading._replace(option=reading.option and f"{self.options_in}{reading.option}")
            for reading in cache.readings
        ]

    @property
    def channels(self) -> int:
        """Channels of the stored images."""
        return self._listed.channels

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that name the test images, and the labels and which images are in each split.

        It asks for no training or validation image, so that none is decoded for it: ``images_of``
        names the pixels of any split.
        """
        digest = hashlib.sha256(self.images_of("test").encode())
        for split, cached in self._listed.splits.items():
            digest.update(split.encode() + cached.labels.astype("<i8").tobytes())
        for split in SPLITS.values():
            digest.update(split.encode() + self.splits[split].positions.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    @property
    def files(self) -> str:
        """16 hex digits that name the files as they lie here; other files, or the same elsewhere, have others."""
        return hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def set_aside(self) -> str | None:
        """The fingerprint of the images that are set aside for promises; None where there are none."""
        return self.images_of("calibration") if "calibration" in self.splits else None

    def images_of(self, *splits: str) -> str:
        """The fingerprint of these splits, by which results tell on which images heads were chosen or tested.

        It is of the pixels, the labels, the names of the classes and the places in the source.
        """
        names = [self._listed.class_names, self._listed.size, self.channels]
        digest = hashlib.sha256(json.dumps(names).encode())
        for split in splits:
            images = self.splits[split]
            labels = images.listed.labels[images.positions]
            for part, kind in ((images.positions, "<i8"), (labels, "<i8"), (images.digests, "<u8")):
                digest.update(part.astype(kind).tobytes())
            digest.update(split.encode())
        return digest.hexdigest()[:16]

    def of_source(self, source: Source) -> Self:
        """Return a copy with the same settings, for the images of another source."""
        other = copy.copy(self)
        other.source = source
        other._read = dict(self._read) if source is self.source else {}
        other._seen = {}
        other._doubles_told = False
        for name, attribute in vars(ImageData).items():
            if isinstance(attribute, functools.cached_property):
                vars(other).pop(name, None)
        return other

    def limited(self, **limits: int | None) -> Self:
        """Return a copy with other limits, by split; None: all of its images."""
        other = self.of_source(self.source)
        other.limits = {**self.limits, **limits}
        return other

    def only(self, split: str, chosen: Sequence[int] | np.ndarray) -> Self:
        """Return a copy with the images of a split in these places, (N,): no other of it is decoded.

        Their ``index`` counts from 0. With as many as the split has, the data as they are.
        """
        places, images = np.asarray(chosen), self.splits[split]
        if len(places) == len(images):
            return self
        other = copy.copy(self)
        decode = functools.partial(other._decode, split, images.positions[places], False)
        vars(other).pop("fingerprint", None)
        vars(other)["splits"] = {**self.splits, split: images.only(places, decode)}
        return other

    @property
    def readings(self) -> dict[str, Reading]:
        """Ways in which the images were interpreted, by what was read; of images those decoded so far."""
        read = {reading.what: reading for reading in self._named(self._listed)} | self._read
        stored, seen = self.stored_size, self.input_spec.size
        form = f"the middle of what is stored, {stored[1]} x {stored[0]} pixels"
        scaled = f"{form}, as {seen[1]} x {seen[0]}" if seen != stored else form
        size = {"size": Reading("size", scaled, "the network's")}
        if self.channels not in (1, 3):
            part = "the first three" if self.channels > 3 else "their mean"
            shown = f"{self.channels} channels; pictures show {part}"
            size["colours"] = Reading("colours", shown, "the files'")
        elif len(self.input_spec.mean) == 1 and self.channels == 3:
            size["colours"] = Reading("colours", GREY, "since the network takes one channel")
        return {**read, **size}

    def list_images(self) -> None:
        """Find the images and their labels without decoding any; say how they are interpreted."""
        self._tell(self._listed)
        _ = self.splits

    def prepare_data(self) -> None:
        """Decode the images, or check those that were decoded before; say how they are interpreted.

        For a trainer those that it will read; otherwise those of all splits.
        """
        self.list_images()
        trainer = self.trainer
        splits = ALL if trainer is None else AHEAD.get(getattr(trainer.state.fn, "value", ""), ALL)
        for split in splits:
            if split in self.splits:
                _ = self.splits[split].opened

    def _tell(self, cache: Cache) -> None:
        """Log how images were interpreted, what was not told before."""
        read = {reading.what: reading for reading in self._named(cache)}
        new = [reading for what, reading in read.items() if self._read.get(what) != reading]
        self._read |= read
        log_readings(new, log, f"data: {self.source.name}")

    def _tell_of_doubles(self, split: str, digests: np.ndarray) -> None:
        """Warn of test images that are training images, too, once both are decoded."""
        self._seen[split] = digests
        ours = self._seen.get("test")
        theirs = [of for name, of in self._seen.items() if name != "test"]
        if ours is None or not theirs or self._doubles_told:
            return
        if both := len(np.intersect1d(np.concatenate(theirs), ours)):
            self._doubles_told = True
            log.warning(
                "%s: %d test images are training images, too; accuracy on them is no test.",
                self.source.name,
                both,
            )

    def setup(self, stage: str | None = None) -> None:
        _ = self.splits

    def train_dataloader(self) -> TrainLoader:
        self.refuse_unlabelled("training")
        images = self.splits["train"]
        order = TrainOrder(
            len(images),
            self.batch_size,
            fold(self.seed),
            *self._rank_and_world(),
            mixed=bool(self.augment.mixes),
        )
        return TrainLoader(images, order, self.num_workers, self._on_cuda)

    def val_dataloader(self) -> Loader:
        return self._eval_loader("val", self.num_workers, self._on_cuda)

    def test_dataloader(self) -> Loader:
        return self._eval_loader("test", self.num_workers, self._on_cuda)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        assert self.trainer is not None
        return self.transform(batch, train=self.trainer.training, epoch=self.trainer.current_epoch)

    def transform(self, batch: Batch, train: bool, epoch: int = 0) -> Batch:
        """uint8 images -> what the model eats, on the batch's device; augmented if ``train``."""
        spec = self.input_spec
        if train:
            batch = self.augment.distort(
                self.augment.crop_flip(batch, self.seed, epoch), self.seed, epoch
            )
        objects = None if train or batch.objects is None else resized(batch.objects, spec.size)
        batch = batch._replace(
            images=normalise(batch.images, spec.size, spec.mean, spec.std), objects=objects
        )
        return self.augment.mix(batch, self.num_classes, self.seed, epoch) if train else batch

    def batches(
        self,
        split: str,
        device: torch.device | str = "cpu",
        images: torch.Tensor | int | None = None,
    ) -> Iterator[Batch]:
        """This rank's evaluation batches of a split, on ``device``.

        images: positions in the split; or a number, for so many at most, evenly from all of it; or
        None for all.
        """
        if isinstance(images, torch.Tensor) and images.dtype == torch.bool:
            raise UserError(
                "batches: images: expected positions in the split or a number of images, got a "
                "mask."
            )
        chosen = (
            evenly_spread(images, len(self.splits[split])) if isinstance(images, int) else images
        )
        # starting workers for every walk would cost more than the gathers they hide
        for batch in self._eval_loader(
            split, 0, pin=torch.device(device).type == "cuda", chosen=chosen
        ):
            yield self.transform(batch.to(device), train=False)

    def stored(self, split: str, positions: Sequence[int]) -> Batch:
        """The images at these positions as one batch, as they are stored; on every rank the same."""
        return self.splits[split][Picks(np.asarray(positions), np.ones(len(positions), dtype=bool))]

    def some(self, split: str, count: int, device: torch.device | str = "cpu") -> Batch:
        """Return ``count`` images, evenly from all of a split, or all, as one batch, alike on every rank."""
        return self.transform(self.stored(split, self.chosen(split, count)), train=False).to(device)

    def chosen(self, split: str, images: int | Sequence[int]) -> Sequence[int]:
        """Return positions in a split: so many, evenly from all of it, or those given."""
        return evenly_spread(images, self.sizes[split]) if isinstance(images, int) else images

    def _eval_loader(self, split: str, num_workers: int, pin: bool, chosen: Any = None) -> Loader:
        images = self.splits[split]
        chosen = len(images) if chosen is None else np.asarray(chosen)
        return Loader(
            images,
            EvalOrder(chosen, self.eval_batch_size, *self._rank_and_world()),
            num_workers,
            pin,
        )

    @property
    def _on_cuda(self) -> bool:
        """True if Lightning's loops take the batches to a GPU."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _rank_and_world(self) -> tuple[int, int]:
        return (
            (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        )
