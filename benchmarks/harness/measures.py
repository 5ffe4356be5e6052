"""Every measure, with its own defaults."""

from __future__ import annotations

from hydra.utils import instantiate

from mhprobe.framework.run.members import members
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure

MEASURES = sorted(members("measure"))


def build(name: str, layout: HeadLayout) -> Measure:
    return instantiate(members("measure")[name], _convert_="all")(layout)
