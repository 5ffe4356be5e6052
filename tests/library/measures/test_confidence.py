from __future__ import annotations

import torch

from attention import batch_of, even, looking, random_maps, run, swin_layout, vit_layout
from mhprobe.measures.confidence import Confidence

ONE = torch.ones(1, dtype=torch.float64)


def test_a_head_that_puts_all_on_one_key_has_confidence_one():
    for layout in (vit_layout(), swin_layout()):
        value = run(Confidence(layout), batch_of(*looking(layout, 0, 1)))["value"]
        torch.testing.assert_close(value, torch.ones_like(value))


def test_even_attention_scores_the_column_uniform():
    for layout in (vit_layout(), swin_layout()):
        got = run(Confidence(layout), batch_of(*even(layout)))
        torch.testing.assert_close(got["value"], got["uniform"])
        torch.testing.assert_close(got["with_prefix"], got["uniform"])
    (first, second) = got["uniform"].tolist()
    # a shifted window is cut into regions: fewer keys, more for each; 4 windows of 16, 8, 8 and 4
    # keys
    assert first == 1 / 16 and second == (16 / 16 + 2 * 16 / 8 + 16 / 4) / 64


def test_attention_to_the_class_token_is_no_confidence_but_a_column():
    layout = vit_layout(grid=(2, 2))
    attn = torch.full((1, 1, 1, 5, 5), 0.025, dtype=torch.float64)
    attn[..., 0] = 0.9  # all look at the class token
    got = run(Confidence(layout), batch_of(attn))
    assert torch.equal(got["value"], 0.025 * ONE)
    assert torch.equal(got["without_prefix"], got["value"])
    torch.testing.assert_close(got["with_prefix"], 0.9 * ONE)


def test_the_class_token_is_a_column_of_its_own_where_there_is_one():
    layout = vit_layout(grid=(2, 2))
    attn = torch.full((1, 1, 1, 5, 5), 0.2, dtype=torch.float64)
    attn[..., 0, :] = torch.tensor([0.1, 0.6, 0.1, 0.1, 0.1])
    got = run(Confidence(layout), batch_of(attn))
    torch.testing.assert_close(got["class_query"], 0.6 * ONE)
    torch.testing.assert_close(got["value"], 0.2 * ONE)
    assert (
        run(Confidence(swin_layout()), batch_of(*even(swin_layout())))["class_query"].isnan().all()
    )


def test_weights_outside_the_shift_region_do_not_count():
    layout = swin_layout()
    attn = random_maps(layout)
    before = run(Confidence(layout), batch_of(*attn))["value"]
    pairs = layout.sites[1].support()
    attn[1] = attn[1] + 5.0 * ~pairs[:, None]
    torch.testing.assert_close(run(Confidence(layout), batch_of(*attn))["value"], before)
