"""Base class of all measures: float64 sums over valid images, added over ranks, turned into columns at the end.

Memory does not grow with the number of images. Batch size, order of images and number of ranks do
not change results.
"""

import abc
import contextlib
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric

from mhprobe import ranks
from mhprobe.errors import UserError, refuse_misfits
from mhprobe.heads import HeadBatch, HeadLayout, HeadWeights, Kind, Need
from mhprobe.stats.intervals import REAL, Range

T = TypeVar("T")


class MeasureWarning(UserWarning):
    """Warning that a number should be read with care; the message says which and why."""


class NotOfNeurons(UserError):
    """Error of a measure of heads that was made for a layout with neurons."""


class Meaning(NamedTuple):
    """Meaning of a column's numbers. larger: of a larger one, or "nothing: ..." where it means nothing."""

    label: str
    larger: str


class Sum(NamedTuple):
    """Declaration of a state in the body of a measure's class; see ``sums``."""

    shape: tuple[int | str, ...]
    dtype: torch.dtype


def sums(*shape: int | str) -> Any:
    """Declare a float64 sum in the body of a measure. "A" stands for all heads, "S" for sites, "C" for classes."""
    return Sum(shape, torch.float64)


def counts(*shape: int | str) -> Any:
    """Declare an int64 sum, with a shape as for ``sums``."""
    return Sum(shape, torch.long)


class Measure(Metric):
    """Base of all measures. A subclass declares its sums and writes ``add`` and ``finish``.

    Sums are declared in the class, ``total: Tensor = sums("A")``, or by ``add_state`` if an option
    decides a shape.

    needs: records that the measure uses (see heads.Need); z is always recorded.
    kind: "per_head", "pairwise" or "pairwise_layers"; it decides the table and the figure.
    label: name and unit of "value", for a figure's axis. unit: the unit alone, "" for none.
    larger: meaning of a larger "value". alike: for pairs, "largest" or "smallest": the "value" of
    the most alike heads.
    masks: True if "value" is the rise of the loss, in nats, without the head.
    also: further kinds of report/figures that draw the columns.
    axes: for columns of shape (A, K) or (A, A, K) that get a table, the K names along it.
    along: the ``Meaning`` of each of these columns: what its numbers are, and what a larger one means.
    selects_by_images: True if ``select`` reads images and labels alone: the network is not run for it.
    select_needs: records of validation images, which go to ``select`` and ``end_select`` first, for
        a measure that chooses something. Both kinds of needs may depend on options, ``needs`` also
        on the choice.
    fooled_by: heads or models for which the number misleads, after "seen: " (in HeadBench) or "by
    definition: ".
    within: range of "value": REAL, SHARE or SIZE of ``stats.intervals``. no_interval: reason for no
        columns "low" and "high" (95 % interval over images), else "". of_images: False if it
        depends on no image.
    empty: reason why a column may be NaN for every head, else "".
    of_units: kinds that it can measure. class_names: names of the classes, if the caller sets them.
    by_rows: True if it reads attention by ``HeadBatch.weights_of``: "rows" and "row_slopes" are
        then recorded in place of "attn" and "attn_grad".

    ``finish`` returns columns, "value" first. A measure of images also gets () images, the number
    of images:
        per_head: (A,), or () for a number about all heads;
        pairwise: (A, A), or (A,) for a number per head, or ();
        pairwise_layers: (S, S), or (S,) for a number per site, or ();
        other shapes, e.g. (A, A, R), go to figures, and to a table only if ``axes`` names them.
    NaN marks what is out of scope, e.g. a pair of heads of different layers if only heads of a
    layer are compared.
    """

    full_state_update = False
    needs: frozenset[Need] = frozenset()
    kind: ClassVar[Literal["per_head", "pairwise", "pairwise_layers"]] = "per_head"
    label: str = "value"
    unit: str = ""
    larger: ClassVar[str] = ""
    along: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})
    alike: ClassVar[Literal["largest", "smallest"]] = "largest"
    masks: ClassVar[bool] = False
    also: ClassVar[tuple[str, ...]] = ()
    fooled_by: ClassVar[str] = ""
    within: Range = REAL
    no_interval: ClassVar[str] = ""
    empty: str = ""
    of_images: ClassVar[bool] = True
    of_units: frozenset[Kind] = frozenset({"head"})
    by_rows: ClassVar[bool] = False
    select_needs: frozenset[Need] | None = None
    selects_by_images: ClassVar[bool] = False
    class_names: tuple[str, ...] = ()

    images: Tensor = counts()  # valid images

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """UserError for an option that the class does not allow: another name, 1.5 draws, True for 1, NaN."""
        measure = super().__new__(cls)
        refuse_misfits(cls, kwargs, measure.name, args)
        return measure

    def __getnewargs__(self) -> tuple[()]:
        # torchmetrics would hand the letters of the class's name to ``__new__`` of a copy
        return ()

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        """Declare the sums. kwargs go to torchmetrics.Metric, e.g. ``process_group``.

        NotOfNeurons if ``layout`` has units that the measure cannot measure; ``fitted`` then leaves
        them out.
        """
        if not layout.kinds <= self.of_units:
            raise NotOfNeurons(
                f"{self.name}: is of heads, a neuron has none of it; expected layout.of('head')."
            )
        # torchmetrics would gather every rank's sums: world_size times their memory for what one
        # all_reduce does
        super().__init__(**{"dist_sync_fn": all_reduce, **kwargs})
        self.layout = layout
        self.axes: dict[str, list[str]] = {}
        members = {
            name: item for kind in reversed(type(self).__mro__) for name, item in vars(kind).items()
        }
        self.declared = {name: item for name, item in members.items() if isinstance(item, Sum)}
        sizes: dict[int | str, Any] = {"A": layout.num_heads, "S": len(layout.sites), "C": 0}
        for name, (shape, dtype) in self.declared.items():
            self.add_state(
                name, torch.zeros([sizes.get(size, size) for size in shape], dtype=dtype)
            )

    @property
    def name(self) -> str:
        """Name of the measure, its option and its table: the class's name in snake case, unless it sets ``name``."""
        return re.sub(
            r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__
        ).lower()

    @property
    def bytes_kept(self) -> int:
        """Bytes that the measure keeps from image to image, as far as its layout tells; larger costs more memory."""
        return sum(getattr(self, name).nbytes for name in self._defaults)

    @property
    def about(self) -> str:
        """Question of the measure in a sentence: the first line of its file."""
        text = getattr(sys.modules.get(type(self).__module__), "__doc__", None) or ""
        return text.strip().partition("\n")[0]

    def update(self, batch: HeadBatch) -> None:
        """Add one batch: count its valid images, and call ``add`` if there are any."""
        if batch.valid.any():
            with torch.autocast(
                batch.valid.device.type, enabled=False
            ):  # a sum keeps its digits in one
                self.add(batch)
        self.images += batch.valid.sum()

    def count_update(self) -> None:
        """Count an update that went around ``update``, as torchmetrics counts others."""
        self._computed = None
        self._update_count += 1

    def add(self, batch: HeadBatch) -> None:
        """Add the valid images of a batch (at least one) to the sums."""
        raise NotImplementedError

    def select(self, batch: HeadBatch) -> None:
        """Use the valid images of a validation batch (at least one) to choose."""
        raise NotImplementedError

    def end_select(self) -> None:
        """Finish choosing, after the last validation image. A collective: called on every rank."""

    @abstractmethod
    def finish(self) -> dict[str, Tensor]:
        """The columns, from the sums alone (see the class for their shapes); "value" comes first."""

    def compute(self) -> Tensor:
        """The main column, "value".

        A collective: call it on every rank. UserError as in ``columns``.
        """
        return self._finish()["value"]

    def columns(self) -> dict[str, Tensor]:
        """All columns, "value" first, the same on every rank. A collective: call it on every rank.

        Raises UserError if no valid image was seen, or if a head's output or slope was not finite.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return self._finish()

    @torch.no_grad()
    def _finish(self) -> dict[str, Tensor]:
        # after the sync, so that ranks agree: one that raised alone would leave the others waiting
        if self.images == 0:
            raise UserError(
                f"{self.name}: no valid images were seen, expected at least one; update it with a "
                "batch."
            )
        for name in self.metric_state:
            if not all(piece.isfinite().all() for piece in ranks.views_of(getattr(self, name))):
                raise UserError(
                    f"{self.name}: its sum {name} holds NaN or infinity, expected finite outputs "
                    "and slopes of heads. "
                    f"Check the weights, the precision and the normalisation of the images."
                )
        columns = self.finish()
        return {**columns, "images": self.images.clone()} if self.of_images else columns

    def add_state(
        self,
        name: str,
        default: list | Tensor,
        dist_reduce_fx: str | Callable | None = "sum",
        persistent: bool = False,
    ) -> None:
        """Declare a sum: a float64 or int64 tensor of zeros.

        Nothing else merges by addition without losing digits.
        """
        if dist_reduce_fx != "sum" or not isinstance(default, Tensor):
            raise TypeError(
                f"{self.name}.{name}: a measure's states are sums: a tensor and "
                "dist_reduce_fx='sum'."
            )
        if default.dtype not in (torch.float64, torch.long):
            raise TypeError(f"{self.name}.{name}: sums are float64 or int64, got {default.dtype}.")
        # a tensor made in inference mode could never be updated outside it; Lightning evaluates
        # inside
        with torch.inference_mode(False):
            super().add_state(name, torch.zeros((), dtype=default.dtype), "sum", persistent)
            setattr(self, name, torch.zeros_like(default))
            self._defaults[name] = default.new_zeros(()).expand(
                default.shape
            )  # not as large as the sum itself

    def reset(self) -> None:
        with torch.inference_mode(False):
            super().reset()

    def _sync_dist(
        self, dist_sync_fn: Callable = lambda *_: [], process_group: Any | None = None
    ) -> None:
        # torchmetrics has put a copy of the sums aside. What is left is added up in place: its own
        # way makes three more copies of each sum, and keeps those of all sums until the last is
        # done
        for name in self._reductions:
            (total,) = dist_sync_fn(getattr(self, name), group=process_group or self.process_group)
            setattr(self, name, total)

    def before_sync(self) -> None:
        """Sums are about to be added up over ranks: give them the same shape on all.

        A collective.
        """

    @contextlib.contextmanager
    def sync_context(self, *args: Any, should_unsync: bool = True, **kwargs: Any) -> Iterator[None]:
        """torchmetrics' own, but the local sums come back also after an error, and never as inference tensors."""
        with torch.inference_mode(False):
            self.before_sync()
            self.sync(*args, **kwargs)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> torch.nn.Module:
        # torchmetrics ignores .half() and .float(), but .to(torch.bfloat16) gets through: follow
        # devices only
        with torch.inference_mode(False):
            return super()._apply(lambda tensor: tensor.to(fn(tensor.new_empty(0)).device), *args)


def fitted(make: Callable[[HeadLayout], T], layout: HeadLayout) -> T:
    """Make a measure of a layout by ``make``; one of heads alone is made for its heads.

    UserError without any.
    """
    try:
        return make(layout)
    except NotOfNeurons:
        if "head" not in layout.kinds:
            raise
        return make(layout.of("head"))


def mean_of(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, NaN where nothing was counted."""
    return torch.where(count > 0, total.double() / count.clamp(min=1), torch.nan)


def all_reduce(state: Tensor, group: Any | None = None) -> list[Tensor]:
    """Sum ``state`` over ranks; return the one-element list that torchmetrics then adds up."""
    return [ranks.total(state, group)]


class OfWeights(Measure):
    """Base of measures of weights alone.

    Each rank fills the states once: their sums are ``models`` times too large.
    """

    needs: frozenset[Need] = frozenset({"weights"})
    no_interval = "weights alone, which no image changes"
    of_images = False

    models: Tensor = counts()  # summed over ranks that have seen the weights, each once

    def add(self, batch: HeadBatch) -> None:
        recorded = batch.need("weights", self.name)
        if not self.models:
            self.models += 1
            self.look(recorded)

    @abc.abstractmethod
    def look(self, weights: Sequence[HeadWeights]) -> None:
        """Fill the states from the weights of each site."""
