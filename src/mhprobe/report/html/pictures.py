"""Figures inside a page: smaller by lossless WebP, as many as there is room for."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError, features

ROOM = 4_500_000  # bytes of a page that figures may take


class Picture(NamedTuple):
    """url: with the picture in it, or None where there was no room. width, height: in CSS pixels."""

    path: Path
    url: str | None
    width: int
    height: int


def embed(paths: Sequence[Path], room: int = ROOM) -> list[Picture]:
    """In this order, until ``room`` is full; a file that is no picture is left out."""
    found = []
    for path in paths:
        try:
            picture = _embed(path)
        except (OSError, UnidentifiedImageError):
            continue
        size = len(picture.url or "")
        if size > room:
            picture = picture._replace(url=None)
        else:
            room -= size
        found.append(picture)
    return found


def _embed(path: Path) -> Picture:
    with Image.open(path) as image:
        width, height = image.size
        dots = image.info.get("dpi", (150, 150))[0] / 96  # CSS has 96 per inch
        data = io.BytesIO()
        if features.check("webp"):
            image.convert("RGB").save(data, "WEBP", lossless=True, method=2)
    bytes_, kind = min(((data.getvalue(), "webp"), (path.read_bytes(), "png")), key=lambda one: len(one[0]) or 1 << 40)
    url = f"data:image/{kind};base64,{base64.b64encode(bytes_).decode()}"
    return Picture(path, url, round(width / dots), round(height / dots))
