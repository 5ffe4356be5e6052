"""What a masking curve's scores are kept under: everything that decides them."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

import mhprobe
from mhprobe.callbacks.curve import identity_of
from mhprobe.data.base import InputSpec
from mhprobe.masking import cache
from mhprobe.masking.cache import cache_key
from models import tiny_vit


class Classifier(nn.Module):
    """What the curves ask of one."""

    def __init__(self, backbone: nn.Module, **settings) -> None:
        super().__init__()
        self.backbone, self.gates = backbone, mhprobe.attach(backbone)
        self.description = {"backbone": {"name": "vit", **settings}}


def key(module: nn.Module, images: str = "some", **spec) -> str:
    data = SimpleNamespace(fingerprint=images, spec=InputSpec(size=(16, 16), **spec))
    return cache_key(**identity_of(module, data))


def test_the_same_weights_on_other_numbers_or_in_another_network_are_scored_anew():
    first = key(Classifier(tiny_vit()))
    assert first == key(Classifier(tiny_vit()))  # and the same again is not
    others = [
        key(Classifier(tiny_vit(seed=1))),
        key(Classifier(tiny_vit()), images="others"),
        key(Classifier(tiny_vit()), mean=(0.4, 0.5, 0.5)),
        key(Classifier(tiny_vit()), std=(0.4, 0.5, 0.5)),
        key(Classifier(tiny_vit(), norm_layer="rmsnorm")),
        key(Classifier(tiny_vit(num_heads=4))),
    ]
    assert len({first, *others}) == 1 + len(others)


def test_gates_are_a_part_of_it():
    closed = Classifier(tiny_vit())
    closed.gates.close(closed.gates.layout.mask([2]))
    assert key(closed) != key(Classifier(tiny_vit()))


def test_answers_of_code_that_meant_another_number_are_left_alone(monkeypatch):
    before = key(Classifier(tiny_vit()))
    monkeypatch.setattr(cache, "SCHEME", cache.SCHEME + 1)
    assert key(Classifier(tiny_vit())) != before
