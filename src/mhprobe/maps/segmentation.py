"""Does a map lie on the object? Its hot pixels, against the object's mask.

Chefer, Gur & Wolf, 2021, CVPR, arXiv 2012.09838, section 4: a map is scaled up to pixels,
bilinearly; pixels above its mean are taken for the object. Scores: share of right pixels; mean over
object and ground of intersection over union, of the pixels of all images together; mean over images
of the average precision of pixels in the map's order.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

SCORES = ("pixel accuracy", "mean IoU", "average precision")


def overlap(maps: Tensor, mask: Tensor) -> Tensor:
    """(B, 6) float64 contributions of images to the scores: five shares of their pixels, and the average precision.

    Shares: classified right; of the object in map and mask, and in one of them; the same two of the
    ground.

    maps: (B, h, w), larger means more relevant. mask: (B, H, W) bool, with a pixel of the object in
    each image.
    """
    pixels = F.interpolate(maps[:, None].double(), size=mask.shape[-2:], mode="bilinear")[
        :, 0
    ].flatten(1)
    object_BP = mask.flatten(1)
    hot = pixels > pixels.mean(1, keepdim=True)
    parts = (
        hot == object_BP,
        hot & object_BP,
        hot | object_BP,
        ~hot & ~object_BP,
        ~hot | ~object_BP,
    )
    return torch.stack(
        [*(part.double().mean(1) for part in parts), average_precision(pixels, object_BP)], 1
    )


def average_precision(values: Tensor, shown: Tensor) -> Tensor:
    """(B, P) values and bool -> (B,) mean over shown pixels of the precision at their value; ties are one step."""
    from sklearn.metrics import average_precision_score

    images = zip(shown.cpu().numpy(), values.cpu().numpy(), strict=True)
    return torch.tensor(
        [average_precision_score(*image) for image in images], dtype=torch.float64
    ).to(values.device)


def scores(means: Tensor) -> Tensor:
    """(..., 6) means over images of ``overlap`` -> (..., 3) the ``SCORES``."""
    right, both_object, any_object, both_ground, any_ground, precision = means.unbind(-1)
    # a map that is flat takes nothing for the object: 0 of what there is
    iou = (both_object / any_object + both_ground / any_ground.clamp(min=1e-12)) / 2
    return torch.stack([right, iou, precision], -1)
