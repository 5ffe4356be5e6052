"""In every family, an image's own outputs in the place of all its heads change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.data.batch import Batch
from mhprobe.recording.fills import find_fill
from mhprobe.recording.replay import Replay
from models import TWINS, images_for


@pytest.mark.parametrize("build", TWINS.values(), ids=TWINS.keys())
def test_an_images_own_outputs_in_its_heads_places_change_nothing(build):
    model = build().eval()
    for number, parameter in enumerate(model.parameters()):  # heads matter, layer scales too
        nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(number))
    layout = mhprobe.attach(model).layout
    images = images_for(model, 3)

    def batches(count):
        index = torch.arange(count)
        return lambda: [
            Batch(images[:count], torch.zeros(count, dtype=torch.long), index, index >= 0)
        ]

    every = torch.ones(1, layout.num_heads, dtype=torch.bool)
    whole = Replay(model, ~every)(images)[0]
    own = Replay(model, every, fill=find_fill(model, "mean_per_position", batches(1)))(images[:1])[
        0
    ]
    torch.testing.assert_close(own, whole[:1], rtol=1e-4, atol=1e-5)
    for name in ("mean", "resample"):  # the control
        other = Replay(model, every, fill=find_fill(model, name, batches(3)))(images)[0]
        assert other.shape == whole.shape and not torch.allclose(other, whole, rtol=1e-3, atol=1e-4)
