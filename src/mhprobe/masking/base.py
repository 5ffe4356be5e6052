"""What masking is made of: scores of masks, paths through the heads, and the curve along a path.

This package takes an evaluate function and never the model behind it: anything that turns masks into scores will
do, a network on eight GPUs or a table in a test.

Shapes: A heads, M masks of one evaluation, S steps, K points of a curve. In every mask True means: head off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


class Scores(NamedTuple):
    """What M masks scored on the same images."""

    correct: Tensor  # (M,) int64, images classified correctly; integers, so ties are exact
    loss: Tensor  # (M,) float64, sum over images of the cross-entropy in nats
    images: int

    @property
    def accuracy(self) -> Tensor:
        """(M,) in [0, 1]."""
        return self.correct.double() / self.images

    @property
    def mean_loss(self) -> Tensor:
        """(M,) nats per image."""
        return self.loss / self.images


Evaluate = Callable[[Tensor], Scores]
"""(M, A) bool masks -> Scores. Walks the data once, with all M masks on each batch."""


@dataclass(frozen=True)
class Units:
    """Sets of heads that are masked together. names: for people. masks: (U, A) bool.

    per_stage: the units were cut at stage borders because stages differ in their number of heads.
    """

    names: tuple[str, ...]
    masks: Tensor
    per_stage: bool = False

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Path:
    """Which heads go at each step. seed: of a random path, else None. added: (S, A) bool. names: S labels."""

    seed: int | None
    added: Tensor
    names: tuple[str, ...]

    def masks(self) -> Tensor:
        """(S + 1, A) bool, the heads off after each step; row 0 is the unmasked model."""
        start = torch.zeros(1, self.added.shape[1], dtype=torch.bool)
        return torch.cat([start, self.added.int().cumsum(0) > 0])


class Order(Protocol):
    """Decides which unit is masked next. A frozen dataclass: its fields are its options."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def searches(self) -> bool:
        """Whether the order looks at scores. If so it is chosen on one split and reported on another."""
        ...

    def length(self, units: Units, layout: HeadLayout) -> int:
        """Steps of a complete path."""
        ...

    def paths(
        self,
        units: Units,
        layout: HeadLayout,
        evaluate: Evaluate,
        steps: int | None = None,
        start: Sequence[int] = (),
        on_step: Callable[[list[int]], None] | None = None,
    ) -> list[Path]:
        """Paths of ``steps`` steps, or complete ones.

        start: unit indices that an earlier, shorter search already found. on_step: is given the indices found so
        far after every step of a search.
        """
        ...


@dataclass(frozen=True)
class Curve:
    """Scores along a path, at K of its steps; low and high bound the accuracy (Wilson, 95 %)."""

    path: Path
    step: tuple[int, ...]
    mask: Tensor  # (K, A) bool
    correct: Tensor  # (K,)
    accuracy: Tensor  # (K,) in [0, 1]
    loss: Tensor  # (K,) mean nats
    low: Tensor  # (K,)
    high: Tensor  # (K,)
    images: int


def wilson(correct: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """Wilson's 95 % interval of a proportion: stays in [0, 1] and keeps its width at 0 and 1 (Wilson, 1927)."""
    share = correct.double() / images
    shrink = 1 + Z95**2 / images
    centre = (share + Z95**2 / (2 * images)) / shrink
    half = Z95 / shrink * (share * (1 - share) / images + Z95**2 / (4 * images**2)).sqrt()
    return (centre - half).clamp(min=0), (centre + half).clamp(max=1)


def trace(paths: Sequence[Path], evaluate: Evaluate, step: int | None = None) -> list[Curve]:
    """One Curve per path, at all its steps or only at ``step``. One walk over the data, equal masks scored once."""
    steps = [tuple(range(len(path.names) + 1)) if step is None else (step,) for path in paths]
    masks = [path.masks()[list(chosen)] for path, chosen in zip(paths, steps, strict=True)]
    distinct, place = torch.unique(torch.cat(masks), dim=0, return_inverse=True)
    scores = evaluate(distinct)
    low, high = wilson(scores.correct, scores.images)
    return [
        Curve(
            path=path,
            step=chosen,
            mask=mask,
            correct=scores.correct[at],
            accuracy=scores.accuracy[at],
            loss=scores.mean_loss[at],
            low=low[at],
            high=high[at],
            images=scores.images,
        )
        for path, chosen, mask, at in zip(paths, steps, masks, place.split([len(m) for m in masks]), strict=True)
    ]


def t_interval(values: Tensor) -> tuple[float, float, float]:
    """Mean and Student's 95 % interval of the mean, over (R,) independent repeats, R >= 2."""
    from scipy.special import stdtrit  # only random curves need it

    repeats = len(values)
    mean = values.mean().item()
    half = float(stdtrit(repeats - 1, 0.975)) * values.std().item() / math.sqrt(repeats)
    return mean, mean - half, mean + half
