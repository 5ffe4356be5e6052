from __future__ import annotations

import pytest
import timm
import torch

import mhprobe
from attention import batch_of, even, looking, random_maps, run, swin_layout, vit_layout
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.measures.rarity import Rarity
from mhprobe.recording.measuring import feed

PIXELS = {"grid": (4, 4), "pixels": (4.0, 4.0)}


def scenes(count: int, rare: int = 1, size: int = 16) -> torch.Tensor:
    """Grey images with ``rare`` white patches of 4 x 4 pixels; half of the rest is dark.

    Noise tells patches apart.
    """
    generator = torch.Generator().manual_seed(0)
    x = 0.01 * torch.randn(count, 3, size, size, generator=generator)
    x[:, :, : size // 2] -= 1
    side = size // 4
    for n in range(count):
        for place in torch.randperm(side * side, generator=generator)[:rare].tolist():
            y, z = 4 * (place // side), 4 * (place % side)
            x[n, :, y : y + 4, z : z + 4] = 5 + 0.01 * torch.randn(3, 4, 4, generator=generator)
    return x


def fitted(layout, images, **options) -> Rarity:
    measure = Rarity(layout, codes=3, **options)
    measure.select(batch_of(*even(layout, len(images)), images=images))
    measure.end_select()
    return measure


def towards(layout, images: torch.Tensor, brightest: bool) -> torch.Tensor:
    """All patch queries look at the brightest (or darkest) patch of a global grid."""
    bright = torch.nn.functional.avg_pool2d(images.mean(1, keepdim=True), 4).flatten(1)
    target = bright.argmax(1) if brightest else bright.argmin(1)
    (site,) = layout.sites
    count = site.prefix_tokens + bright.shape[1]
    attn = torch.zeros(len(images), 1, site.num_heads, count, count, dtype=torch.float64)
    attn[torch.arange(len(images)), ..., target + site.prefix_tokens] = 1
    return attn


def test_a_head_that_looks_at_the_rare_patch_always_hits_and_chance_is_one_key():
    layout, images = vit_layout(**PIXELS), scenes(20)
    got = run(fitted(layout, images), batch_of(towards(layout, images, True), images=images))
    assert got["value"].item() == 1 and got["class_query"].item() == 1
    assert got["chance"].item() == pytest.approx(1 / 16) and got[
        "class_chance"
    ].item() == pytest.approx(1 / 16)
    away = run(fitted(layout, images), batch_of(towards(layout, images, False), images=images))
    assert away["value"].item() == 0


def test_ties_make_chance_larger_and_all_of_them_hits():
    layout, images = vit_layout(**PIXELS), scenes(20, rare=3)
    got = run(fitted(layout, images), batch_of(*even(layout, 20), images=images))
    assert got["chance"].item() == pytest.approx(3 / 16)
    assert got["chance_top2"].item() == pytest.approx(
        3 / 16
    )  # the second rarest patch is one of the three


def test_the_second_rarest_counts_for_top2():
    layout, images = vit_layout(**PIXELS), scenes(20)
    got = run(fitted(layout, images), batch_of(towards(layout, images, False), images=images))
    # behind the one white patch come the less common of two shades, up to 8 patches of it
    assert got["chance_top2"].item() > 6 / 16
    assert got["top2"].item() > got["value"].item() == 0


def test_random_heads_reach_chance():
    layout, images = vit_layout(heads=4, **PIXELS), scenes(200, rare=2)
    got = run(fitted(layout, images), batch_of(*random_maps(layout, 200), images=images))
    # 3,200 queries: 0.125 +- 5 standard errors of 0.006
    assert (got["value"] - got["chance"]).abs().max() < 0.03
    assert (got["class_query"] - got["class_chance"]).abs().max() < 0.12


def test_in_swin_the_rarest_is_that_of_the_shift_region():
    layout, images = swin_layout(), scenes(6, rare=1, size=32)
    got = run(fitted(layout, images), batch_of(*looking(layout, 0, 0, 6), images=images))
    # 1 of 64 patches is white; in regions without it, all patches of the rarer shade are equally
    # rare
    assert (got["chance"] > 0.3).all()
    assert got["class_query"].isnan().all() and got["class_chance_top2"].isnan().all()


def test_codes_are_the_same_whatever_the_batches_and_are_kept_by_a_reset():
    layout, images = vit_layout(**PIXELS), scenes(20)
    whole = fitted(layout, images, patches=64)
    parts = Rarity(layout, codes=3, patches=64)
    for i in (3, 0, 2, 1):
        some = images[5 * i : 5 * i + 5]
        padded = torch.cat([some, 100 * torch.randn(2, 3, 16, 16)])
        batch = batch_of(*even(layout, 7), images=padded)
        batch.valid[5:] = False
        parts.select(batch)
    batch.valid[:] = False
    parts.select(batch)  # a batch that only evens out the ranks
    parts.end_select()
    (a,), (b,) = whole.codes.values(), parts.codes.values()
    assert torch.equal(a.centre, b.centre) and torch.equal(a.density, b.density)
    whole.reset()
    assert run(whole, batch_of(*even(layout, 20), images=images))["chance"].item() == pytest.approx(
        1 / 16
    )


def test_without_codes_or_with_too_few_patches_it_says_what_to_do():
    layout, images = vit_layout(**PIXELS), scenes(2)
    with pytest.raises(UserError, match=r"rarity: no codes yet\. Show the validation images first"):
        run(Rarity(layout), batch_of(*even(layout), images=images))
    measure = Rarity(layout, codes=40)
    measure.select(batch_of(*even(layout), images=images))
    with pytest.raises(UserError, match="rarity: 32 different patches for 40 codes"):
        measure.end_select()
    with pytest.raises(UserError, match="rarity: 0 different patches for 32 codes"):
        Rarity(layout).end_select()
    with pytest.raises(
        UserError, match="rarity: patches: expected a whole number of at least 32, got 10"
    ):
        Rarity(layout, patches=10)
    with pytest.raises(UserError, match="the batch has no images"):
        Rarity(layout).select(batch_of(*even(layout)))


@pytest.mark.parametrize("build", [lambda: vit_layout(**PIXELS), swin_layout])
def test_a_head_that_looks_evenly_at_all_keys_is_at_chance(build):
    layout = build()
    images = scenes(6, size=4 * layout.sites[0].token_grid[0])
    got = run(fitted(layout, images), batch_of(*even(layout, 6), images=images))
    for column, chance in (
        ("value", "chance"),
        ("top2", "chance_top2"),
        ("class_query", "class_chance"),
    ):
        torch.testing.assert_close(got[column], got[chance], equal_nan=True)


def test_codes_are_fitted_without_a_pass_of_the_network(monkeypatch):
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=3
    )
    measure = Rarity(mhprobe.attach(model).layout, codes=4)
    batch = Batch.whole(torch.randn(4, 3, 32, 32), torch.zeros(4).long())
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    alone = feed(model, {"rarity": measure}, lambda: [batch], lambda: [batch, batch])
    assert not alone and len(passes) == 1 and measure.columns()["value"].shape == (3,)
