from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mhprobe
from attention import batch_of, looking, random_maps, run, swin_layout, vit_layout
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.js_distance import JSDistance
from models import images_for, tiny_registers, tiny_swin
from oracles import js_distance as oracle


def test_equal_heads_are_at_zero_and_heads_without_a_common_key_at_one():
    layout = vit_layout(heads=3)
    left, right = looking(layout, 0, 0)[0][:, :, :1], looking(layout, 0, 0)[0][:, :, :1].roll(1, -1)
    value = run(JSDistance(layout), batch_of(torch.cat([left, left, right], 2)))["value"]
    expected = torch.tensor([[0, 0, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.float64)
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=1e-14)


def test_half_the_mass_in_common_has_a_closed_form():
    layout = vit_layout(heads=2, grid=(1, 2), prefix=0)
    attn = torch.zeros(1, 1, 2, 2, 2, dtype=torch.float64)
    attn[:, :, 0, :, 0] = 1
    attn[:, :, 1] = 0.5
    # H(3/4, 1/4) - (0 + ln 2) / 2, over ln 2
    expected = (-0.75 * math.log2(0.75) - 0.25 * math.log2(0.25)) - 0.5
    assert run(JSDistance(layout), batch_of(attn))["value"][0, 1].item() == pytest.approx(expected)


def test_divergence_is_symmetric_within_bounds_and_its_root_a_metric():
    layout = vit_layout(heads=5)
    value = run(JSDistance(layout), batch_of(*random_maps(layout, sharpness=6)))["value"]
    assert (value == value.T).all() and value.min() >= 0 and value.max() <= 1
    root = value.sqrt()
    assert (root[:, :, None] <= root[:, None] + root.T[None] + 1e-12).all()


@pytest.mark.parametrize("pairs", ["layer", "stage", "all"])
def test_pairs_decide_what_is_compared(pairs):
    layout = vit_layout(heads=2, layers=3)
    got = run(JSDistance(layout, pairs=pairs), batch_of(*random_maps(layout)))
    between = got["value"][:2, 2:].isnan().all().item()
    assert between == (pairs == "layer")
    assert got["ratio"].isnan().item() == got["p"].isnan().item() == (pairs == "layer")


@pytest.mark.parametrize("build", [tiny_registers, tiny_swin])
def test_pairs_across_blocks_agree_with_scipy_also_where_windows_differ(build):
    model = build().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    images = images_for(model, 2, dtype=torch.float64)
    layout = mhprobe.attach(model).layout
    stages = [site.stage for site in layout.sites]
    if build is tiny_swin:
        assert layout.sites[0].windows.shift != layout.sites[1].windows.shift
    expected = oracle.divergences(
        model,
        images,
        [(s.name, s.num_heads) for s in layout.sites],
        lambda a, b: stages[a] == stages[b],
    )
    got = run(JSDistance(layout, pairs="stage"), mhprobe.record(model, images, needs={"attn"}))[
        "value"
    ]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_clarks_variant_is_the_smoothed_sum_of_the_paper():
    """One document after another, as the authors' notebook describes it, written anew."""
    layout = vit_layout(heads=3, layers=2)
    maps = random_maps(layout, images=3, sharpness=8)
    got = run(JSDistance(layout, pairs="all", clark=True), batch_of(*maps))["value"].numpy()
    heads = torch.cat([m[:, 0] for m in maps], 1).numpy()
    expected = np.zeros((6, 6))
    for document in heads:
        smooth = 0.999 * document + 0.001 / document.shape[-1]
        for i in range(6):
            for j in range(6):
                middle = (smooth[i] + smooth[j]) / 2
                left, right = (
                    smooth[i] * np.log(smooth[i] / middle),
                    smooth[j] * np.log(smooth[j] / middle),
                )
                expected[i, j] += (left + right).sum() / 2
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
    plain = run(JSDistance(layout, pairs="all"), batch_of(*maps))["value"]
    assert (
        abs(got[0, 1] / (3 * 17 * math.log(2)) / plain[0, 1].item() - 1) > 1e-4
    )  # smoothing is a difference


def test_layers_whose_heads_are_alike_have_a_small_ratio_and_p_and_shuffled_heads_do_not():
    layout = vit_layout(heads=4, layers=3)
    maps = []
    for layer in range(3):
        base = random_maps(vit_layout(), seed=layer)[0]
        noise = torch.cat(
            [random_maps(vit_layout(), seed=10 * layer + h + 5)[0] for h in range(4)], 2
        )
        maps.append(0.8 * base + 0.2 * noise)
    got = run(JSDistance(layout, pairs="all", clusters=3), batch_of(*maps))
    assert got["ratio"] < 0.5 and got["p"] < 0.01
    assert got["cluster"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    all_heads = torch.cat(maps, 2)[:, :, torch.arange(12).view(4, 3).T.flatten()]
    mixed = run(JSDistance(layout, pairs="all"), batch_of(*all_heads.split(4, 2)))
    assert mixed["ratio"] > 0.8 and mixed["p"] > 0.2


def test_results_do_not_depend_on_the_size_of_the_pieces(monkeypatch):
    layout = swin_layout(heads=2)
    maps = random_maps(layout, images=5)
    whole = run(JSDistance(layout, pairs="stage"), batch_of(*maps))
    monkeypatch.setattr("mhprobe.measures.parts.places._CPU_PIECE", 1)
    apart = run(JSDistance(layout, pairs="stage"), batch_of(*maps))
    for name in whole:
        torch.testing.assert_close(apart[name], whole[name], rtol=1e-10, atol=1e-12)


def test_the_null_makes_each_row_once_and_compares_a_few_rows_at_a_time(monkeypatch):
    layout, made, compared = vit_layout(heads=2), [], []
    all_rows, comparison = JSDistance._all_rows, JSDistance._compared

    def counted(self, sites, attn, queries):
        made.append(attn[0].shape[0] * attn[0].shape[3])
        return all_rows(self, sites, attn, queries)

    def of_pairs(self, sites, ours, theirs):
        compared.append(ours[0].rows.shape[0] * ours[0].rows.shape[3])
        return comparison(self, sites, ours, theirs)

    monkeypatch.setattr(JSDistance, "_all_rows", counted)
    monkeypatch.setattr(JSDistance, "_compared", of_pairs)
    monkeypatch.setattr("mhprobe.measures.parts.places._CPU_PIECE", 1)
    maps = random_maps(layout, images=3)
    run(JSDistance(layout), batch_of(*maps))
    queries, pairs = maps[0].shape[3], 3 * 2
    assert made == [1] * 3 * queries
    assert compared == [1] * pairs * queries


def test_uneven_grids_and_wrong_options_are_refused_in_one_line():
    uneven = HeadLayout(
        (HeadSite("a", 0, 0, 1, 2, grid=(4, 4)), HeadSite("b", 1, 1, 1, 2, grid=(2, 2)))
    )
    with pytest.raises(
        UserError,
        match=r"pairs=all compares a \(grid \(4, 4\), 0 .*\) with b \(grid \(2, 2\), 0 .*\).*pairs=stage",
    ):
        JSDistance(uneven, pairs="all")
    JSDistance(uneven, pairs="stage")
    with pytest.raises(
        UserError, match="js_distance: pairs is one of layer, stage, all, got 'block'"
    ):
        JSDistance(uneven, pairs="block")
    with pytest.raises(
        UserError, match="js_distance: clusters: expected a whole number of at least 1, got 0"
    ):
        JSDistance(uneven, clusters=0)


def test_null_is_the_divergence_on_each_others_images():
    layout = vit_layout(heads=3, layers=2)
    maps = random_maps(layout, images=4, sharpness=6)
    got = run(JSDistance(layout, pairs="all"), batch_of(*maps))
    heads = torch.cat([m[:, 0] for m in maps], 1)
    for a in range(6):
        for b in range(a + 1, 6):
            pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
            found = []
            for i, j in pairs:
                p, q = heads[i, a], heads[j, b]
                middle = (p + q) / 2
                found.append(
                    float(((p * (p / middle).log() + q * (q / middle).log()).sum(-1) / 2).mean())
                    / math.log(2)
                )
            assert float(got["null"][a, b]) == pytest.approx(np.mean(found), rel=1e-9)
    assert got["null_draws"].shape == (6, 6, 4)


def test_heads_whose_images_are_permuted_have_the_distance_of_the_null_and_a_twin_is_below():
    layout = vit_layout(heads=2)
    one = random_maps(vit_layout(), images=40, sharpness=6)[0]
    same, apart = (
        torch.cat([one, 0.9 * one + 0.1 * one.roll(1, 0)], 2),
        torch.cat([one, one.roll(1, 0)], 2),
    )
    for maps, below in ((same, True), (apart, False)):
        got = run(JSDistance(layout), batch_of(maps))
        if below:
            assert got["value"][0, 1] < 0.5 * got["null"][0, 1]
        else:  # 56 of the 1,560 pairs; one of eight may be the image itself, whose distance is 0
            assert float(got["value"][0, 1]) == pytest.approx(float(got["null"][0, 1]), rel=0.15)


def test_the_null_holds_a_few_images_whatever_their_order():
    layout = vit_layout(heads=2)
    maps = random_maps(layout, images=30)[0]
    null = run(JSDistance(layout, null_images=5), batch_of(maps))["null"]
    measure = JSDistance(layout, null_images=5)
    for part in maps.flip(0).split(7):
        measure.update(batch_of(part))
    assert len(measure.pool) == 5
    torch.testing.assert_close(measure.columns()["null"], null, rtol=1e-12, atol=1e-14)
    first, second = JSDistance(layout, null_images=5), JSDistance(layout, null_images=5)
    first.update(batch_of(maps[:20]))
    second.update(batch_of(maps[20:]))
    first.merge_state(second)
    torch.testing.assert_close(first.columns()["null"], null, rtol=1e-12, atol=1e-14)
    assert run(JSDistance(layout), batch_of(maps[:1]))["null"].isnan().all()
    assert "null" not in run(JSDistance(layout, null_images=0), batch_of(maps))
    with pytest.raises(UserError, match="null_images is 0, or at least 2, got 1"):
        JSDistance(layout, null_images=1)
