"""The interval of the first sentence covers as often as it says.

The sentence: half of the heads, by the order that is best on validation images, cost so many points
on test images. Simulated over draws of images: the order is chosen anew in each draw, and the truth
is what the chosen order costs on all images.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mhprobe.stats.significance import paired_difference

DRAWS, VALIDATION, TEST = 500, 359, 360  # images as in the demo


def counts(draws: int, images: int, cells: Tensor, seed: int) -> Tensor:
    """(draws, orders, 4) images that are right both times, lost, won, and wrong both times.

    cells: (orders, 4) shares of these. Orders share their images' luck in no way, which is the
    hardest case for a choice among them.
    """
    generator = torch.Generator().manual_seed(seed)
    shares = cells.expand(draws, *cells.shape).reshape(-1, 4)
    picked = torch.multinomial(shares, images, replacement=True, generator=generator)
    return torch.nn.functional.one_hot(picked, 4).sum(1).view(draws, len(cells), 4)


def covered(cells: Tensor, judged_on_chosen: bool = False, seed: int = 0) -> float:
    """The share of draws whose interval holds the truth.

    judged_on_chosen: on the images that chose the order, as no headline does.
    """
    chose = counts(DRAWS, VALIDATION, cells, seed)
    best = (chose[..., 0] + chose[..., 2]).argmax(1)
    judged = chose if judged_on_chosen else counts(DRAWS, TEST, cells, seed + 1)
    mine = judged[torch.arange(DRAWS), best]
    low, high = paired_difference(mine[:, 0], mine[:, 1], mine[:, 2], mine.sum(1))
    truth = (cells[:, 1] - cells[:, 2])[best]
    return float(((low <= truth) & (truth <= high)).double().mean())


def cells(whole: float, kept: list[float], won: float) -> Tensor:
    """Orders that keep a share of what the whole network has right, and win a share of the rest."""
    kept_K = torch.tensor(kept, dtype=torch.float64)
    both, gained = whole * kept_K, torch.full_like(kept_K, (1 - whole) * won)
    return torch.stack([both, whole - both, gained, 1 - whole - gained], dim=1)


CASES = {
    "orders that differ": cells(0.98, [0.97, 0.95, 0.75], won=0.3),
    "every head is equal": cells(0.98, [0.95] * 24, won=0.3),
    "the network guesses": cells(0.1, [0.1] * 24, won=0.1),
    "nothing changes": cells(0.98, [1.0] * 3, won=0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_interval_of_the_headline_covers_as_often_as_it_says(case):
    # of 500 draws the share has a standard error of .01; Newcombe's interval is a little too wide
    assert 0.93 <= covered(CASES[case]) <= 1.0


def test_on_the_images_that_chose_the_order_it_would_not():
    """The control: a searched maximum, reported as if nobody had searched."""
    assert covered(CASES["every head is equal"], judged_on_chosen=True) < 0.9
    assert covered(CASES["the network guesses"], judged_on_chosen=True) < 0.9


def test_fewer_images_do_not_make_the_stated_cost_smaller():
    """The upper end of the loss, which is what may be lost, is further away with fewer images."""
    shares = CASES["orders that differ"][0]
    ends = []
    for images in (45, 90, 180, 360, 3600):
        both, lost, won, _ = (shares * images).tolist()
        numbers = [torch.tensor([number]) for number in (both, lost, won, images)]
        ends.append(float(paired_difference(*numbers)[1]))
    assert ends == sorted(ends, reverse=True) and ends[0] > 2 * ends[-1]
