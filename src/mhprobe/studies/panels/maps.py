"""Maps of single images laid over them, as python -m mhprobe.maps draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.maps.base import MapKind
from mhprobe.maps.gallery import gallery
from mhprobe.report.report import Result
from mhprobe.studies.panels.material import Material


def overlays(
    material: Material, kinds: Mapping[str, MapKind], images: Sequence[int], **options: Any
) -> dict[str, Result]:
    """images: positions in the test split. options: of ``maps.faithfulness``."""
    backbone: Any = material.model.backbone
    results, _ = gallery(backbone, material.data, images, kinds, seed=material.seed, **options)
    return results
