"""The place of a token is read linearly: of tokens that hold it, and of loud ones that do not."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, Stream
from mhprobe.lab.claims.parts import evidence

SIDE, CHANNELS, IMAGES = 6, 8, 24


def drawn(seed, loud=True):
    """(images, tokens, channels) that hold row and column, but for one loud token in two of three images."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randn(IMAGES, SIDE * SIDE, CHANNELS, generator=random)
    cells = torch.arange(SIDE * SIDE)
    tokens[..., 0], tokens[..., 1] = (cells // SIDE).float(), (cells % SIDE).float()
    which = torch.randint(SIDE * SIDE, (IMAGES,), generator=random)
    for image in range(IMAGES):
        if loud and image % 3:
            tokens[image, which[image]] = 60 * torch.randn(CHANNELS, generator=random)
    return tokens


def read(monkeypatch, of):
    plain = layout_of(2)
    site = HeadLayout((dataclasses.replace(plain.sites[0], grid=(SIDE, SIDE)),))
    valid = torch.ones(IMAGES, dtype=torch.bool)

    def recorded(model, split, needs):
        stream = {site.sites[0].block: Stream(of[split], of[split], of[split])}
        yield SimpleNamespace(valid=valid), SimpleNamespace(need=lambda need, who: stream)

    monkeypatch.setattr(evidence, "recorded", recorded)
    material = SimpleNamespace(layout=site, model=None, walk=lambda images, split: lambda: split)
    return tuple(evidence.place_errors(material, {}, IMAGES).values())


def test_the_reading_is_that_of_least_squares(monkeypatch):
    of = {"val": drawn(1), "test": drawn(2)}
    loud, other = read(monkeypatch, of)
    cells = np.stack([np.arange(36) // SIDE, np.arange(36) % SIDE], 1) - (SIDE - 1) / 2
    with_one = {
        name: np.concatenate([x.double().numpy(), np.ones((IMAGES, 36, 1))], 2)
        for name, x in of.items()
    }
    weights = np.linalg.lstsq(
        with_one["val"].reshape(-1, CHANNELS + 1), np.tile(cells, (IMAGES, 1)), rcond=None
    )[0]
    for image in range(IMAGES):
        far = (
            np.linalg.norm(with_one["test"][image] @ weights - cells, axis=1)
            / np.linalg.norm(cells, axis=1).mean()
        )
        norm = np.linalg.norm(with_one["test"][image][:, :-1], axis=1)
        top = norm > norm.mean() + 3 * norm.std()
        assert float(other[image]) == pytest.approx(
            far[~top].mean(), rel=1e-3
        )  # the ridge is a millionth
        if top.any():
            assert float(loud[image]) == pytest.approx(far[top].mean(), rel=1e-3)
        assert bool(loud[image].isnan()) == (not top.any())
    assert 0 < int(loud.isnan().sum()) < IMAGES and float((loud - other).nanmean()) > 0.1


def test_a_network_without_loud_tokens_is_refused(monkeypatch):
    with pytest.raises(UserError, match="no image has tokens of high norm"):
        read(monkeypatch, {"val": drawn(1), "test": drawn(2, loud=False)})
