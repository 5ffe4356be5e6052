"""Where a site's tokens stand in its attention matrix, held against timm's own rolls, windows and masks."""

from __future__ import annotations

import pytest
import torch
from timm.models.swin_transformer import window_partition

import mhprobe
from mhprobe.backbones import family_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite
from models import BUILDERS, images_for, labels_for, tiny_swin, tiny_vit


@pytest.mark.parametrize("size", [16, 18, 24])
def test_places_and_support_are_those_of_timm(size):
    model = tiny_swin(img_size=size)
    layout = mhprobe.attach(model).layout
    blocks = [block for layer in model.layers for block in layer.blocks]
    shifted = 0
    for site, block in zip(layout.sites, blocks, strict=True):
        height, width = block.input_resolution
        grid = torch.arange(1, height * width + 1).view(1, height, width, 1)
        grid = torch.roll(grid, (-block.shift_size[0], -block.shift_size[1]), (1, 2))
        pad = (0, 0, 0, -width % block.window_size[1], 0, -height % block.window_size[0])
        windows = (
            window_partition(torch.nn.functional.pad(grid, pad), block.window_size).flatten(1) - 1
        )
        assert torch.equal(site.places(), windows)
        real = windows >= 0
        expected = real[:, :, None] & real[:, None, :]
        mask = block.get_attn_mask()
        if mask is not None:
            expected &= mask == 0
            shifted += 1
        assert torch.equal(site.support(), expected)
    assert shifted  # else the regions were never looked at


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_every_token_stands_in_one_place_and_may_attend_to_itself(build):
    model = build()
    layout = mhprobe.attach(model).layout
    batch = mhprobe.record(model, images_for(model, 1), needs={"attn"})
    for site, z, attn in zip(layout.sites, batch.z, batch.attn, strict=True):
        places = site.places()
        assert sorted(places[places >= 0].tolist()) == list(range(z.shape[1]))
        assert site.support().shape == (attn.shape[1], *attn.shape[3:])
        assert torch.equal(site.support().diagonal(dim1=1, dim2=2), places >= 0)


def test_tokens_of_a_grid_stand_in_input_pixels():
    def last(site):
        return [
            (count - 1) * step for count, step in zip(site.token_grid, site.pixels, strict=True)
        ]

    vit, swin = mhprobe.attach(tiny_vit(reg_tokens=1)).layout, mhprobe.attach(tiny_swin()).layout
    assert vit.sites[0].token_grid == (4, 4) and last(vit.sites[0]) == [12, 12]
    # 9 x 9 tokens of 2 pixels, merged to 5 x 5 tokens of 4
    assert last(swin.sites[0]) == last(swin.sites[2]) == [16, 16]


def test_tokens_without_a_fixed_grid_have_no_positions():
    with pytest.raises(UserError, match="no fixed grid"):
        HeadSite("a", 0, 0, 1, 1).places()


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_the_stream_is_what_the_heads_write_into(build):
    """before + sum over heads of z W_O + bias = middle; the end of a block is the start of the next in its stage."""
    model = build()
    layout, family = mhprobe.attach(model).layout, family_of(model)
    batch = mhprobe.record(model, images_for(model, 2), needs={"stream", "weights"})
    for site, z, weights in zip(layout.sites, batch.z, batch.weights, strict=True):
        bias, scale = family.seam(model, site).output.bias, family.layer_scale(model, site)
        bias = bias if scale is None else bias * scale
        stream = batch.stream[site.block]
        written = torch.einsum("bthd,hdc->btc", z, weights.output) + bias
        # one float32 product in another order
        torch.testing.assert_close(stream.before + written, stream.middle, rtol=1e-4, atol=1e-5)
        assert (
            written.abs().mean() > 10 * 1e-5
        )  # heads do write: more than the tolerance would hide
    for a, b in zip(layout.blocks, layout.blocks[1:], strict=False):
        if a.stage == b.stage:
            number = layout.blocks.index(b)
            assert torch.equal(batch.stream[number - 1].after, batch.stream[number].before)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_slopes_along_attention_are_those_of_autograd_through_the_value_product(build):
    """dL/dA[q, k] = <dL/dz[q], v[k]> for each head: from the recorded slopes of z and the values of the module."""
    model = build()
    images, labels = images_for(model, 2), labels_for(2)
    layout = mhprobe.attach(model).layout
    rows = {}
    for site in layout.sites:
        model.get_submodule(site.name).register_forward_pre_hook(
            lambda _, args, name=site.name: rows.__setitem__(name, args[0].detach())
        )
    batch = mhprobe.record(model, images, labels, {"grad", "attn_grad"})
    for site, grad, slope in zip(layout.sites, batch.grad, batch.attn_grad, strict=True):
        values = (
            model.get_submodule(site.name)
            .qkv(rows[site.name])
            .unflatten(-1, (3, site.num_heads, site.head_dim))
        )
        values = values[:, :, 2].unflatten(0, slope.shape[:2])
        places = site.places()
        grad_BWQHD = (
            grad[:, places.clamp(min=0)] * (places >= 0)[..., None, None]
        )  # padding is cut: slope 0
        expected = torch.einsum("bwqhd,bwkhd->bwhqk", grad_BWQHD, values)
        torch.testing.assert_close(slope, expected, rtol=1e-3, atol=1e-7)


def test_a_nan_is_traced_to_its_site_and_image():
    model = tiny_vit()
    mhprobe.attach(model)
    images = images_for(model, 3)
    images[1, 0, 0, 0] = torch.nan
    with pytest.raises(UserError, match=r"blocks\.0\.attn's heads is NaN or infinite for image 41"):
        mhprobe.record(model, images, needs=(), index=torch.tensor([40, 41, 42]))
    valid = torch.tensor([True, False, True])  # padding may be anything
    assert mhprobe.record(model, images, needs=(), valid=valid).valid.tolist() == [
        True,
        False,
        True,
    ]
