"""Attention in the page is the model's, to the precision that is promised, for every family; and it fits the page."""

from __future__ import annotations

import base64
import gzip
import math

import numpy as np
import pytest
import torch

import mhprobe
from located import LOCATED
from mhprobe.backbones import attach
from mhprobe.errors import UserError
from mhprobe.pages.looking import seen
from mhprobe.pages.looking.seen import (
    FormOfAttention,
    all_packed,
    attention_of_image,
    form_that_fits,
    packed_attention,
)
from models import tiny_registers, tiny_swin, tiny_vit
from oracles.attention import sites_of


def unpacked(text, layout, form):
    """Per site (windows, heads, rows, keys) weights as the page's script reads them."""
    data, found, at = gzip.decompress(base64.b64decode(text)), [], 0
    for site in layout.sites:
        windows, keys = site.places().shape
        fields = math.prod(math.ceil(side / form.field) for side in site.token_grid)
        shape = (
            windows,
            site.num_heads,
            site.prefix_tokens + fields if site.windows is None else keys,
        )
        largest = np.frombuffer(data, "<u2", math.prod(shape), at).reshape(shape)
        at += largest.nbytes
        levels = np.frombuffer(data, "u1", math.prod(shape) * keys, at).reshape(*shape, keys)
        at += levels.nbytes
        found.append(torch.from_numpy(largest[..., None] / 65535 * (levels / form.levels) ** 2))
    assert at == len(data)
    return found


@pytest.mark.parametrize("make", [tiny_vit, tiny_registers, tiny_swin])
@pytest.mark.parametrize("levels", [15, 63])
def test_a_page_has_every_weight_to_one_step_of_its_levels(make, levels):
    model = make()
    layout = attach(model).layout
    image = torch.randn(1, 3, 18, 18)[
        ..., : 18 if make is tiny_swin else 16, : 18 if make is tiny_swin else 16
    ]
    attention = attention_of_image(model, image)
    form = FormOfAttention(levels, 1)
    read_back = unpacked(packed_attention(attention, layout, form), layout, form)
    for whole, read in zip(attention, read_back, strict=True):
        largest = whole.amax(-1, keepdim=True).double()
        # half a step of the root at its top is a step of the weight; half a step of uint16
        assert ((whole - read).abs() <= largest / levels + 1 / 65535).all()
        assert (whole - read).abs().max() > 0  # it is packed, and not the same


def test_the_attention_is_that_of_hooks_by_hand():
    model = tiny_vit()
    image = torch.randn(1, 3, 16, 16)
    by_hand = sites_of(model, image, [("blocks.0.attn", 1), ("blocks.1.attn", 1)])
    for mine, theirs in zip(attention_of_image(model, image), by_hand, strict=True):
        torch.testing.assert_close(
            mine[0], theirs.maps[0], rtol=0, atol=1e-6
        )  # another order of the same sums


def test_queries_are_averaged_over_fields_and_prefix_tokens_are_not():
    model = tiny_registers()
    layout = attach(model).layout
    attention = attention_of_image(model, torch.randn(1, 3, 16, 16))
    (site,) = layout.sites[:1]
    read = unpacked(
        packed_attention(attention, layout, FormOfAttention(63, 2)), layout, FormOfAttention(63, 2)
    )[0][0]
    prefix, whole = site.prefix_tokens, attention[0][0].double()
    assert read.shape[1] == prefix + 4  # a grid of 4 x 4 in fields of 2 x 2
    corner = [prefix + token for token in (0, 1, 4, 5)]
    assert (read[:, prefix] - whole[:, corner].mean(1)).abs().max() < whole.max() / 63
    assert (read[:, 0] - whole[:, 0]).abs().max() < whole.max() / 63


@pytest.mark.parametrize("make", [tiny_vit, tiny_registers, tiny_swin])
def test_rows_that_are_averaged_as_they_pass_are_those_of_whole_matrices(make, monkeypatch):
    model = make()
    layout = attach(model).layout
    side = 18 if make is tiny_swin else 16
    image = torch.randn(1, 3, side, side)
    whole = attention_of_image(model, image)
    monkeypatch.setattr("mhprobe.heads.attention.CHUNK", 50)  # a few queries at a time
    for field in (2, 4):
        form = FormOfAttention(63, field)
        averaged = attention_of_image(model, image, field)
        for site, mine, theirs in zip(layout.sites, averaged, whole, strict=True):
            assert (mine.shape[2] < theirs.shape[2]) == (site.windows is None)
            expected = seen._rows(theirs, site, field)
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)
        read = [
            unpacked(packed_attention(of, layout, form), layout, form) for of in (averaged, whole)
        ]
        for mine, theirs in zip(*read, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0.04)


def test_a_form_that_cannot_fit_is_not_tried(monkeypatch):
    model, tried = tiny_vit(), []
    attend = seen.attention_of_image

    def watched(model, image, field=1):
        tried.append(field)
        return attend(model, image, field)

    monkeypatch.setattr(seen, "attention_of_image", watched)
    form, pack = form_that_fits(model, torch.randn(1, 3, 16, 16), images=1000, room=100)
    assert form == seen.FORMS[-1] and pack and tried == [seen.FORMS[-1].field]
    form_that_fits(model, torch.randn(1, 3, 16, 16), images=1, room=10**6)  # negative control
    assert tried[1:] == [1]


def test_the_finest_form_that_has_room_is_taken_then_images_are_left_out(monkeypatch):
    model = tiny_vit()
    layout = attach(model).layout
    images = torch.randn(6, 3, 16, 16)
    attention = attention_of_image(model, images[:1])
    sizes = [
        len(packed_attention(attention, layout, FormOfAttention(*form))) for form in seen.FORMS
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 1.5 * sizes[2]
    assert form_that_fits(model, images[:1], 6, 6 * sizes[0])[0] == seen.FORMS[0]
    assert form_that_fits(model, images[:1], 6, 6 * sizes[2])[0] == seen.FORMS[2]
    monkeypatch.setattr(seen, "ROOM", 3 * sizes[-1] + sizes[-1] // 2)
    begun, done = [], []
    form, packs = all_packed(
        model, images, lambda *each: begun.append(each), lambda: done.append(1)
    )
    assert len(packs) in (2, 3) and len(done) == len(
        packs
    )  # gzip does not give every image the same size
    assert begun == [(form, packs[0])]


def test_attention_that_is_none_between_patches_is_refused_with_the_reason():
    model = LOCATED["xcit"]()
    mhprobe.attach(model)
    with pytest.raises(UserError, match="attention"):
        attention_of_image(model, torch.randn(1, 3, 16, 16))
