"""Learn-then-Test: the steps of a path that can be promised, at a given confidence, for new images.

Learn-then-Test: Angelopoulos, Bates, Candes, Jordan & Lei, 2021, arXiv 2110.01052, with a fixed sequence: step 1 is
tested, then step 2, and so on to the first that is not shown. Each test is at the full level, and the promise still
fails with at most that probability: it is broken only if the first step that loses too much passes its own test.

A step's loss on an image is (right before) - (right after): -1, 0 or 1. Its mean is small because most images do not
change, so bounds that know the range alone (Hoeffding) would need tens of thousands of images. Here the test is a bet,
whose capital grows if the mean is below the limit. If it is not, the expected capital is never more than the first one
(Waudby-Smith & Ramdas, 2024, "Estimating means of bounded random variables by betting", arXiv 2010.09686). By Ville's
inequality 1 / (the largest capital on the way) is a p-value, exact for any number of images. The stake is theirs for a
number of images known beforehand, sqrt(2 ln(1 / level) / (n variance)), with which the largest mean loss can still be
told from the limit.

The images must have chosen neither the weights nor the path.

Shapes: S steps, n images.
"""

import bisect
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
                f"guarantee: expected points between 0 and 100 and confidence between 0 and 1, got {self.points}, "
                f"{self.confidence}."
            )

    @property
    def images_needed(self) -> int:
        """The fewest images that can show it where a step changes none of them.

        >>> Guarantee(points=1.0, confidence=0.95).images_needed
        332
        """
        level = 1 - self.confidence

        def shown(images: int) -> bool:
            return float(loses_more(torch.zeros(1, images), self.points / 100, level)) <= level

        most = 1
        while not shown(most):
            most *= 2
        return bisect.bisect_left(range(most), True, key=shown)


def kept_promise(
    whole_n: Tensor, steps_Sn: Tensor, points: float = 1.0, confidence: float = 0.95, seed: int = 0
) -> int:
    """Return the number of S nested steps that can be promised to lose at most ``points`` of accuracy; 0 for none.

    whole: (n,) bool, images right with the whole model. steps: (S, n) bool, right after each step.
    points: in percent of all images. confidence: that the promise holds. seed: of the order of the images.

    UserError for a limit or a confidence out of range.
    """
    Guarantee(points, confidence)
    loss_Sn = whole_n.double() - steps_Sn.double()
    order = torch.randperm(loss_Sn.shape[1], generator=torch.Generator().manual_seed(seed))
    shown_S = loses_more(loss_Sn[:, order], points / 100, 1 - confidence) <= 1 - confidence
    return int(shown_S.long().cumprod(0).sum())


def loses_more(loss_Sn: Tensor, limit: float, level: float = 0.05) -> Tensor:
    """(S,) p that the mean of losses in [-1, 1] is above ``limit``, from images in an order that no loss decided.

    level: at which p will be read; p holds at any, and is smallest there.

    >>> loses_more(torch.zeros(1, 1000), 0.01).item() < 0.001  # nothing of a thousand was lost
    True
    >>> loses_more(torch.zeros(1, 100), 0.01).item() > 0.05  # a hundred cannot show it
    True
    """
    loss_Sn = loss_Sn.double()
    steps, images = loss_Sn.shape
    if not images:
        return torch.ones(steps, dtype=torch.float64)
    # before each image: the mean square of those before it, the limit itself to begin with
    square_Sn = torch.nn.functional.pad(loss_Sn.square().cumsum(1), (1, 0))[:, :-1] + limit
    variance_Sn = square_Sn / torch.arange(1, images + 1, dtype=torch.float64)
    stake_Sn = (2 * math.log(1 / level) / (images * variance_Sn)).sqrt().clamp(max=0.9 / (1 - limit))
    capital_Sn = torch.log1p(stake_Sn * (limit - loss_Sn)).cumsum(1)
    return torch.exp(-capital_Sn.amax(1).clamp(min=0))
