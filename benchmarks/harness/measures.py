"""Every measure, as its yaml sets it."""

from __future__ import annotations

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import OmegaConf

from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure

YAMLS = sorted((Path(__file__).parents[2] / "conf" / "measure").glob("*.yaml"))


def build(yaml: Path, layout: HeadLayout) -> Measure:
    return instantiate(OmegaConf.load(yaml), _convert_="all")(layout)
