"""Learn-then-Test: the steps of a path that can be promised, at a given confidence, for new images.

Angelopoulos, Bates, Candes, Jordan & Lei, 2021, arXiv 2110.01052, with a fixed sequence: step 1 is
tested, then step 2, up to the first that fails, each at the full level: only the first step that
loses too much can break the promise. The images must have chosen neither the weights nor the path.

A step's loss on an image is (right before) - (right after). The test is a bet whose capital is
expected to grow only if the mean is below the limit (Waudby-Smith & Ramdas, 2024, arXiv
2010.09686). By Ville's inequality 1 / (the largest capital so far) is a p-value, for any number of
images. Their stake is sqrt(2 ln(1 / level) / (n variance)).

Shapes: S steps, n images.
"""

import bisect
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.errors import UserError


@dataclass(frozen=True)
class Guarantee:
    """Loses at most ``points`` of accuracy (per cent of all images) on new images, with this confidence.

    UserError for a limit or a confidence out of range.
    """

    points: float = 1.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.points < 100 or not 0 < self.confidence < 1:
            raise UserError(
                "guarantee: expected points between 0 and 100 and confidence between 0 and 1, got "
                f"{self.points}, "
                f"{self.confidence}."
            )

    @property
    def images_needed(self) -> int:
        """The fewest images that can show it if a step changes none of them: 332 for 1 point at 95 %."""
        level = 1 - self.confidence

        def shown(images: int) -> bool:
            return float(loses_more(torch.zeros(1, images), self.points / 100, level)) <= level

        most = next(2**power for power in itertools.count() if shown(2**power))
        return bisect.bisect_left(range(most), True, key=shown)


def kept_promise(
    whole_n: Tensor, steps_Sn: Tensor, points: float = 1.0, confidence: float = 0.95, seed: int = 0
) -> int:
    """Return the number of S nested steps that can be promised to lose at most ``points`` of accuracy; 0 for none.

    whole: (n,) bool, images right with the whole model. steps: (S, n) bool, right after each step.
    points, confidence: as for ``Guarantee``, with the same UserError. seed: of the order of the
    images.
    """
    Guarantee(points, confidence)
    loss_Sn = whole_n.double() - steps_Sn.double()
    order = torch.randperm(loss_Sn.shape[1], generator=torch.Generator().manual_seed(seed))
    shown_S = loses_more(loss_Sn[:, order], points / 100, 1 - confidence) <= 1 - confidence
    return int(shown_S.long().cumprod(0).sum())


def loses_more(loss_Sn: Tensor, limit: float, level: float = 0.05) -> Tensor:
    """(S,) p that the mean of losses in [-1, 1] is above ``limit``; the order of the images must not depend on losses.

    level: of the test; p holds at any other, too, and is smallest there.
    """
    loss_Sn = loss_Sn.double()
    steps, images = loss_Sn.shape
    if not images:
        return torch.ones(steps, dtype=torch.float64)
    # mean square of the images before each one, begun with the limit
    square_Sn = torch.nn.functional.pad(loss_Sn.square().cumsum(1), (1, 0))[:, :-1] + limit
    variance_Sn = square_Sn / torch.arange(1, images + 1, dtype=torch.float64)
    stake_Sn = (
        (2 * math.log(1 / level) / (images * variance_Sn)).sqrt().clamp(max=0.9 / (1 - limit))
    )
    capital_Sn = torch.log1p(stake_Sn * (limit - loss_Sn)).cumsum(1)
    return torch.exp(-capital_Sn.amax(1).clamp(min=0))
