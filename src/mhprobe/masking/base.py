"""Types of masking: scores of masks, sets of heads (units), how far they may go (limits), and paths through them.

This package knows an evaluate function and not the model behind it: a network on eight GPUs, or a
table in a test.

Shapes: A heads, M masks of one evaluation, U units, S steps, L layers. In every mask True means:
head off.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from mhprobe.errors import UserError, refuse_misfits
from mhprobe.heads import HeadLayout

ROUNDING = 1e-9  # of shares that are sums over heads, or counts of images
SHARES = (
    "flops",
    "params",
    "latency",
    "memory",
)  # units of targets that are a share of the whole network's

Cost = Callable[[Tensor], Tensor]
"""(M, A) bool masks -> (M,) float64, what is left. It never grows as heads are masked."""


class Scored(NamedTuple):
    """Names of the numbers of a score (scoring/base.py).

    name: of the score. metric: in metrics. right: of the share of right images, larger is better.
    lost: of the mean loss, smaller is better; figures draw it unless it is empty.
    """

    name: str = "labels"
    metric: str = "accuracy"
    right: str = "accuracy"
    lost: str = ""


LABELS = Scored()


class Scores(NamedTuple):
    """Scores of M masks on the same n images, image by image, so that masks can be compared in pairs."""

    right: Tensor  # (M, n) bool, whether the image is classified correctly
    losses: Tensor  # (M, n) float64, cross-entropy in nats

    @property
    def images(self) -> int:
        """n."""
        return self.right.shape[1]

    @property
    def correct(self) -> Tensor:
        """(M,) int64, images classified correctly."""
        return self.right.sum(1)

    @property
    def loss(self) -> Tensor:
        """(M,) float64, sum over images, in nats."""
        return self.losses.sum(1)

    @property
    def accuracy(self) -> Tensor:
        """(M,) in [0, 1]."""
        return self.correct.double() / self.images

    @property
    def mean_loss(self) -> Tensor:
        """(M,) nats per image."""
        return self.loss / self.images


class Evaluate(Protocol):
    """Scores masks on the N images of a split; the same numbers on every rank.

    Most orders need ``__call__`` alone.

    scored: names of the score. images: N.
    spent: image-forwards asked for so far, one per image and mask, and two per image for slopes.
    computed: those that no cache had the answer to.
    """

    scored: Scored = LABELS
    images: int = 0
    spent: int = 0
    computed: int = 0

    def __call__(self, masks: Tensor, images: Tensor | None = None) -> Scores:
        """Scores of (M, A) bool masks on all images, in the order of the split, or on those at positions ``images``."""
        ...

    def keep(self, mask: Tensor, scores: Scores) -> None:
        """Remember the scores of ``mask`` (A,) on all images, which a search found piece by piece."""

    def spread(self, count: int) -> Tensor:
        """Positions of at most ``count`` images, evenly spread over all."""
        return torch.arange(self.images)[:: -(-self.images // count)]

    def slopes(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(A,) mean slope of the loss and (A,) its mean square over images, with the heads of ``mask`` (A,) off.

        In nats per head, along the share of a head that its gate lets through, at 1.
        """
        raise UserError(
            "this order needs slopes of the loss, and the evaluate function gives scores only."
        )

    def fisher(self, mask: Tensor) -> list[Tensor]:
        """(H, H) per site: mean over images of the product of two units' slopes, with those of ``mask`` (A,) off."""
        raise UserError(
            "this order needs slopes of the loss, and the evaluate function gives scores only."
        )

    def measure(
        self, make: Callable[[HeadLayout], Any], mask: Tensor, column: str = "value"
    ) -> Tensor:
        """(A,) a column of the measure that ``make`` makes, with the heads of ``mask`` (A,) off.

        Slopes as above.
        """
        raise UserError("this order needs a measure, and the evaluate function gives scores only.")

    @contextlib.contextmanager
    def watched(self, total: int) -> Iterator[Callable[[str, int], None]]:
        """Show progress of all evaluations inside, of ``total`` image-forwards; yields a function (text, done)."""
        yield lambda text, done: None


@dataclass(frozen=True)
class PathTarget:
    """A target at which a curve stops: at most ``value`` is left by ``cost``.

    unit: heads, a kind, or one of SHARES.
    """

    unit: str
    value: float
    cost: Cost

    def left(self, mask: Tensor) -> float:
        """Return the cost of what the (A,) mask leaves."""
        return float(self.cost(mask[None])[0])


@dataclass(frozen=True)
class Limits:
    """Limits of a path.

    min_heads_per_layer: so many heads of every layer stay. targets: the end, where all are met.
    """

    layout: HeadLayout
    min_heads_per_layer: int = 0
    targets: tuple[PathTarget, ...] = ()

    def reached(self, off: Tensor) -> bool:
        """Return True if the (A,) mask meets the targets."""
        return bool(self.targets) and all(
            target.left(off) <= target.value + ROUNDING for target in self.targets
        )

    def permits(self, off: Tensor, after: Tensor) -> Tensor:
        """(M,) bool: which of the (M, A) masks ``after`` may follow the (A,) mask ``off``."""
        left_ML, now_1L = (
            torch.stack([part.sum(-1) for part in self.layout.split(~masks)], -1)
            for masks in (after, off[None])
        )
        return ((left_ML >= self.min_heads_per_layer) | (left_ML == now_1L)).all(-1)


@dataclass(frozen=True)
class Units:
    """Sets of heads that are masked together, (U, A) bool.

    per_stage: True if indices are counted stage by stage.
    """

    names: tuple[str, ...]
    masks: Tensor
    per_stage: bool = False
    limits: Limits | None = None

    def __len__(self) -> int:
        return len(self.names)

    def steps(self, wanted: int | None) -> int:
        """Return the length of a path that takes one unit a step: ``wanted`` steps, None for all, at most all."""
        return len(self) if wanted is None else min(wanted, len(self))

    def path(self, order: Sequence[int], **more: Any) -> "Path":
        """The path that takes these units one by one. more: further fields of Path."""
        return Path(
            None, self.masks[list(order)], tuple(self.names[unit] for unit in order), **more
        )

    def chosen(self, length: int, pick: Callable[[list[int], list[int]], int]) -> list[int]:
        """At most ``length`` units, each picked by ``pick`` from (units so far, units that may go next)."""
        order: list[int] = []
        while len(order) < length and (left := self.candidates(order)):
            order.append(pick(order, left))
        return order

    def candidates(self, order: Sequence[int]) -> list[int]:
        """The units that may go next after ``order``, lowest index first; none at the target."""
        left = sorted({*range(len(self))} - {*order})
        if self.limits is None or not left:
            return left
        off = self.masks[list(order)].any(0)
        if self.limits.reached(off):
            return []
        permitted = self.limits.permits(off, off | self.masks[left])
        return [unit for unit, allowed in zip(left, permitted.tolist(), strict=True) if allowed]


@dataclass(frozen=True)
class Path:
    """Heads that go at each of S steps.

    seed: of a random path, else None. added: (S, A) bool. names: S labels.

    spent, exhaustive: of a search, image-forwards per step that it asked for, and that all
        candidates on all images take. scores: (A,) of an order that scores units once and takes the
        lowest first; None of others.
    """

    seed: int | None
    added: Tensor
    names: tuple[str, ...]
    spent: tuple[int, ...] = ()
    exhaustive: tuple[int, ...] = ()
    scores: Tensor | None = None

    def masks(self) -> Tensor:
        """(S + 1, A) bool, the heads off after each step; row 0 is the unmasked model."""
        return torch.cat(
            [torch.zeros(1, self.added.shape[1], dtype=torch.bool), self.added.int().cumsum(0) > 0]
        )


class Order(abc.ABC):
    """Decides which unit is masked next.

    A subclass is a frozen dataclass: its fields are its options.

    searches: whether the order depends on images; it is then chosen on one split and reported on
    another.
    of_neurons: whether it can choose among the thousands of units of a layout with neurons.
    """

    searches: ClassVar[bool] = True
    of_neurons: ClassVar[bool] = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """UserError for an option of another type than the class says: NaN, True for 1."""
        refuse_misfits(cls, kwargs, f"masking order {cls.__module__.rpartition('.')[2]}", args)
        return super().__new__(cls)

    def length(self, units: Units, layout: HeadLayout) -> int:
        """Steps of a complete path."""
        return len(units)

    def search_name(self, units: Units) -> str:
        """Name of the search that decides its steps, for tables and figures; empty without a search."""
        return ""

    @abc.abstractmethod
    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        """Paths of ``steps`` steps, or complete ones; the same on every rank, and when the search is repeated."""
