"""What panels compute is what they say, on inputs whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import mhprobe
from drawn import assert_nothing_is_clipped
from mhprobe.masking.base import Path
from mhprobe.masking.trace import Curve, trace
from mhprobe.report.figures import sharpness
from mhprobe.studies.panels.fft_images import halves, log_amplitude
from mhprobe.studies.panels.heat import auc_interval, hottest
from mhprobe.studies.panels.hessian import eigenvalues
from mhprobe.studies.panels.kinds_of_layers import kinds
from mhprobe.studies.panels.masked import phases
from mhprobe.studies.panels.noise import ring_noise
from models import images_for, labels_for, tiny_swin, tiny_vit


def test_the_largest_eigenvalues_are_those_of_the_whole_hessian():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    images, labels = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    weights = [model.weight, model.bias]

    def loss(flat):
        weight, bias = flat[:12].view(3, 4), flat[12:]
        return cross_entropy(images @ weight.T + bias, labels)

    whole = torch.autograd.functional.hessian(loss, torch.cat([w.detach().flatten() for w in weights]))
    expected = torch.linalg.eigvalsh(whole).flip(0)[:2]
    found = eigenvalues(model, images, labels, weights, top=2, iterations=300)
    # power iteration converges like the ratio of two eigenvalues, 300 times
    torch.testing.assert_close(torch.tensor([value for value, _ in found]).double(), expected, rtol=1e-4, atol=1e-6)
    assert expected[0] > 1.05 * expected[1] and all(change < 1e-3 for _, change in found)
    assert all(weight.requires_grad and weight.grad is None for weight in weights)


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_a_transformer_has_a_curvature_along_its_slope(build):
    """The value is a Rayleigh quotient: no direction that is tried has a larger one."""
    model = build()
    mhprobe.attach(model)
    images, labels = images_for(model, 4), labels_for(4)
    weights = list(model.parameters())
    ((value, _),) = eigenvalues(model, images, labels, weights, iterations=30)
    ((few, _),) = eigenvalues(model, images, labels, weights, iterations=2)
    assert math.isfinite(value) and abs(value) >= 0.99 * abs(few)


def test_noise_is_in_its_ring_alike_in_every_batch_and_of_size_one():
    images = torch.zeros(3, 3, 16, 16)
    noise = ring_noise(images, torch.tensor([5, 6, 7]), ring=1, rings=4, seed=0)
    torch.testing.assert_close(noise.flatten(1).std(1, correction=0), torch.ones(3), rtol=1e-5, atol=0)
    alone = ring_noise(images[:1], torch.tensor([6]), ring=1, rings=4, seed=0)
    torch.testing.assert_close(alone[0], noise[1], rtol=1e-6, atol=1e-6)
    power = np.abs(np.fft.fft2(noise.double().numpy())) ** 2
    frequency = np.fft.fftfreq(16) * 2
    radius = np.hypot(frequency[:, None], frequency[None])
    outside = (radius <= 0.25) | (radius > 0.5)
    assert power[..., outside].sum() < 1e-9 * power.sum()


def test_a_blurred_map_has_less_high_frequency_than_a_sharp_one():
    torch.manual_seed(0)
    sharp = torch.randn(8, 8, dtype=torch.float64)
    smooth = (sharp + sharp.roll(1, 0) + sharp.roll(1, 1) + sharp.roll((1, 1), (0, 1))) / 4
    a, b = (halves(log_amplitude(x)) for x in (sharp, smooth))
    assert b["high"] - b["low"] < a["high"] - a["low"]
    expected = np.fft.fftshift(np.log(np.abs(np.fft.fft2(sharp.numpy())) + 1e-6))
    np.testing.assert_allclose(log_amplitude(sharp).numpy(), expected, rtol=1e-9)


def test_heat_is_the_mass_of_the_hottest_tenth():
    even, spot = torch.ones(10, 10), torch.zeros(10, 10)
    spot[3, 4] = 2.0
    assert hottest(torch.stack([even, spot])).tolist() == pytest.approx([0.1, 1.0])


def test_the_interval_of_an_auc_is_hanley_and_mcneils():
    """Their formula by hand: 0.8 with 50 and 60 images has a standard error of 0.0428."""
    q1, q2 = 0.8 / 1.2, 2 * 0.64 / 1.8
    error = math.sqrt((0.16 + 49 * (q1 - 0.64) + 59 * (q2 - 0.64)) / 3000)
    low, high = auc_interval(0.8, 50, 60)
    assert (high - low) / 2 == pytest.approx(1.959964 * error)
    assert auc_interval(1.0, 5, 5) == (1.0, 1.0)


def test_kinds_of_layers_part_the_heads():
    vit = mhprobe.attach(tiny_vit(depth=6)).layout
    thirds = kinds(vit)
    assert list(thirds) == ["early", "middle", "late"] and sum(thirds.values()).tolist() == [1] * vit.num_heads
    swin = mhprobe.attach(tiny_swin()).layout
    found = kinds(swin)
    assert {"stage 0", "stage 1", "plain windows", "shifted windows"} <= set(found)
    assert (found["stage 0"] ^ found["stage 1"]).all() and (found["plain windows"] ^ found["shifted windows"]).all()


class _Falls:
    """An evaluate function that loses its images at the third head."""

    images = 40

    def __call__(self, masks, images=None):
        from mhprobe.masking.base import Scores

        right = torch.ones(len(masks), 40, dtype=torch.bool)
        right[masks.sum(1) >= 3] = False
        return Scores(right, torch.zeros(len(masks), 40, dtype=torch.float64))


def test_heads_fall_before_at_and_behind_the_drop():
    path = Path(None, torch.eye(6, dtype=torch.bool)[[4, 2, 0, 1]], ("a", "b", "c", "d"))
    curve = Curve("c", "test", "", "validation", False, trace([path], _Falls()))
    found = {name: mask.nonzero().flatten().tolist() for name, mask in phases(curve).items()}
    assert found == {"before": [2, 4], "at": [0], "kept": [1, 3, 5]}


def test_sharpness_is_drawn():
    rows = [{"part": part, "rank": 1, "eigenvalue": value} for part, value in (("all", 9.0), ("blocks.0", -1.0))]
    assert_nothing_is_clipped(sharpness.draw(rows))
