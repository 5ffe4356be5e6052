"""Data sets that torchvision downloads and reads: how they are asked for, and how their pictures become squares."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mhprobe.errors import UserError

SECONDS = 30  # without an answer, before a download is given up


def fetched(make: Callable[[], Any], title: str, root: Path, instead: str) -> Any:
    """What ``make`` makes; a UserError in one line where it is not in ``root`` and cannot be downloaded.

    instead: what to do without a network.
    """
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(SECONDS)  # torchvision sets none: a silent network would hang for minutes
        return make()
    except (OSError, RuntimeError) as error:  # URLError is an OSError; RuntimeError: not there, or damaged
        raise UserError(
            f"{title} is not in {root} and could not be fetched ({error}). Without a network use {instead}."
        ) from None
    finally:
        socket.setdefaulttimeout(before)


def square(image: Any, size: int, blend: bool = False) -> np.ndarray:
    """A centre crop of the short side's length, resized to ``size`` pixels. blend: smoothly, for pictures."""
    from PIL import Image

    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    crop = image.crop((left, top, left + side, top + side))
    return np.asarray(crop.resize((size, size), Image.Resampling.BICUBIC if blend else Image.Resampling.NEAREST))
