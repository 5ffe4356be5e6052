"""Pictures and compressed bytes inside a page; figures as lossless WebP, as many as there is room for."""

import base64
import gzip
import io
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError, features

from mhprobe.data.augment import in_colours

ROOM = 4_000_000  # bytes of a page that figures may take
PIXELS = 40_000_000  # of a figure: a bomb is small as a file


class Picture(NamedTuple):
    """A picture of a page.

    file: in the run's folder. url: a data URL, None without room. width, height: CSS pixels.
    """

    file: str
    url: str | None
    width: int
    height: int


def data_url(data: bytes, kind: str) -> str:
    """Return the picture as a data URL. kind: jpeg, png, webp."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def three_colours(pixels: np.ndarray) -> np.ndarray:
    """(height, width, C) pixels of any channels -> (height, width, 3): the first three, or grey."""
    image = torch.tensor(np.ascontiguousarray(pixels)).permute(2, 0, 1)
    return in_colours(image)[0].permute(1, 2, 0).contiguous().numpy()


def encoded(pixels: np.ndarray, kind: str, **options: Any) -> str:
    """Return (height, width, 3) uint8 pixels as a data URL.

    kind: jpeg, png. options: of Pillow's encoder.
    """
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind, **options)
    return data_url(data.getvalue(), kind)


def gzipped(data: bytes) -> str:
    """Return base64 of gzip, which a browser unpacks by itself."""
    return base64.b64encode(gzip.compress(data, 6)).decode()


def embedded_pictures(
    pictures: Iterable[tuple[str, bytes]], room: int = ROOM
) -> dict[str, Picture]:
    """Embed pictures, by file name, until ``room`` is full.

    All but PNG, and too large ones, are left out.
    """
    embedded = {}
    for name, data in pictures:
        try:
            picture = _embed(name, data)
        except (
            OSError,
            UnidentifiedImageError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
        ):
            continue
        size = len(picture.url or "")
        if size > room:
            picture = picture._replace(url=None)
        else:
            room -= size
        embedded[name] = picture
    return embedded


def _embed(name: str, png: bytes) -> Picture:
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        width, height = image.size
        if width * height > PIXELS:
            raise ValueError(f"{name}: {width} x {height} pixels, expected at most {PIXELS:,}")
        dots = image.info.get("dpi", (150, 150))[0] / 96  # CSS has 96 per inch
        data = io.BytesIO()
        if features.check("webp"):
            image.convert("RGB").save(data, "WEBP", lossless=True, method=2)
    bytes_, kind = min(
        ((data.getvalue(), "webp"), (png, "png")), key=lambda one: len(one[0]) or 1 << 40
    )
    return Picture(name, data_url(bytes_, kind), round(width / dots), round(height / dots))
