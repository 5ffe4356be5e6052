"""One head per layer: chosen on some images, scored on others."""

from __future__ import annotations

import pytest
import torch

import mhprobe
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.one_head import OneHead
from models import BUILDERS, images_for, labels_for

LAYOUT = HeadLayout(
    (HeadSite("a", 0, 0, 2, 3), HeadSite("b", 1, 1, 3, 3), HeadSite("c", 1, 2, 1, 3))
)


def batch(measure, right, margin=2.0) -> HeadBatch:
    """right: (6, B) bool, per head alone in its layer; the whole model is right on every image."""
    right = torch.tensor(right)
    masked = torch.where(right, margin, -margin).double()
    images = right.shape[1]

    def logits(m):
        return torch.stack([m, torch.zeros_like(m)], -1)

    return HeadBatch(
        z=(),
        logits=logits(torch.full((images,), 2.0, dtype=torch.float64)),
        labels=torch.zeros(images, dtype=torch.long),
        valid=torch.ones(images, dtype=torch.bool),
        ablated={measure.ablation: logits(masked)},
    )


# per head how many of four images are right with it alone; best: head 1 of a, head 0 (3) of b, then
# others on test
VALIDATION = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
TEST = [[1, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_masks_leave_one_head_of_one_layer():
    masks = OneHead(LAYOUT).ablation.masks
    assert masks == ((1,), (0,), (3, 4), (2, 4), (2, 3), ())


def test_the_choice_is_made_on_validation_and_the_score_is_the_tests():
    measure = OneHead(LAYOUT)
    measure.select(batch(measure, [[bool(x) for x in row] for row in VALIDATION]))
    measure.end_select()
    measure.update(batch(measure, [[bool(x) for x in row] for row in TEST]))
    got = measure.columns()
    assert got["chosen"].tolist() == [0, 1, 1, 0, 0, 1]
    assert got["test_best"].tolist() == [1, 0, 0, 0, 1, 1]
    assert got["accuracy"].tolist() == [0.75, 0.25, 0.25, 0.5, 1, 1]
    assert got["validation"].tolist() == [0.25, 0.5, 0.75, 0.5, 0, 1]
    assert got["drop"].tolist() == [0.25, 0.75, 0.75, 0.5, 0, 0] and got["whole"] == 1
    assert got["value"].tolist() == pytest.approx(
        [-0.5, -1.5, -1.5, -1, 0, 0]
    )  # 2 nats for each flipped image
    assert (got["accuracy_low"] < got["accuracy_high"]).all()


def test_ties_in_accuracy_go_to_the_lower_loss():
    measure = OneHead(LAYOUT)
    rows = [[True, False]] * 6
    sharp = batch(measure, rows)
    ablated = sharp.ablated[measure.ablation].clone()
    ablated[3, 0, 0] = 5.0  # head 3 is surer of what it gets right
    measure.update(
        HeadBatch(
            z=(),
            logits=sharp.logits,
            labels=sharp.labels,
            valid=sharp.valid,
            ablated={measure.ablation: ablated},
        )
    )
    assert measure.columns()["test_best"].tolist() == [1, 0, 0, 1, 0, 1]


def test_without_selection_images_nothing_is_chosen():
    measure = OneHead(LAYOUT)
    measure.update(batch(measure, [[bool(x) for x in row] for row in TEST]))
    got = measure.columns()
    assert got["chosen"].sum() == 0 and got["validation"].isnan().all()


def test_the_only_head_of_a_layer_does_as_well_as_the_layer():
    model = BUILDERS["vit"](num_heads=1, embed_dim=16)
    layout = mhprobe.attach(model).layout
    measure = OneHead(layout)
    measure.update(mhprobe.record(model, images_for(model, 5), labels_for(5), measure.needs))
    got = measure.columns()
    assert got["value"].abs().max() < 1e-6 and got["drop"].abs().max() == 0
