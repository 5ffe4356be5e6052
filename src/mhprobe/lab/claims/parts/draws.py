"""Draws of validation images: an order that is chosen on each of them says how much the choosing varies.

What one set of images chooses is one of many orders that others would choose. An interval over test
images alone speaks of that one order. Orders from disjoint draws are independent.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.framework.questions.scorers import Scorer
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.scoring.parts.evaluate import Evaluator

Found = TypeVar("Found")


def positions_of(images: int, draws: int, most: int) -> list[Tensor]:
    """Disjoint draws of at most ``most`` images each: positions in a split of ``images``, rising.

    They do not depend on the run's seed, so that every run of a network chooses on the same images.
    UserError for more draws than images.
    """
    size = min(most, images // draws)
    if not size:
        raise UserError(
            f"draws: {draws} draws that share no image cannot be taken of {images} validation images. "
            "Give more images, or fewer draws."
        )
    shuffled = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    return [part.sort().values for part in shuffled[: size * draws].split(size)]


class OnDraw(Evaluate):
    """Scores of masks on some images of a split, for an order that may see no others.

    whole: scores on the split, where the answers of each image are kept. alone: the same network on
    these images, for slopes and measures. positions: of the images in the split.
    """

    def __init__(self, whole: Evaluator, alone: Evaluator, positions: Tensor) -> None:
        self.whole, self.alone, self.positions = whole, alone, positions
        self.images, self.scored = len(positions), whole.scored

    @classmethod
    def of(cls, scorer: Scorer, spec: CurveSpec, positions: Tensor) -> "OnDraw":
        """Return the scores on the split's images at ``positions``, with the fill and scale of a curve."""
        every, alone = (scorer.under(spec) for _ in range(2))
        alone.batches, alone.images = scorer.walk(positions), len(positions)
        alone.cache = None  # its key would name all images of the split
        return cls(every, alone, positions)

    def __call__(self, masks: Tensor, images: Tensor | None = None) -> Scores:
        here = self.positions if images is None else self.positions[images]
        return self._counted(lambda: self.whole(masks, here))

    def slopes(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self._counted(lambda: self.alone.slopes(mask))

    def fisher(self, mask: Tensor) -> list[Tensor]:
        return self._counted(lambda: self.alone.fisher(mask))

    def measure(
        self, make: Callable[[HeadLayout], Any], mask: Tensor, column: str = "value"
    ) -> Tensor:
        return self._counted(lambda: self.alone.measure(make, mask, column))

    @contextlib.contextmanager
    def watched(self, total: int) -> Iterator[Callable[[str, int], None]]:
        with self.whole.watched(total) as done:
            yield done

    def _counted(self, find: Callable[[], Found]) -> Found:
        found = find()
        self.spent = self.whole.spent + self.alone.spent
        self.computed = self.whole.computed + self.alone.computed
        return found
