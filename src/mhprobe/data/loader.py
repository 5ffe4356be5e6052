"""Batches in an order that is a pure function of (seed, epoch), sharded by rank, resumable at every step.

On resume Lightning hands the loader its state back before it calls iter() and sets the epoch, so
both are read only when the first batch is asked for.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from mhprobe.data.batch import Batch
from mhprobe.data.cache import CachedSplit
from mhprobe.data.draws import fold, stratified
from mhprobe.errors import UserError

log = logging.getLogger(__name__)
FACTS = (
    "num_images",
    "batch_size",
    "world_size",
    "seed",
)  # under which (epoch, batches taken) means the same images


class Picks(NamedTuple):
    """Images of a batch: positions in the split, and True for each that counts.

    first: as in ``Batch``.
    """

    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index
    valid: np.ndarray
    first: np.int64 | None = None


Opened = tuple[CachedSplit, np.ndarray]  # decoded images, and the rows of those that are meant


class Images(Dataset[Batch]):
    """Images at ``positions`` of a source's split.

    listed: labels of the whole split, and its decoded images where ``decode`` is None.
    labels: (N,) int64; None for those that are listed.
    decode: gives decoded images and the rows (N,) of these among them; called when the first is read.
    """

    def __init__(
        self,
        listed: CachedSplit,
        positions: np.ndarray,
        labels: np.ndarray | None = None,
        decode: Callable[[], Opened] | None = None,
    ) -> None:
        self.listed, self.positions, self._decode = listed, positions, decode
        self.labels = listed.labels[positions] if labels is None else labels
        self._opened: Opened | None = None

    @property
    def opened(self) -> Opened:
        """The decoded images, and the rows (N,) of these among them; decoded now if need be."""
        if self._opened is None:
            decode = self._decode
            self._opened = (self.listed, self.positions) if decode is None else decode()
        return self._opened

    @property
    def cached(self) -> CachedSplit:
        return self.opened[0]

    @property
    def rows(self) -> np.ndarray:
        return self.opened[1]

    @property
    def digests(self) -> np.ndarray:
        """(N,) uint64, one of each image's pixels."""
        return self.cached.digests[self.rows]

    def __getstate__(self) -> dict[str, Any]:
        self.opened  # noqa: B018  a worker reads what its parent has decoded
        return {**vars(self), "_decode": None}

    def __len__(self) -> int:
        return len(self.positions)

    def limited(self, limit: int | None, seed: int) -> "Images":
        """At most ``limit`` of the images, of every class alike."""
        if limit is None or limit >= len(self):
            return self
        return Images(self.listed, self.positions[stratified(self.labels, limit, seed)])

    def only(self, chosen: np.ndarray, decode: Callable[[], Opened]) -> "Images":
        """The images in these places, (N,), with their labels.

        decode: as of the class; not called where the images of all places are decoded.
        """

        def opened() -> Opened:
            if self._opened is None and self._decode is not None:
                return decode()
            return self.cached, self.rows[chosen]

        return Images(self.listed, self.positions[chosen], self.labels[chosen], opened)

    def __getitem__(self, picks: Picks) -> Batch:
        where, objects = self.rows[picks.index], self.cached.objects
        return Batch(
            images=torch.from_numpy(np.asarray(self.cached.images[where])),
            labels=torch.from_numpy(self.labels[picks.index]),
            index=torch.from_numpy(picks.index),
            valid=torch.from_numpy(picks.valid),
            objects=None if objects is None else torch.from_numpy(np.asarray(objects[where])),
            first=None if picks.first is None else torch.tensor(picks.first),
        )


class EvalOrder(Sampler[Picks]):
    """Images 0 ... N - 1, or the positions ``chosen``, dealt to the ranks in turn.

    Every rank gets equally many, equally large batches, so that collectives stay in step. Where N
    does not divide, images are repeated with ``valid`` False: every image counts once.
    """

    def __init__(
        self, chosen: int | np.ndarray, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.chosen = np.arange(chosen) if isinstance(chosen, int) else chosen
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.per_rank = -(-len(self.chosen) // world_size)

    def __len__(self) -> int:
        return -(-self.per_rank // self.batch_size)

    def __iter__(self) -> Iterator[Picks]:
        mine = np.arange(self.per_rank, dtype=np.int64) * self.world_size + self.rank
        for start in range(0, self.per_rank, self.batch_size):
            index = mine[start : start + self.batch_size]
            yield Picks(self.chosen[index % len(self.chosen)], index < len(self.chosen))


class TrainOrder(Sampler[Picks]):
    """A new permutation each epoch; batch k of all ranks together is the k-th slice of it.

    The remainder is dropped.

    mixed: every batch begins with one image more, not valid: the one before it, cyclically, in the
    batch of all ranks.
    epoch, start: set before iterating; ``start`` batches are skipped.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        mixed: bool = False,
    ) -> None:
        if num_images < world_size:
            raise UserError(
                f"the training split has {num_images} images for {world_size} processes; use fewer."
            )
        if batch_size * world_size > num_images:
            fits = num_images // world_size
            if rank == 0:
                text = "batch_size: %d images on each of %d processes exceed the %d training images: using %d."
                log.warning(text, batch_size, world_size, num_images, fits)
            batch_size = fits
        self.num_images, self.batch_size, self.seed = num_images, batch_size, seed
        self.rank, self.world_size, self.mixed = rank, world_size, mixed
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of a whole epoch, whatever ``start`` is."""
        return self.num_images // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[Picks]:
        generator = torch.Generator().manual_seed(fold(self.seed, self.epoch))
        order = torch.randperm(self.num_images, generator=generator).numpy()
        size, begin = self.batch_size * self.world_size, self.rank * self.batch_size
        mine = np.arange(begin - self.mixed, begin + self.batch_size)
        for batch in range(self.start, len(self)):
            of_all = order[batch * size : (batch + 1) * size]
            yield Picks(of_all[mine], mine >= begin, of_all[0] if self.mixed else None)


class Loader(DataLoader[Batch]):
    """A DataLoader of whole batches.

    pin: keep them in page-locked memory, from which a GPU copies faster.
    """

    def __init__(
        self, images: Images, order: EvalOrder | TrainOrder, num_workers: int = 0, pin: bool = False
    ) -> None:
        self.order = order
        if num_workers:  # which would each wait for the images to be decoded
            _ = images.opened
        super().__init__(
            images,
            sampler=order,
            batch_size=None,  # the sampler's items already are batches
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=pin,
            # it draws a worker seed per epoch: not from the global generator
            generator=torch.Generator(),
        )


class TrainLoader(Loader):
    """Training batches; its state is (epoch, batches taken), so that a resumed run takes the next one."""

    order: TrainOrder
    _epoch = _taken = 0
    _resuming = False

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # a generator: it runs when the first batch is asked for; before that Lightning sets the
        # state and the epoch
        if not (self._resuming and self._epoch == self.order.epoch):
            # a new epoch, also where the state was saved on the last batch of the one before
            self._epoch, self._taken = self.order.epoch, 0
        self._resuming = False
        self.order.start = self._taken
        for batch in super().__iter__():
            self._taken += 1  # before the yield: the state is asked for while the batch is in use
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "taken": self._taken,
            **{name: getattr(self.order, name) for name in FACTS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        now = {name: (state.get(name), getattr(self.order, name)) for name in FACTS}
        if changed := [
            f"{name} was {before}, is {after}"
            for name, (before, after) in now.items()
            if before != after
        ]:
            raise UserError(
                "ckpt_path: the run cannot be continued exactly, its training data changed: "
                f"{'; '.join(changed)}. "
                "Resume with the old settings, or start anew from its weights with "
                "weights=<checkpoint>."
            )
        self._epoch, self._taken, self._resuming = state["epoch"], state["taken"], True
