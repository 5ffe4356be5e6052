"""What panels are made of, of a small untrained network and random images."""

from __future__ import annotations

import lightning as L
import pytest

import mhprobe
from data_sets import Noise
from mhprobe.data.base import ImageData
from mhprobe.framework.questions.material import Material
from models import make_loud, tiny_vit


class Whole(L.LightningModule):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, images):
        return self.backbone(images)


class Gated(Material):
    def untrained(self):
        twin = tiny_vit(1)
        mhprobe.attach(twin)
        return twin


@pytest.fixture
def material(request, tmp_path):
    backbone = request.param()
    make_loud(backbone, 0.2)
    layout = mhprobe.attach(backbone).layout
    noise = Noise((40, 21), 5, backbone.patch_embed.img_size[0])
    data = ImageData(noise, 8, eval_batch_size=21, cache_dir=tmp_path, val_fraction=0.5)
    data.prepare_data()
    data.setup("test")
    return Gated(layout, Whole(backbone).eval(), data)
