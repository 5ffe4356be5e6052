"""What loaders yield, as images and labels: tuples, dicts and tensors as they are common.

Shapes: B images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from mhprobe.errors import UserError

# Hugging Face's and WebDataset's names among them
IMAGES = ("images", "image", "pixel_values", "img", "input_ids", "jpg", "png", "x")
LABELS = ("labels", "label", "targets", "target", "cls", "y")
Split = Callable[[Any], tuple[Tensor, Tensor | None]]


def images_and_labels(item: Any) -> tuple[Tensor, Tensor | None]:
    """What a loader yielded -> (B, ...) images and (B,) labels, None without.

    Images alone; (images, labels, ...), of which the rest is left aside; a dict with common names.
    Raises UserError for anything else.
    """
    if isinstance(item, Tensor):
        return item, None
    if isinstance(item, Mapping):
        images = next((item[name] for name in IMAGES if isinstance(item.get(name), Tensor)), None)
        labels = next((item[name] for name in LABELS if isinstance(item.get(name), Tensor)), None)
    elif isinstance(item, tuple | list) and item:
        images, labels = item[0], item[1] if len(item) > 1 else None
    else:
        images = labels = None
    if not isinstance(images, Tensor) or not (labels is None or _labels(labels)):
        raise UserError(_unknown(item))
    return images, labels


def _labels(labels: Any) -> bool:
    return isinstance(labels, Tensor) and labels.dim() == 1


def _unknown(item: Any) -> str:
    keys = f" with {', '.join(map(repr, item))}" if isinstance(item, Mapping) else ""
    things = f" of {len(item)}: {', '.join(map(_called, item))}" if isinstance(item, tuple | list) else ""
    return (
        f"loader: expected batches (images, labels, ...) of tensors, images alone, a dict of them "
        f"({', '.join(IMAGES[:3])} ...; {', '.join(LABELS[:2])} ...), or Batch, got a {type(item).__name__}{keys}"
        f"{things}. Say where they are: batch=lambda item: (item[...], item[...])."
    )


def _called(part: Any) -> str:
    return f"{tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
