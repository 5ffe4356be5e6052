"""Attention that is no number: one line says in which block, in which head, and why."""

from __future__ import annotations

import types

import pytest
import timm
import torch

import mhprobe
from mhprobe.errors import UserError


def network(pixels: int, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=pixels, depth=2, num_classes=3, **options
    ).eval()


def without_keys(model: torch.nn.Module, query: int = 3) -> torch.nn.Module:
    """Let a query of the second block have no key."""

    def masked(self, x, attn_mask=None, **options):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        mask[query] = False
        return type(self).forward(self, x, attn_mask=mask)

    attention = model.blocks[1].attn
    attention.forward = types.MethodType(masked, attention)
    return model


@pytest.mark.parametrize("pixels", [32, 192])  # read from a matrix, and from queries and keys
def test_a_mask_that_leaves_a_query_without_keys_is_named_with_its_block(pixels):
    images = torch.randn(2, 3, pixels, pixels)
    model = without_keys(network(pixels))
    with pytest.raises(
        UserError, match=r"blocks\.1\.attn's heads .*leaves query 3 without keys"
    ) as seen:
        mhprobe.attention(model, images, query="mean")
    with pytest.raises(
        UserError, match=r"blocks\.1\.attn's heads is NaN .*without keys"
    ) as measured:
        mhprobe.measure(model, [images], [mhprobe.measures.Entropy])
    assert all("\n" not in str(error.value) for error in (seen, measured))
    # the control: another query has all its keys
    assert mhprobe.attention(model, images, query="class").isfinite().all()


def test_products_beyond_float16_are_named_with_block_and_head():
    images = torch.randn(2, 3, 32, 32).half()
    model = network(32).half()
    with torch.no_grad():
        for first in (64, 192 + 64):  # queries and keys of head 1
            model.blocks[1].attn.qkv.weight[first : first + 64] *= 3000
    fused = mhprobe.attention(model, images, query="class")
    assert fused.isfinite().all(), "the control: sums of a fused kernel are wider"
    model.blocks[1].attn.fused_attn = False
    said = r"blocks\.1\.attn's heads are NaN .* in its head 1\. .*float16 ends at 65,504"
    with pytest.raises(UserError, match=said):
        mhprobe.attention(model, images, query="class")
    said = r"blocks\.1\.attn's heads is NaN .* in its head 1\. .*float16 ends at 65,504"
    with pytest.raises(UserError, match=said):
        mhprobe.measure(model, [images], [mhprobe.measures.Entropy])


def test_queries_beyond_float16_are_named_before_the_softmax():
    images = torch.randn(2, 3, 32, 32).half()
    model = network(32).half()
    with torch.no_grad():
        model.blocks[0].attn.qkv.bias[130] = torch.inf
    with pytest.raises(UserError, match=r"blocks\.0\.attn.*head 2\. Its queries are .*65,504"):
        mhprobe.attention(model, images, query="class")


@pytest.mark.parametrize("query", [(5, 0), (-1, 0), [(0, 0), (9, 9)], "registers"])
def test_a_query_outside_the_grid_is_answered_with_what_there_is(query):
    said = r"^attention: query: expected mean, class or \(row, column\) in a grid of 2 x 2"
    with pytest.raises(UserError, match=said):
        mhprobe.attention(network(32), torch.randn(1, 3, 32, 32), query=query)


def test_images_of_another_size_are_answered_with_the_network_s():
    model, other = network(32), torch.randn(1, 3, 48, 48)
    for work in (
        lambda: mhprobe.attention(model, other, query="class"),
        lambda: mhprobe.measure(model, [other], [mhprobe.measures.Entropy]),
    ):
        with pytest.raises(UserError, match=r"^images: expected 3 x 32 x 32 .*got 3 x 48 x 48"):
            work()


def test_matrices_that_do_not_fit_are_refused_with_a_size_that_does(monkeypatch):
    model = network(320)
    for block in model.blocks:
        block.attn.fused_attn = False  # weights come to be as matrices alone
    from mhprobe.recording import checks

    layout = mhprobe.attach(model).layout
    one = 4 * checks.numbers_of(layout, {"attn"})
    monkeypatch.setattr(checks, "free_memory", lambda: 0.9 * one)
    with pytest.raises(
        UserError, match=r"GiB of free memory .* one of img_size=\d+ takes"
    ) as error:
        mhprobe.measure(model, [torch.randn(1, 3, 320, 320)], [mhprobe.measures.Entropy])
    assert "\n" not in str(error.value)
    for block in model.blocks:  # the control: rows of fused attention fit
        block.attn.fused_attn = True
    assert mhprobe.measure(model, [torch.randn(1, 3, 320, 320)], [mhprobe.measures.Entropy])
