"""The notebook's masking_curve on a real model: rescaling, and a target in FLOPs, against the pruned model itself."""

from __future__ import annotations

import pytest
import torch

import mhprobe
from mhprobe.surgery.costs import count_flops
from models import images_for, labels_for, tiny_vit


@pytest.fixture
def model():
    model = tiny_vit()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # heads of a fresh timm model are nearly silent
    return model


@pytest.fixture
def loader(model):
    return [(images_for(model, 20), labels_for(20))]


def test_a_target_in_flops_is_met_by_the_pruned_model_and_not_one_step_earlier(model, loader):
    rows = mhprobe.masking_curve(
        model,
        loader,
        units="head",
        order="by_score",
        target={"flops": 0.9},
        measure=mhprobe.measures.GateImportance,
    )
    image = loader[0][0][:1]
    dense = count_flops(model, image)
    left = [
        count_flops(
            mhprobe.prune_heads(model, [int(head) for head in row["masked"].split()]), image
        )
        / dense
        for row in rows
    ]
    assert left[-1] <= 0.9 < left[-2] and len(rows) > 2


def test_rescaled_heads_are_multiplied_by_heads_over_kept(model, loader):
    plain = mhprobe.masking_curve(model, loader, units="head", order="random", repeats=1)
    rescaled = mhprobe.masking_curve(
        model, loader, units="head", order="random", repeats=1, rescale=True
    )
    gates = mhprobe.attach(model)
    for row in rescaled:
        off = gates.layout.mask([int(head) for head in row["masked"].split()])
        values = torch.cat(
            [(~part) * (3 / max(1, int((~part).sum()))) for part in gates.layout.split(off)]
        )
        with gates.fixed(values), torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(loader[0][0]).double(), loader[0][1])
        assert row["loss"] == pytest.approx(
            loss.item(), rel=1e-4
        )  # float32 products in another order
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(plain, rescaled, strict=True)) > 0.01
    assert rescaled[0]["loss"] == plain[0]["loss"]


def test_a_measure_by_name_is_refused_with_what_it_takes(model, loader):
    with pytest.raises(
        mhprobe.UserError,
        match=r"by_score.measure: expected a class or function or null, got 'svcca'",
    ):
        mhprobe.masking_curve(model, loader, units="head", order="by_score", measure="svcca")
