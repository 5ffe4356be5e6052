"""Photographs for looking: colours that differ, in files that a camera, a scanner or a bad disk could have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models import tiny_vit

HOSTILE = "<img src=x onerror=alert(1)> {{ 7 * 7 }} & \u202e.png"


def photo(number: int, side: int = 40) -> Image.Image:
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 255, (5, 5, 3), dtype=np.uint8))
    return coarse.resize((side, side), Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Five photographs, one of a name that would be markup."""
    place = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(["a.jpg", "b.png", "c.webp", "d.bmp", HOSTILE]):
        photo(number).save(place / name)
    return place


@pytest.fixture
def model():
    return tiny_vit()
