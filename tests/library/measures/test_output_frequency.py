from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadBatch, HeadLayout, HeadSite, HeadWeights, Stream
from mhprobe.measures.output_frequency import OutputFrequency, diagonal_frequencies
from models import images_for, tiny_registers, tiny_swin, tiny_vit

FLOOR = 1e-6


def one_layer(grid=(8, 8), prefix=1) -> HeadLayout:
    site = HeadSite("b.attn", 0, 0, 2, 3, prefix_tokens=prefix, grid=grid)
    return HeadLayout((site,), (Block("b", 0, "b.norm2"),))


def batch_of(layout: HeadLayout, maps, stream=None) -> HeadBatch:
    """Both heads' three channels show ``maps`` (B, height, width); head 1 writes twice as much as head 0."""
    site = layout.sites[0]
    tokens = torch.cat(
        [torch.full((len(maps), site.prefix_tokens), 99.0).double(), maps.flatten(1)], 1
    )
    z = tokens[:, :, None, None].expand(-1, -1, 2, 3)
    output = torch.stack([torch.eye(3, 5), 2 * torch.eye(3, 5)]).double()
    output[:, :, 3:] = 1.0  # two more channels of the stream that hear all three
    three = Stream(*(tokens[:, :, None].expand(-1, -1, 5) * s for s in (1.0, 2.0, 3.0)))
    return HeadBatch(
        z=(z,),
        weights=(HeadWeights(output, output, output, output),),
        stream=(stream or three,),
        logits=torch.zeros(len(maps), 2),
        valid=torch.ones(len(maps), dtype=torch.bool),
    )


def columns(layout, *batches):
    measure = OutputFrequency(layout)
    for batch in batches:
        measure.update(batch)
    return measure.columns()


def grating(k: int, side: int = 8) -> torch.Tensor:
    down, across = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return (1 + torch.cos(2 * math.pi * k * (down + across) / side)).double()[None]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_diagonal_grating_on_a_pedestal_has_half_its_amplitude_at_its_frequency(k):
    got = columns(one_layer(), batch_of(one_layer(), grating(k)))
    expected = torch.full((2, 4), math.log(FLOOR)).double()
    expected[:, 0], expected[:, k] = math.log(64), math.log(32)
    # the two heads differ by a factor, which a difference of logarithms does not see (up to the
    # floor)
    torch.testing.assert_close(
        got["spectrum"][:, k], torch.full((2,), -math.log(2)).double(), rtol=1e-6, atol=1e-6
    )
    quiet = [j for j in (1, 2, 3) if j != k]
    assert (got["spectrum"][:, quiet] < -15).all()
    torch.testing.assert_close(got["value"], got["spectrum"][:, 3])
    assert got["frequency"].tolist() == [0.75, 0.75]


def test_a_constant_map_has_nothing_but_frequency_zero():
    got = columns(one_layer(), batch_of(one_layer(), torch.ones(1, 8, 8).double()))
    amplitude = torch.tensor(
        [64.0, 64, 64, 192, 192]
    ).double()  # of head 0's channels: three copies, two sums of them
    expected = math.log(FLOOR) - (amplitude + FLOOR).log().mean()
    torch.testing.assert_close(got["spectrum"][0, 1:], expected.expand(3), rtol=1e-6, atol=1e-6)
    assert (got["variance"] == 0).all()


def test_white_noise_is_flat():
    maps = torch.randn(4000, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = columns(one_layer(), batch_of(one_layer(), maps))
    # |amplitude|^2 is exponential off frequency 0, and chi-square with one degree of freedom at it
    # (the sum is real): E ln|.| differs by (ln 2 - 0) / 2 + ... = ln 2 / 2 + (digamma(1) -
    # digamma(1/2) - ln 2) / 2 = ln 2 / 2
    torch.testing.assert_close(
        got["spectrum"][:, 1:], torch.full((2, 3), math.log(2) / 2).double(), rtol=0, atol=0.06
    )


def test_variance_over_the_grid_is_unbiased_and_leaves_prefix_tokens_out():
    maps = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = columns(one_layer(), batch_of(one_layer(), maps))
    expected = maps.flatten(1).var(1).mean()
    torch.testing.assert_close(
        got["variance"][0], expected * torch.tensor([1.0, 4.0, 9.0]).double()
    )
    torch.testing.assert_close(got["variance_mlp"], expected.expand(2) * 9)


def test_the_logarithm_comes_before_the_mean():
    loud, quiet = 1 + 10 * (grating(1) - 1), 1 + 0.1 * (grating(1) - 1)
    both = columns(one_layer(), batch_of(one_layer(), torch.cat([loud, quiet])))["spectrum"][:, 1]
    torch.testing.assert_close(both, torch.full((2,), math.log(0.5)).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ((8, 8), [0, 0.25, 0.5, 0.75]),
        ((7, 7), [0, 2 / 7, 4 / 7, 6 / 7]),
        ((8, 4), [0, 0.5]),
        ((2, 2), [0]),
    ],
)
def test_frequencies_are_those_that_both_sides_have(grid, expected):
    assert [float(f) for f in diagonal_frequencies(grid)] == pytest.approx(expected)


def test_a_grid_without_frequencies_has_no_value():
    got = columns(one_layer((2, 2)), batch_of(one_layer((2, 2)), torch.randn(3, 2, 2).double()))
    assert got["value"].isnan().all()


def test_a_single_token_has_no_variance_and_the_other_columns_do_not_mind():
    got = columns(one_layer((1, 1)), batch_of(one_layer((1, 1)), torch.randn(3, 1, 1).double()))
    assert (
        got["value"].isnan().all() and got["variance"].isnan().all() and got["spectrum"].eq(0).all()
    )


@pytest.mark.parametrize(
    "build", [tiny_vit, tiny_registers, tiny_swin], ids=lambda build: build.__name__
)
def test_spectra_match_fft2_of_heads_and_stream(build):
    bare = build().double()
    torch.manual_seed(3)
    for parameter in bare.parameters():
        nn.init.normal_(parameter, std=0.3)
    gated = copy.deepcopy(bare)
    layout = mhprobe.attach(gated).layout
    batch = mhprobe.record(
        gated, images_for(bare, 3, dtype=torch.float64), needs={"stream", "weights"}
    )
    measure = OutputFrequency(layout)
    measure.update(batch)
    got = measure.columns()
    names = measure.axes["spectrum"]

    def spectrum(maps, site):  # (B, T, C), as Park & Kim's code does it
        grid = maps[:, site.prefix_tokens :].unflatten(1, site.grid).permute(0, 3, 1, 2)
        log = (
            (torch.fft.fftshift(torch.fft.fft2(grid), dim=(-2, -1)).abs() + FLOOR)
            .log()
            .mean((0, 1))
        )
        diag = log.diagonal()[site.grid[0] // 2 :]
        return diag - diag[0]

    for number, (site, z, weights) in enumerate(
        zip(layout.sites, batch.z, batch.weights, strict=True)
    ):
        for head in range(site.num_heads):
            row = got["spectrum"][layout.flat(number, head)]
            expected = spectrum(z[:, :, head] @ weights.output[head], site)
            torch.testing.assert_close(row[~row.isnan()], expected, rtol=1e-9, atol=1e-9)
            own = [2 * k / site.grid[0] for k in range(len(expected))]
            assert [names[i] for i in torch.nonzero(~row.isnan()).flatten()] == [
                f"{f:.4g}π" for f in own
            ]
        for place, stream in enumerate(batch.stream[site.block]):
            row = got["stream"][site.block, place]
            torch.testing.assert_close(
                row[~row.isnan()], spectrum(stream, site), rtol=1e-9, atol=1e-9
            )
    assert got["value"].isfinite().all()
    assert got["after_attention"].std() > 0


def test_missing_material_is_named():
    layout = one_layer()
    batch = batch_of(layout, grating(1))
    with pytest.raises(UserError, match="no residual stream; record it with"):
        OutputFrequency(layout).update(HeadBatch(z=batch.z, logits=batch.logits, valid=batch.valid))
    with pytest.raises(UserError, match="images of any size"):
        OutputFrequency(HeadLayout((HeadSite("a.attn", 0, 0, 2, 3),)))


def test_a_block_that_lost_all_heads_keeps_its_stream_and_a_stage_that_did_has_no_number():
    """Its variance over the grid was drawn as 0."""
    model = tiny_vit(depth=3)
    pruned = mhprobe.prune_heads(model, [3, 4, 5])
    layout = mhprobe.attach(pruned).layout
    batch = mhprobe.record(pruned, images_for(model, 3), needs=OutputFrequency.needs)
    measure = OutputFrequency(layout)
    measure.update(batch)
    found = measure.columns()
    expected = batch.stream[1].after[:, 1:].double().var(1).mean()
    torch.testing.assert_close(found["variance"][1, 2], expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        found["stream"][1, 0], found["stream"][0, 2]
    )  # what it gets is what block 0 gives
    elsewhere = dataclasses.replace(layout.blocks[1], stage=1)
    alone = OutputFrequency(
        HeadLayout(layout.sites, (layout.blocks[0], elsewhere, layout.blocks[2]))
    )
    alone.update(batch)
    assert alone.columns()["variance"].isnan().any(1).tolist() == [False, True, False]


def test_inside_somebody_s_autocast_it_says_the_same():
    model = tiny_vit()
    layout = mhprobe.attach(model).layout
    batch = mhprobe.record(model, images_for(model, 4), needs=OutputFrequency.needs)
    expected = columns(layout, batch)
    with torch.autocast("cpu", torch.bfloat16):
        got = columns(layout, batch)
    for name, column in expected.items():
        assert torch.equal(got[name], column), name
