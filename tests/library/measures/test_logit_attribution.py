"""LogitAttribution where the answer is known, without a model."""

from __future__ import annotations

import torch

from mhprobe.heads import Direct, HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.logit_attribution import FACTS, LogitAttribution

LAYOUT = HeadLayout((HeadSite("blocks.0.attn", 0, 0, 3, 3),))


def fed(images: int = 40, classes: int = 4):
    """Head 0 speaks for the label, head 1 against class 2 on its images, head 2 says the same to all classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes
    heads = 0.1 * torch.randn(images, 3, classes, generator=generator, dtype=torch.float64)
    heads[range(images), 0, labels] += 2
    heads[labels == 2, 1, 2] -= 1
    heads[:, 2] = 7
    rest = [
        torch.randn(images, n, classes, generator=generator, dtype=torch.float64)
        for n in (1, 1, 1, 1)
    ]
    logits = heads.sum(1) + sum(part.sum(1) for part in rest)
    measure = LogitAttribution(LAYOUT)
    measure.class_names = ("ant", "bee", "cow", "doe")
    measure.update(
        HeadBatch(
            z=(),
            logits=logits,
            labels=labels,
            valid=torch.ones(images, dtype=torch.bool),
            direct=Direct(heads, *rest),
        )
    )
    return measure, measure.columns(), logits, labels


def test_who_speaks_for_the_label_and_who_against_which_class():
    measure, columns, _, _ = fed()
    assert 1.4 < columns["value"][0] < 1.6  # 2 above the mean of 4 classes: 1.5
    assert columns["low"][0] > 0
    assert columns["against"].tolist() == [0, 1, 0]
    assert measure.axes["own"][int(columns["worst_class"][1])] == "cow"
    assert (
        columns["value"][2] == 0 and columns["size"][2] == 0
    )  # softmax does not see what all classes get


def test_parts_add_up_to_the_label_s_logit():
    _, columns, logits, labels = fed()
    above = logits[range(len(labels)), labels] - logits.mean(1)
    torch.testing.assert_close(columns["logit"], above.mean(), rtol=1e-10, atol=1e-12)
    assert FACTS[0] == "logit"
    torch.testing.assert_close(
        sum(columns[name] for name in FACTS[1:]), columns["logit"], rtol=1e-10, atol=1e-12
    )
    torch.testing.assert_close(columns["heads"], columns["value"].sum(), rtol=1e-10, atol=1e-12)
