"""Masks are the attention that patches get, and a mask that is nearly even says so in numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from drawn import assert_nothing_is_clipped
from mhprobe.errors import UserError
from mhprobe.lab.papers.panels.attention import attention_masks
from mhprobe.lab.papers.panels.masking import drawing, masked_at_each_step
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.random import Random
from mhprobe.recording.record import record
from mhprobe.report.figures import maps as figure
from models import tiny_swin, tiny_vit


@pytest.fixture
def drawn(monkeypatch):
    """Arguments of ``maps.attention_masks(pictures, titles, names, masks)``."""
    given = {}

    def draw(pictures, titles, names, masks):
        given.update(pictures=pictures, titles=titles, names=names, masks=masks)
        return made(pictures, titles, names, masks)

    made = figure.attention_masks
    monkeypatch.setattr(figure, "attention_masks", draw)
    return given


@pytest.mark.parametrize("over_heads", ["mean", "max"])
@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_a_mask_is_the_class_tokens_row_over_even_attention(material, drawn, over_heads):
    made = attention_masks(material, images=3, over_heads=over_heads)["masks"]
    batch = material.data.some("test", 3)
    attn = record(material.model, batch.images, needs={"attn"}).attn
    for image in range(3):
        for number, weights in enumerate(attn):
            rows = weights[image, 0, :, 0, 1:].double()  # (H, patches) of the class token's query
            by_hand = (sum(rows) / len(rows) if over_heads == "mean" else rows.max(0).values) * (
                1 + 16
            )
            torch.testing.assert_close(
                drawn["masks"][number][image], by_hand.view(4, 4), rtol=1e-5, atol=0
            )
    rows = [dict(zip(made.table.columns, row, strict=True)) for row in made.table.rows]
    assert len(rows) == 3 * len(material.layout.sites) and [row["block"] for row in rows[:2]] == [
        0,
        1,
    ]
    assert (
        rows[0]["greatest"] == pytest.approx(drawn["masks"][0][0].max().item())
        and rows[0]["least"] < 1.5
    )
    assert torch.equal(
        (drawn["pictures"] * 255).round().byte(), material.data.stored("test", batch.index).images
    )
    assert_nothing_is_clipped(made.figure)


@pytest.mark.parametrize("material", [tiny_swin], indirect=True)
def test_windows_are_put_back_and_every_block_has_its_grid(material, drawn):
    made = attention_masks(material, images=1)["masks"]
    assert [mask.shape[-2:] for mask in drawn["masks"]] == [
        site.token_grid for site in material.layout.sites
    ]
    assert all(
        0 < mask.mean() < 1.001 for mask in drawn["masks"]
    )  # padding gets some of it, nothing more than all
    assert_nothing_is_clipped(made.figure)
    with pytest.raises(UserError, match="over_heads is one of mean, max, got 'min'"):
        attention_masks(material, over_heads="min")


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_what_is_drawn_at_random_is_k_heads_of_every_layer(material, monkeypatch, k):
    given = {}
    draw = drawing.masked_at_each_step

    def watched(layout, curves):
        given.update(curves)
        return draw(layout, curves)

    monkeypatch.setattr(drawing, "masked_at_each_step", watched)
    asked = SimpleNamespace(curves=lambda: (), layout=material.layout)
    assert_nothing_is_clipped(masked_at_each_step(asked, heads_per_step=k)["masked"].figure)
    (masks,) = given.values()
    steps = masks.view(len(masks), len(material.layout.sites), -1).sum(2)
    assert steps[1].tolist() == [k] * len(material.layout.sites) and steps[-1].tolist() == [3, 3]
    order = Random(repeats=4, per_layer=True, heads_per_step=k)  # as the curve of figure 9 is made
    assert torch.equal(
        masks, order.paths(make_units("head", material.layout), material.layout)[0].masks()
    )
