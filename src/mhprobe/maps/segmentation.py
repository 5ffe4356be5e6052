"""Does a map lie on the object? Its hot pixels, against the object's mask.

Chefer, Gur & Wolf, 2021, CVPR, arXiv 2012.09838, section 4: a map is scaled up to the pixels, between its patches
linearly, and what lies above its mean is taken for the object. Their three scores: the share of pixels that are right;
the mean over object and ground of intersection over union, of the pixels of all images together; and the mean over
images of the average precision of the pixels in the map's order, which knows no threshold.

Shapes: B images, h x w patches, H x W pixels, P = H W.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SCORES = ("pixel accuracy", "mean IoU", "average precision")


class Overlap(NamedTuple):
    """Contributions of images to the scores, each (B,) float64; all but the last are shares of an image's pixels.

    right: taken for what they are. both_object: taken for the object, and the object; any_object: one of the two; the
    same for the ground. precision: average precision, in [0, 1].
    """

    right: Tensor
    both_object: Tensor
    any_object: Tensor
    both_ground: Tensor
    any_ground: Tensor
    precision: Tensor


def overlap(maps: Tensor, mask: Tensor) -> Overlap:
    """Compare maps with masks of objects.

    maps: (B, h, w), larger means more relevant. mask: (B, H, W) bool, with a pixel of the object in each image.
    """
    pixels = F.interpolate(maps[:, None].double(), size=mask.shape[-2:], mode="bilinear")[:, 0].flatten(1)
    shown = mask.flatten(1)
    hot = pixels > pixels.mean(1, keepdim=True)
    right, both, either, neither, not_both = (
        share.double().mean(1) for share in (hot == shown, hot & shown, hot | shown, ~hot & ~shown, ~hot | ~shown)
    )
    return Overlap(right, both, either, neither, not_both, average_precision(pixels, shown))


def average_precision(values: Tensor, shown: Tensor) -> Tensor:
    """(B, P) values and bool -> (B,) mean over what is shown of the precision at its value; ties are one step."""
    from sklearn.metrics import average_precision_score

    images = zip(shown.cpu().numpy(), values.cpu().numpy(), strict=True)
    return torch.tensor([average_precision_score(*image) for image in images], dtype=torch.float64).to(values.device)


def scores(means: Tensor) -> Tensor:
    """(..., 6) means over images of the parts of ``Overlap`` -> (..., 3) the ``SCORES``."""
    right, both_object, any_object, both_ground, any_ground, precision = means.unbind(-1)
    # a map that is flat takes nothing for the object: 0 of what there is
    iou = (both_object / any_object + both_ground / any_ground.clamp(min=1e-12)) / 2
    return torch.stack([right, iou, precision], -1)
