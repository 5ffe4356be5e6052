"""Two views of an image in one picture: the right patch is known, and so is who finds it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.lab.papers.panels import relations
from mhprobe.lab.papers.panels.two_views import (
    RELATION,
    Views,
    other_view,
    shifted_pairs,
    two_views,
    without_heads,
)
from models import tiny_vit

GRID, PIXELS = (4, 6), 2


def patches_of(picture):
    """{cell: its pixels}, one by one."""
    height, width = GRID
    return {
        r * width + c: picture[:, r * PIXELS : (r + 1) * PIXELS, c * PIXELS : (c + 1) * PIXELS]
        for r in range(height)
        for c in range(width)
    }


def test_the_patch_in_the_other_view_shows_the_same():
    torch.manual_seed(0)
    pictures = torch.rand(3, 3, GRID[0] * PIXELS, GRID[1] * PIXELS)
    moved = torch.tensor([0, 1, 3])
    both = shifted_pairs(pictures, GRID[0], moved)
    assert both.shape == pictures.shape
    for number, there in enumerate(other_view(GRID, moved).tolist()):
        cells = patches_of(both[number])
        for cell, other in enumerate(there):
            assert torch.equal(cells[cell], cells[other])
            assert (cell % 6 < 3) != (other % 6 < 3) and there[other] == cell


def one_site():
    layout = HeadLayout((HeadSite("a", 0, 0, 3, 2, prefix_tokens=1, class_token=True, grid=GRID),))
    return layout, layout.sites[0]


def test_a_head_that_finds_it_is_always_right_and_places_as_often_as_the_moves_allow(monkeypatch):
    """Head 0 attends to the right patch, head 1 to the same place, head 2 to the next patch in its own view."""
    layout, site = one_site()
    torch.manual_seed(0)
    moved, pictures = (
        torch.tensor([0, 1, 2, 3]),
        torch.rand(4, 3, GRID[0] * PIXELS, GRID[1] * PIXELS),
    )
    cell = torch.arange(24)
    same, beside = (
        cell // 6 * 6 + (cell + 3) % 6,
        cell // 6 * 6 + cell % 6 // 3 * 3 + (cell % 3 + 1) % 3,
    )
    wanted = torch.stack([other_view(GRID, moved), same.expand(4, -1), beside.expand(4, -1)], 1)
    attn = torch.full((4, 1, 3, 25, 25), 0.001)
    for image in range(4):
        for head in range(3):
            attn[image, 0, head, torch.arange(1, 25), 1 + wanted[image, head]] = 0.9
    batch = HeadBatch(
        z=(torch.zeros(4, 25, 3, 2),),
        logits=torch.zeros(4, 2),
        labels=torch.zeros(4).long(),
        valid=torch.ones(4, dtype=torch.bool),
        attn=(attn,),
    )
    shown = Batch.whole(pictures, torch.zeros(4).long())
    walk = SimpleNamespace(
        layout=layout,
        data=SimpleNamespace(sizes={"test": 4}),
        seed=0,
        walk=lambda *_: lambda: [shown],
    )
    views = Views(walk, "test", 4)
    views.moved_N = moved
    monkeypatch.setattr(
        relations, "recorded", lambda model, batches, needs: ((each, batch) for each in batches)
    )
    found = relations.scored_images("test", layout, None, views(), views.right)
    found = relations.QueryScores(*(each.squeeze(-1) for each in found))  # of one relation
    assert found.heads[:, 0].tolist() == [1.0] * 4
    assert found.heads[:, 1].tolist() == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]  # right where the second view was not moved
    assert (
        found.heads[:, 2] < 1
    ).all()  # its answer is one of the candidates, whatever it attends to more
    torch.testing.assert_close(found.even[:, 0], torch.full((4,), 1 / 12).double())
    same_place, nearest, pixels = views.plain(site).unbind(-1)
    assert same_place.tolist() == [1.0, 0.0, 0.0, 0.0] and pixels.tolist() == [1.0] * 4
    # the right one is 3 columns away, the nearest 1, 2 or 3: a third of the queries, where nothing
    # was moved
    assert nearest.tolist() == pytest.approx([1 / 3, 0.0, 0.0, 0.0])
    # no single offset is right in more than the patches that it does not wrap around for
    assert float(found.offsets[:, 0].nanmean(0).nan_to_num(0).max()) < 0.5


def test_the_nearest_patch_is_the_closest_of_the_other_view():
    _, site = one_site()
    across = torch.arange(24) % 6 >= 3
    _, nearest, _ = without_heads(torch.rand(1, 3, 8, 12), site, across[:, None] != across)
    for cell, answer in enumerate(nearest[0].tolist()):
        assert answer // 6 == cell // 6 and answer % 6 == (3 if cell % 6 < 3 else 2)


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_untrained_heads_find_no_patch_again(material):
    made = two_views(material, images=20)["views"]
    rows = {row[1]: dict(zip(made.table.columns, row, strict=True)) for row in made.table.rows}
    assert {row["relation"] for row in rows.values()} == {RELATION}
    even, best = rows["even draw"], rows["best head"]
    patches = material.layout.sites[0].token_grid[0] * material.layout.sites[0].token_grid[1]
    assert even["score"] == pytest.approx(2 / patches)
    assert (
        rows["most similar pixels"]["score"] > 0.9 > 0.5 > best["score"]
    )  # noise has no two equal patches
    assert best["who"].startswith("block ") and best["images"] == 20


def test_a_grid_without_two_halves_is_refused():
    layout = HeadLayout((HeadSite("blocks.0.attn", 0, 0, 2, 3, grid=(5, 5)),))
    asked = SimpleNamespace(layout=layout, model=None, untrained=lambda: None)
    with pytest.raises(
        UserError, match=r"blocks\.0\.attn has a grid of 5 x 5 patches, expected an even number"
    ):
        two_views(asked)
