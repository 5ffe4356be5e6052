"""The tables that statistics of attention stand on, against timm's own mask and arithmetic on rows and columns."""

from __future__ import annotations

import math

import pytest
import torch

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, Windows
from mhprobe.measures.parts.places import attention_in_pieces, chunks, places_of, shares
from models import images_for, tiny_registers, tiny_swin, tiny_vit
from oracles.attention import sites_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("build", [tiny_vit, tiny_registers, tiny_swin])
def test_tables_agree_with_the_model_token_by_token(build):
    model = build()  # its Swin is padded and shifted
    images = images_for(model, 2)
    layout = mhprobe.attach(model).layout
    found = sites_of(model, images, [(site.name, site.num_heads) for site in layout.sites])
    for site, dense in zip(layout.sites, found, strict=True):
        places = places_of(site, CPU)
        pairs: dict[tuple[int, int], float] = {}
        for w in range(len(places.token)):
            for q, tq in enumerate(places.token[w].tolist()):
                for k, tk in enumerate(places.token[w].tolist()):
                    if places.pairs[w, q, k]:
                        pairs[tq, tk] = places.distance[w, q, k].item()
                    both = tk >= 0 and tq >= 0 and None not in (dense.cells[tq], dense.cells[tk])
                    assert bool(places.patch_pairs[w, q, k]) == (
                        bool(places.pairs[w, q, k]) and both
                    )
                if tq >= 0 and dense.cells[tq] is not None:
                    assert tuple(places.cell[w, q].tolist()) == dense.cells[tq]
        assert set(pairs) == {(t, k) for t, keys in enumerate(dense.support) for k in keys}
        for (t, k), far in pairs.items():
            inside = None not in (dense.cells[t], dense.cells[k])
            assert far == pytest.approx(dense.distance(t, k) if inside else 0)


def test_a_shifted_window_keeps_the_two_sides_of_the_image_apart():
    site = HeadSite("a", 0, 0, 1, 2, windows=Windows((4, 4), (2, 2), (1, 1)), grid=(4, 4))
    places = places_of(site, CPU)
    assert places.distance.max() == pytest.approx(
        math.sqrt(2)
    )  # and not 3, from one side to the other
    (corner,) = (places.token == 0).any(1).nonzero()[0]
    assert places.pairs[corner].sum() == 4  # each corner of the image alone with itself


def test_shares_are_distributions_over_the_keys_that_are_asked_for():
    attn = torch.rand(3, 1, 2, 4, 4, dtype=torch.float64)
    keys = torch.tensor([[True, True, False, False]]).expand(4, 4)[None].clone()
    keys[0, 3] = False
    row = shares(attn, keys)
    torch.testing.assert_close(row.sum(-1)[..., :3], torch.ones(3, 1, 2, 3, dtype=torch.float64))
    assert (row[..., 3, :] == 0).all() and (row[..., 2:] == 0).all()


def test_pieces_hold_every_valid_image_once_and_are_small(monkeypatch):
    monkeypatch.setattr("mhprobe.measures.parts.places._CPU_PIECE", 40)
    valid = torch.tensor([True, False, True, True, True])
    batch = HeadBatch(
        z=(), logits=torch.zeros(5, 2), valid=valid, attn=(torch.rand(5, 1, 2, 3, 3),)
    )
    layout = HeadLayout((HeadSite("a", 0, 0, 2, 2, prefix_tokens=1, grid=(2, 1)),))
    pieces = list(attention_in_pieces("confidence", layout, batch))
    assert [piece.images.tolist() for piece in pieces] == [[0, 2], [3, 4]]
    assert all(piece.attn.dtype == torch.float64 for piece in pieces)
    assert chunks(torch.tensor([False]), [torch.zeros(1, 10)]) == ()


def test_missing_or_misshapen_attention_is_refused_in_one_line():
    layout = HeadLayout((HeadSite("blocks.0.attn", 0, 0, 2, 2, grid=(2, 2)),))
    batch = HeadBatch(z=(), logits=torch.zeros(1, 2), valid=torch.tensor([True]))
    with pytest.raises(
        UserError, match="entropy: the batch has no attention weights; record it with needs"
    ):
        list(attention_in_pieces("entropy", layout, batch))
    wrong = HeadBatch(
        z=(), logits=batch.logits, valid=batch.valid, attn=(torch.rand(1, 1, 2, 9, 9),)
    )
    with pytest.raises(
        UserError, match=r"blocks\.0\.attn: expected the 4 places of a grid of .*, got 9"
    ):
        list(attention_in_pieces("entropy", layout, wrong))
