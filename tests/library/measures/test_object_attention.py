"""ObjectAttention finds heads built by hand, agrees with a patch-by-patch count, and needs masks."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.object_attention import RELATIONS, ObjectAttention, patches
from mhprobe.stats.intervals import SHARE
from models import BUILDERS, images_for, labels_for
from oracles import intervals
from oracles import object_attention as oracle

SITE = HeadSite("a", 0, 0, 3, 2, prefix_tokens=1, grid=(4, 4), pixels=(2.0, 2.0), class_token=True)
LAYOUT = HeadLayout((SITE,))
# two objects of 2 x 2 patches, in opposite corners of a ground
SHOWN = torch.zeros(4, 4, dtype=torch.long)
SHOWN[:2, :2], SHOWN[2:, 2:] = 1, 2
OBJECTS = SHOWN.repeat_interleave(2, 0).repeat_interleave(2, 1)[None]


def looking(*heads) -> HeadBatch:
    """One image; head h's query patch (row, column) looks at the patch ``heads[h](row, column)``."""
    attn = torch.full((1, 1, len(heads), 17, 17), 1e-3, dtype=torch.float64)
    for h, target in enumerate(heads):
        for row in range(4):
            for column in range(4):
                r, c = target(row, column)
                attn[0, 0, h, 1 + 4 * row + column, 1 + 4 * r + c] = 1
        attn[0, 0, h, 0, 1 + 4 * h] = 1  # the class token looks at the first column
    attn[..., 0] = 0.5  # and everybody at the class token
    attn = attn / attn.sum(-1, keepdim=True)
    z = torch.zeros(1, 17, 3, 2)
    return HeadBatch(
        z=(z,), attn=(attn,), objects=OBJECTS, logits=torch.zeros(1, 2), valid=torch.tensor([True])
    )


def test_heads_built_by_hand_are_found_out():
    def beside_in_object(row, column):
        return row, column ^ 1

    def opposite(row, column):
        return 3 - row, 3 - column

    def at_the_first_object(row, column):
        return 0, 0

    measure = ObjectAttention(LAYOUT)
    measure.update(looking(beside_in_object, opposite, at_the_first_object))
    found = measure.columns()
    torch.testing.assert_close(found["value"], torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found["chance"], torch.full((3,), 0.5, dtype=torch.float64))
    assert found["cls"].tolist() == [
        1,
        1,
        0,
    ]  # rows 0 and 1 of the first column show object 1, row 2 the ground
    right = dict(zip(RELATIONS, found["relations"].T.tolist(), strict=True))
    assert right["same object"][0] == 1 and right["same object"][1] == 0
    assert right["other object"][0] == 0 and right["other object"][1] == 1
    assert right["ground to object"] == [0, 0, 1]  # the ground's opposite and neighbour are ground
    assert right["object to ground"][:2] == [0, 0]
    even = dict(zip(RELATIONS, found["even"][0].tolist(), strict=True))
    assert even["same object"] == pytest.approx(3 / 15)
    assert even["ground to object"] == pytest.approx(8 / 15)


def test_the_best_fixed_offset_is_the_one_that_counting_by_hand_finds():
    measure = ObjectAttention(LAYOUT)
    measure.update(looking(*[lambda row, column: (row, column)] * 3))
    found = measure.columns()
    for r, holds in enumerate(RELATIONS.values()):
        hits, possible = {}, 0
        for row in range(4):
            for column in range(4):
                true = [
                    (y - row, x - column)
                    for y in range(4)
                    for x in range(4)
                    if (y, x) != (row, column) and holds(SHOWN[row, column], SHOWN[y, x])
                ]
                possible += bool(true)
                for offset in true:
                    hits[offset] = hits.get(offset, 0) + 1
        best = max(hits.values()) / possible
        assert found["offset"][0, r].item() == pytest.approx(best)
        chosen = int(found["best_down"][0, r]), int(found["best_right"][0, r])
        assert hits[chosen] / possible == pytest.approx(best)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_relations_match_a_count_patch_by_patch(build):
    model = build().double()
    for parameter in model.parameters():  # heads of a fresh model all look alike
        torch.nn.init.normal_(parameter, std=0.3)
    images = images_for(model, 3, dtype=torch.float64)
    objects = torch.randint(
        0, 3, (3, *images.shape[2:]), generator=torch.Generator().manual_seed(3)
    )
    layout = mhprobe.attach(model).layout
    measure = ObjectAttention(layout)
    measure.update(mhprobe.record(model, images, labels_for(3), measure.needs, objects=objects))
    found = measure.columns()["relations"]
    expected = torch.zeros(layout.num_heads, len(RELATIONS), dtype=torch.float64)
    for s, site in enumerate(layout.sites):
        regions = [
            {patch: region for patch, region in window.values()}
            for window in oracle.places(model, site.name)
        ]
        for r, holds in enumerate(RELATIONS.values()):
            followed, possible = torch.zeros(site.num_heads), 0
            for n in range(3):
                shown = oracle.patches(model, objects[n], site.name)
                looks = oracle.looked_at(model, images[n], site.name, skip_self=True)
                for window in regions:
                    for query in window:
                        keys = [k for k in window if k != query and window[k] == window[query]]
                        if any(
                            holds(torch.tensor(shown[query]), torch.tensor(shown[k])) for k in keys
                        ):
                            possible += 1
                            for h in range(site.num_heads):
                                seen = torch.tensor([shown[key] for key in looks[h][query]])
                                followed[h] += (
                                    holds(torch.tensor(shown[query]), seen).double().mean()
                                )
            expected[layout.span(s), r] = (followed / possible).double()
    torch.testing.assert_close(
        found, expected, rtol=1e-6, atol=0
    )  # the expected shares are float32
    assert found.std(0).min() > 0  # heads differ


def test_a_patch_shows_what_most_of_its_pixels_show():
    objects = torch.tensor([[[0, 0, 2, 2], [0, 1, 2, 1], [1, 1, 0, 3], [0, 0, 3, 0]]])
    assert patches(objects, (2, 2), (2.0, 2.0)).tolist() == [
        [0, 2, 0, 0]
    ]  # equals: the lowest number


def test_without_masks_it_says_where_to_get_them():
    model = BUILDERS["vit"]()
    layout = mhprobe.attach(model).layout
    with pytest.raises(UserError, match=r"no object masks.*data=scenes"):
        ObjectAttention(layout).update(
            mhprobe.record(model, images_for(model, 2), labels_for(2), {"attn"})
        )


def test_the_head_to_use_is_chosen_on_one_half_and_scored_on_the_other():
    """Three heads, of which the first is best where it was chosen by construction and another on the other half."""
    from mhprobe.measures.parts.hashing import image_numbers

    def batch_of(pixel: float, good: int) -> HeadBatch:
        look = [lambda row, column: (0, 3) if (row, column) == (0, 2) else (0, 2)] * 3  # the ground
        look[good] = lambda row, column: (0, 0)  # an object
        made = looking(*look)
        return dataclasses.replace(made, images=torch.full((1, 3, 8, 8), pixel))

    halves: list[list[float]] = [[], []]
    for number in range(1, 60):
        pixel = number / 7
        halves[int((image_numbers(torch.full((1, 3, 8, 8), pixel)) >> 8) % 2)].append(pixel)
    measure = ObjectAttention(LAYOUT)
    for place, pixel in enumerate(halves[0][:8]):
        measure.update(
            batch_of(pixel, good=0 if place < 6 else 1)
        )  # head 0 is best on the first half: 6 of 8
    for place, pixel in enumerate(halves[1][:10]):
        measure.update(
            batch_of(pixel, good=1 if place < 7 else 0)
        )  # there head 1 is, and head 0 has 3 of 10
    found = measure.columns()
    held = found["held_out"]
    assert held.isfinite().tolist() == [True, False, False]
    assert held[0].item() == pytest.approx(0.3)
    low, high = intervals.of_mean(
        [1.0] * 3 + [0.0] * 7, SHARE
    )  # Student's, of the ten images that it is scored on
    assert (found["held_out_low"][0].item(), found["held_out_high"][0].item()) == pytest.approx(
        (low, high), rel=1e-5
    )
    assert low > 0.05 and high > 0.65  # a normal one of so few images ends at .00 and .60
    assert (
        found["value"].argmax() == 0 or found["value"].argmax() == 1
    )  # over all images both have 9 of 18
    related = found["relations_held_out"]
    assert (related.isfinite().sum(0) <= 1).all() and related.isfinite().any()
    ground = list(RELATIONS).index("ground to object")
    (chosen,) = related[:, ground].isfinite().nonzero().flatten().tolist()
    assert chosen == 0 and related[0, ground].item() == pytest.approx(0.3)
    # every image has as many queries: the ratio's interval is that of the images' shares
    ends = (found["relations_low"][0, ground].item(), found["relations_high"][0, ground].item())
    assert ends == pytest.approx((low, high), rel=1e-5)


def test_on_one_half_alone_nothing_is_chosen():
    measure = ObjectAttention(LAYOUT)
    measure.update(looking(*[lambda row, column: (0, 0)] * 3))
    found = measure.columns()
    assert found["held_out"].isnan().all() and found["relations_held_out"].isnan().all()


def test_a_head_that_looks_evenly_at_all_patches_is_at_chance():
    batch = looking(*[lambda row, column: (0, 0)] * 3)
    even = dataclasses.replace(
        batch, attn=(torch.full((1, 1, 3, 17, 17), 1 / 17, dtype=torch.float64),)
    )
    measure = ObjectAttention(LAYOUT)
    measure.update(even)
    got = measure.columns()
    assert got["value"].tolist() == pytest.approx(got["chance"].tolist()) == [0.5] * 3
    assert got["cls"].tolist() == pytest.approx([0.5] * 3)
    torch.testing.assert_close(got["relations"], got["even"])
