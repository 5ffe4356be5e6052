from __future__ import annotations

import pytest
import torch

import mhprobe
from attention import batch_of, even, looking, run, stream_of, swin_layout, vit_layout
from mhprobe.errors import UserError
from mhprobe.measures.parts.kinds import KINDS
from mhprobe.measures.token_kinds import COLUMNS, TokenKinds
from models import images_for, tiny_registers, tiny_swin
from oracles import token_kinds as oracle


def kinds(layout, attn, loud=None, **options):
    return run(
        TokenKinds(layout, **options), batch_of(*attn, stream=stream_of(layout, len(attn[0]), loud))
    )


def test_even_attention_gives_every_kind_its_share_of_the_keys():
    layout = vit_layout(grid=(4, 4), prefix=3)
    got = kinds(layout, even(layout))
    cells = 16 * 19  # pairs of a patch query with any key
    expected = {
        "cls": 1 / 19,
        "registers": 2 / 19,
        "self": 1 / 19,
        "neighbours": 48 / cells,
        "same_row": 3 / 19,
        "same_column": 3 / 19,
        "border": 12 / 19,
        "high_norm": 0,
        "cls_to_cls": 1 / 19,
    }
    for kind, share in expected.items():
        assert got[kind].item() == pytest.approx(share), kind
        assert got[f"uniform_{kind}"].item() == pytest.approx(share), kind
    assert got["value"].item() == pytest.approx(got["neighbours"].item(), rel=1e-12)
    assert got["uniform"].item() == got["uniform_neighbours"].item()


@pytest.mark.parametrize(
    ("offset", "kind", "others"),
    [
        ((0, 0), "self", {"neighbours", "same_row", "same_column"}),
        ((0, 1), "right", {"left", "above", "below"}),
        ((-1, 0), "above", {"left", "right", "below"}),
        ((0, 2), "same_row", {"neighbours", "same_column"}),
        ((2, 0), "same_column", {"neighbours", "same_row"}),
    ],
)
def test_heads_made_to_look_somewhere_show_in_their_kind(offset, kind, others):
    for layout in (vit_layout(grid=(8, 8)), swin_layout()):
        got = kinds(layout, looking(layout, *offset))
        assert (got[kind] >= 0.25).all()  # the others have no such key and look at themselves
        assert all(got[other].abs().max() == 0 for other in others)
        assert (got[kind] + (got["self"] if kind != "self" else 0) == 1).all()


def test_neighbours_are_the_four_and_no_diagonal_ones():
    layout = vit_layout(grid=(5, 5))
    for offset, expected in (((0, 1), 20 / 25), ((-1, 0), 20 / 25), ((1, 1), 0)):
        assert kinds(layout, looking(layout, *offset))["neighbours"].item() == pytest.approx(
            expected
        )


def test_class_token_to_itself_is_apart_from_patches_to_it():
    layout = vit_layout(grid=(2, 2))
    (attn,) = even(layout)
    attn[..., 0, :] = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1])
    got = kinds(layout, [attn])
    assert got["cls_to_cls"].item() == pytest.approx(0.6) and got["cls"].item() == pytest.approx(
        0.2
    )


def test_tokens_of_outlying_norm_are_found_from_the_threshold_on():
    layout = vit_layout(grid=(4, 4))
    attn = looking(layout, 0, 0)
    # one of 16 is louder: it lies sqrt(15) = 3.87 standard deviations above the mean, whatever its
    # norm
    for threshold, share in ((3.8, 1 / 16), (3.9, 0)):
        got = kinds(layout, attn, loud={5: 40.0}, threshold=threshold)
        assert got["high_norm"].item() == pytest.approx(share)
        assert got["uniform_high_norm"].item() == pytest.approx(share * 16 / 17)
    # the class token is no patch: loud as it may be, it changes nothing
    assert kinds(layout, attn, loud={0: 1e6})["high_norm"].item() == 0


def test_kinds_that_a_model_does_not_have_are_nan():
    got = kinds(swin_layout(), even(swin_layout()))
    for kind in ("cls", "registers", "cls_to_cls"):
        assert got[kind].isnan().all() and got[f"uniform_{kind}"].isnan().all()
    assert got["self"].isfinite().all()
    assert kinds(vit_layout(), even(vit_layout()))["registers"].isnan().all()


@pytest.mark.parametrize("build", [tiny_registers, tiny_swin])
def test_every_kind_agrees_with_asking_key_by_key(build):
    model = build().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    images = images_for(model, 2, dtype=torch.float64)
    layout = mhprobe.attach(model).layout
    sites = [(s.name, s.num_heads) for s in layout.sites]
    got = run(
        TokenKinds(layout, threshold=1.0), mhprobe.record(model, images, needs={"attn", "stream"})
    )
    for prefix, spread in (("", False), ("uniform_", True)):
        expected = oracle.shares(model, images, sites, spread, threshold=1.0)
        for kind in KINDS:
            if not got[kind].isnan().all():  # the model has no such token
                torch.testing.assert_close(
                    got[prefix + kind], expected[kind], rtol=1e-9, atol=1e-12
                )
    assert (got["high_norm"] > 0).all()


def test_a_kind_that_needs_a_class_token_or_registers_is_refused_without():
    for value in ("cls", "cls_to_cls"):
        with pytest.raises(
            UserError,
            match=f"value={value} needs a class token, but the model of layers.0.blocks.0",
        ):
            TokenKinds(swin_layout(), value=value)
    with pytest.raises(
        UserError,
        match=r"value=registers needs registers, but the model of blocks\.0\.attn has none",
    ):
        TokenKinds(vit_layout(prefix=1), value="registers")
    with pytest.raises(UserError, match=f"value is one of {', '.join(COLUMNS)}, got 'sep'"):
        TokenKinds(vit_layout(), value="sep")
    with pytest.raises(
        UserError, match="threshold is a number of standard deviations above 0, got 0"
    ):
        TokenKinds(vit_layout(), threshold=0)
    got = kinds(vit_layout(), even(vit_layout()), value="cls")
    assert got["value"].item() == pytest.approx(got["cls"].item(), rel=1e-12)


def test_a_batch_without_the_residual_stream_is_refused():
    with pytest.raises(UserError, match="no residual stream; record it with needs"):
        TokenKinds(vit_layout()).update(batch_of(*even(vit_layout())))
