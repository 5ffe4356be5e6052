"""Is a map faithful? Delete patches in its order, or insert them, and watch the class's probability.

Petsiuk et al. 2018 (RISE), arXiv 1806.07421. Deletion takes the most relevant patches away first:
the earlier the probability falls, the better, so lower is better. Insertion brings them first:
higher is better. Read both against random orders. Without a classifier the cosine of the features
to those of the whole image replaces the probability.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms.functional import gaussian_blur

from mhprobe.errors import UserError, one_of
from mhprobe.recording.outputs import broken, logits_of, refuse_broken
from mhprobe.recording.state import inspecting, usable

Baseline = Literal["mean", "blur"]


class Faithfulness(NamedTuple):
    """Areas under the curves of the probability, or cosine, over the share of patches, at most 1, each (B,).

    deletion: lower is better. insertion: higher is better. random_deletion, random_insertion: mean
    over random orders.
    """

    deletion: Tensor
    insertion: Tensor
    random_deletion: Tensor
    random_insertion: Tensor


STEPS = 10  # shares in which patches are deleted and inserted, where a map has as many patches


def faithfulness(  # noqa: PLR0913 -- its arguments are the keys of conf/maps.yaml
    model: nn.Module,
    images: Tensor,
    maps: Sequence[Tensor],
    baseline: Baseline = "mean",
    steps: int | None = None,
    random_orders: int = 5,
    seed: int = 0,
    features: bool = False,
    index: Tensor | None = None,
) -> list[Faithfulness]:
    """Areas of several maps, each (B, h, w), for images (B, 3, height, width), by each image's class or features.

    baseline: replacement of deleted patches: the image's mean colour, or the blurred image. steps:
    number of equal shares of patches; None: 10, or one for each patch of the smallest map that has
    fewer. features: True if the model's outputs are features, no
    logits. index: (B,) numbers of the images in their data set, by which their random orders
    differ; None: their places. Maps of one size share them. Forward
    passes per image: 2 (steps + 1) for each map, and random_orders times as many for each size.
    Raises UserError for an unknown baseline, for no steps or no random orders, and for outputs that
    are NaN or infinite.
    """
    one_of("faithfulness", "baseline", baseline, Baseline)
    shares = _steps_for(maps, steps, random_orders)
    with inspecting(model, gradients=False):
        images = usable(images)
        mean_colour = images.mean((2, 3), keepdim=True).expand_as(images)
        outputs_BK = logits_of(model(images), model)
        refuse_broken(broken(outputs_BK), "faithfulness: the output of the model")
        target = outputs_BK.argmax(1, keepdim=True)

        def watched(images: Tensor) -> Tensor:
            """(B,) probability of the class of the whole image, or cosine to its features."""
            outputs = logits_of(model(images), model).double()
            if features:
                return F.cosine_similarity(outputs, outputs_BK.double(), dim=1)
            return outputs.softmax(1).gather(1, target).squeeze(1)

        def areas(order: Tensor) -> tuple[Tensor, Tensor]:
            without = mean_colour if baseline == "mean" else blurred(images, order.shape[-2:])
            return area_under(watched, images, without, order, shares), area_under(
                watched, without, images, order, shares
            )

        chance: dict[torch.Size, tuple[Tensor, Tensor]] = {}
        numbers = range(len(images)) if index is None else index.tolist()
        for shape in {order.shape for order in maps}:
            orders = _random_maps(numbers, shape[1:], random_orders, seed)
            draws = [areas(order) for order in orders.to(images.device)]
            deletion, insertion = (torch.stack(both).mean(0) for both in zip(*draws, strict=True))
            chance[shape] = deletion, insertion
        return [Faithfulness(*areas(order), *chance[order.shape]) for order in maps]


def _steps_for(maps: Sequence[Tensor], steps: int | None, random_orders: int) -> int:
    """Return the number of shares of patches; None takes as many as the smallest map has patches for.

    Raises UserError for more than that, and for none of them or of the random orders.
    """
    fewest = min((of[0].numel() for of in maps), default=STEPS)
    if steps is None:
        steps = min(STEPS, fewest)
    if steps < 1 or random_orders < 1:
        raise UserError(
            f"faithfulness: expected at least one step and one random order, got {steps}, "
            f"{random_orders}."
        )
    if steps > fewest:
        raise UserError(
            f"faithfulness: steps: expected at most {fewest}, the number of patches, got {steps}."
        )
    return steps


def _random_maps(numbers: Iterable[int], grid: Sequence[int], draws: int, seed: int) -> Tensor:
    """(draws, B, h, w) random maps: those of an image depend on its number and the seed alone."""
    of_images = [torch.Generator().manual_seed(seed * 1_000_003 + number) for number in numbers]
    maps = [torch.rand(draws, *grid, generator=of_image) for of_image in of_images]
    return torch.stack(maps, 1)


def area_under(
    watched: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, maps: Tensor, steps: int
) -> Tensor:
    """(B,) area under ``watched`` over the share of patches replaced by ``end``, largest in ``maps`` first."""
    patches = maps[0].numel()
    # stable: where a map is flat, raster order
    rank_BP = maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(1)
    counts = torch.linspace(0, patches, steps + 1).round().long().tolist()
    seen = []
    for count in counts:
        gone = (rank_BP < count).unflatten(1, maps.shape[1:])
        gone_pixels = F.interpolate(
            gone[:, None].to(start.dtype), size=start.shape[-2:], mode="nearest-exact"
        )
        seen.append(watched(torch.where(gone_pixels > 0, end, start)))
    return torch.trapezoid(
        torch.stack(seen), torch.tensor(counts).to(start.device) / patches, dim=0
    )


def blurred(images: Tensor, grid: torch.Size) -> Tensor:
    """A Gaussian blur as wide as two patches."""
    sigma = 2 * images.shape[-1] / grid[-1]
    reach = max(
        1, min(int(3 * sigma), min(images.shape[-2:]) - 1)
    )  # reflection goes no further than the image
    return gaussian_blur(images, [2 * reach + 1] * 2, [sigma] * 2)
