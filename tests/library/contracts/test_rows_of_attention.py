"""Rows of attention from queries and keys as they pass, in every family: those that the unfused module shows.

The network itself runs as its user set it: nothing is switched, and its outputs have the same bits.
"""

from __future__ import annotations

import pytest
import torch

import mhprobe
from located import LOCATED
from mhprobe.heads import HeadLayout
from mhprobe.recording.looks import visible
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.rows import stream
from models import TWINS, images_for, make_loud, needs_timm

QUICK = {"maxvit", "davit", "sam", "pvt_v2"}
ALL = {**TWINS, **LOCATED}
everyone = pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK or name in TWINS else pytest.param(name, marks=pytest.mark.slow)
        for name in ALL
    ],
)


def loud(name: str, dtype: torch.dtype):
    """Gated, in this precision, and with weights so that attention is not even."""
    model = ALL[name]()
    make_loud(model, 0.3)
    # many factors of 0.3 would leave nothing of the image
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and name != "nextvit":
            torch.nn.init.ones_(module.weight)
    mhprobe.attach(model)
    return model.to(dtype)


def images_of(model, dtype: torch.dtype):
    images = images_for(model, 2)
    return images.to(dtype) if images.is_floating_point() else images


def layout_shown(model) -> HeadLayout:
    try:
        return visible(model)[0]
    except mhprobe.UserError as error:
        pytest.skip(str(error))


def switches(model):
    """What says how attention is computed, per module and in a configuration of Hugging Face's."""
    config = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return [config, *(getattr(module, "fused_attn", None) for module in model.modules())]


def rows_of(model, images, layout):
    """Per site (R, H, T, K) all rows, in two unlike parts; the logits; and the switches of each time."""
    found, seen = [], []

    def take(number, weights):
        total, _, queries, _ = weights.shape
        odd, rows = torch.arange(0, queries, 2), torch.arange(total)
        even = torch.arange(1, queries, 2)
        all_rows = torch.empty(
            weights.shape,
            dtype=images.dtype
            if images.dtype.itemsize == 8 and images.is_floating_point()
            else torch.float32,
        )
        for some in (odd, even):
            last = weights.at(rows[-1:], some)
            all_rows[:, :, some] = torch.cat([weights.at(rows[:-1], some), last]).to(all_rows)
        found.append(all_rows)
        seen.append(switches(model))
        assert number == len(found) - 1

    return found, stream(model, images, layout, take), seen


@everyone
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 3e-6), (torch.float64, 1e-12)])
def test_rows_are_those_that_the_unfused_module_shows_and_outputs_keep_their_bits(
    name, dtype, most
):
    if name == "eva_mixed" and dtype == torch.float64:
        needs_timm("1.0.31", "an EVA whose learned rotary positions are float64", verb="run")
    model = loud(name, dtype)
    images, layout = images_of(model, dtype), layout_shown(model)
    with torch.no_grad():
        plain = logits_of(model(images))
    before = switches(model)
    if dtype == torch.float64 and "eager" in before:
        most = 1e-7  # transformers rounds the softmax of its eager attention to float32
    found, logits, during = rows_of(model, images, layout)
    assert torch.equal(logits, plain)
    assert all(each == before for each in during)
    shown = mhprobe.record(model, images, needs={"attn"}, layout=layout).attn
    for mine, theirs in zip(found, shown, strict=True):
        torch.testing.assert_close(mine, theirs.flatten(0, 1).to(mine), rtol=0, atol=most)
        if mine.shape[3] > 1:  # of another head, or of another query
            assert (mine - mine.roll(1, (1 if mine.shape[1] > 1 else 2))).abs().max() > 10 * most
