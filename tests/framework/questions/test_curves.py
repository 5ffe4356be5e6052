"""What a masking curve's scores are kept under: everything that decides them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mhprobe
from curves import curve
from mhprobe.data.base import InputSpec
from mhprobe.data.batch import Batch
from mhprobe.framework.questions import scorers as scorers_module
from mhprobe.framework.questions.masking import Masking
from mhprobe.framework.questions.material import Material
from mhprobe.framework.questions.subject import Subject
from mhprobe.masking.base import Scored
from mhprobe.masking.parts import cache
from mhprobe.masking.parts.cache import cache_key
from mhprobe.measures.base import Measure
from mhprobe.scoring.base import known_scores
from mhprobe.scoring.labels import Labels
from models import images_for, tiny_vit


class Classifier(nn.Module):
    """What the curves ask of one."""

    def __init__(self, backbone: nn.Module, **settings) -> None:
        super().__init__()
        self.backbone, self.gates = backbone, mhprobe.attach(backbone)
        self.description = {"backbone": {"name": "vit", **settings}}

    def forward(self, images):
        return self.backbone(images)


def key(module: nn.Module, images: str = "some", **spec) -> str:
    data = SimpleNamespace(fingerprint=images, spec=InputSpec(size=(16, 16), **spec))
    return cache_key(**Subject(module.gates.layout, module, data).identity)


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


class Halved(Labels):
    """A user's: of the labels, too, but another number."""

    scored = Scored("halved", "accuracy", "accuracy")


def test_answers_to_one_score_are_not_anothers(monkeypatch, tmp_path):
    kinds = {**known_scores(), "halved": Halved}
    keys = {
        name: _key_of_kept_answers(kind, "these", monkeypatch, tmp_path)
        for name, kind in kinds.items()
    }
    assert len(kinds) >= 6 and len(set(keys.values())) == len(kinds)
    assert keys["labels"] == cache_key(
        weights="same", split="test", rescale=False
    )  # older answers are found


def test_answers_beside_other_training_images_are_others_where_these_vote(monkeypatch, tmp_path):
    for kind in known_scores().values():
        these, others = (
            _key_of_kept_answers(kind, images, monkeypatch, tmp_path)
            for images in ("these", "others")
        )
        assert (these != others) == (kind.banked > 0)


def _key_of_kept_answers(kind, training_images, monkeypatch, tmp_path):
    """The key under which a masking curve keeps its answers on test images to one score."""
    module = Classifier(tiny_vit()).eval()
    module.device, module.features_only = torch.device("cpu"), False
    data = SimpleNamespace(
        batches=lambda *_: iter(()),
        sizes={"val": 7, "test": 7},
        images_of=lambda split: {"train": training_images}.get(split, split),
    )
    masking = Masking({}, tmp_path, score=kind)
    material = Material(module.gates.layout, module, data, masking=masking, first=False)
    material.facts = {"weights": "same"}
    outputs, labels, keys = torch.rand(7, 5), torch.zeros(7, dtype=torch.long), []
    score = kind(outputs, labels) if kind.unmasked else kind()
    monkeypatch.setattr(scorers_module, "MaskCache", lambda folder, key: keys.append(key))
    scorer = material.scorers.on("test")
    scorer.score, scorer.fills.found = score, {"zero": None}
    scorer.under(SimpleNamespace(name="curve", fill="zero", rescale=False))
    return keys[0]


LABEL = {"train": 0, "val": 1, "test": 2}  # what all images of a split are labelled


class Noting(Measure):
    """Which split it chose on, and which it measured."""

    select_needs = frozenset()

    def __init__(self, layout):
        super().__init__(layout)
        self.seen: dict[str, set[int]] = {"chosen": set(), "measured": set()}

    def select(self, batch):
        self.seen["chosen"] |= set(batch.labels.tolist())

    def end_select(self):
        pass

    def update(self, batch):
        self.seen["measured"] |= set(batch.labels.tolist())
        self.images += len(batch.labels)

    def finish(self):
        return {"value": torch.zeros(self.layout.num_heads)}


@pytest.mark.parametrize(("select_on", "measured"), [("validation", "val"), ("test", "test")])
def test_a_measure_of_the_join_chooses_on_validation_images(select_on, measured):
    module = Classifier(tiny_vit()).eval()

    def batches(split, device, images=None):
        label = torch.full((4,), LABEL[split])
        yield Batch(
            images_for(module.backbone, 4), label, torch.arange(4), torch.ones(4, dtype=torch.bool)
        )

    made = []

    def measures(layout):
        made.append(Noting(layout))
        return {"noting": made[0]}

    join = SimpleNamespace(measures=measures, answer=lambda curves, columns: [])
    module.device = torch.device("cpu")
    data = SimpleNamespace(batches=batches, class_names=("a", "b", "c"))
    material = Material(
        module.gates.layout, module, data, masking=Masking({}, None, select_on, join=join)
    )
    material.masked_heads([curve("c", [0, 1], [0.9, 0.8])])
    assert made[0].seen == {"chosen": {LABEL["val"]}, "measured": {LABEL[measured]}}
    assert made[0].class_names == ("a", "b", "c")
