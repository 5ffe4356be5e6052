"""Sinks by hand: who rests on the class token, who hands out what is there, and who does neither."""

from __future__ import annotations

import torch

from mhprobe.heads import Block, HeadBatch, HeadLayout, HeadSite, HeadWeights, Stream
from mhprobe.measures.sinks import Sinks

SITE = HeadSite("blocks.0.attn", 0, 0, 3, 2, 1, None, (2, 2), (16.0, 16.0), True)
LAYOUT = HeadLayout((SITE,), (Block("blocks.0", 0, "blocks.0.norm2"),))


def test_a_no_op_a_broadcast_and_a_head_that_looks_at_itself():
    on_class = torch.zeros(5, 5, dtype=torch.float64)
    on_class[:, 0] = 1
    attn = torch.stack([on_class, on_class, torch.eye(5, dtype=torch.float64)])[None, None].expand(2, -1, -1, -1, -1)
    z = torch.ones(2, 5, 3, 2, dtype=torch.float64)
    z[:, :, 0] *= 0.01
    z[:, :, 2] = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stream, eye = torch.ones(2, 5, 4, dtype=torch.float64), torch.eye(2, 4, dtype=torch.float64).expand(3, 2, 4)
    measure = Sinks(LAYOUT)
    measure.update(
        HeadBatch(
            z=(z,),
            logits=torch.zeros(2, 2),
            valid=torch.ones(2, dtype=torch.bool),
            attn=(attn,),
            stream=(Stream(stream, stream, stream),),
            weights=(HeadWeights(eye, eye, eye, eye),),
        )
    )
    columns = measure.columns()
    assert columns["value"].tolist() == [1, 1, 0.2]  # of five queries one looks at each token
    assert columns["sink"].tolist() == [1, 1, 0]
    assert columns["class_token"][:2].tolist() == [1, 1]
    assert columns["role"].tolist() == [1, 2, 0]
    torch.testing.assert_close(columns["common"][:2], torch.ones(2, dtype=torch.float64))
    assert columns["common"][2] < 0.9


def test_a_no_op_is_quiet_beside_the_median_head_not_beside_the_mean():
    """One loud head raises the mean, and beside it every sink would be quiet."""
    on_class = torch.zeros(5, 5, dtype=torch.float64)
    on_class[:, 0] = 1
    sizes = torch.tensor([0.2, 1.0, 1.0, 1.0, 100.0], dtype=torch.float64)
    heads = len(sizes)
    site = HeadSite("blocks.0.attn", 0, 0, heads, 2, 1, None, (2, 2), (16.0, 16.0), True)
    measure = Sinks(HeadLayout((site,), (Block("blocks.0", 0, "blocks.0.norm2"),)))
    z = sizes[:, None].expand(2, 5, heads, 2)
    stream, eye = torch.ones(2, 5, 4, dtype=torch.float64), torch.eye(2, 4, dtype=torch.float64).expand(heads, 2, 4)
    measure.update(
        HeadBatch(
            z=(z,),
            logits=torch.zeros(2, 2),
            valid=torch.ones(2, dtype=torch.bool),
            attn=(on_class.expand(2, 1, heads, 5, 5),),
            stream=(Stream(stream, stream, stream),),
            weights=(HeadWeights(eye, eye, eye, eye),),
        )
    )
    write, role = (measure.columns()[name] for name in ("write", "role"))
    assert (write[1:4] < 0.25 * write.mean()).all()
    assert role.tolist() == [1, 2, 2, 2, 2]


def test_the_median_of_an_even_number_of_heads_lies_between_the_two_middle_ones():
    on_class = torch.zeros(5, 5, dtype=torch.float64)
    on_class[:, 0] = 1
    sizes = torch.tensor([0.3, 1.0, 3.0, 9.0], dtype=torch.float64)  # a quarter of 2 is more than 0.3, one of 1 is not
    site = HeadSite("blocks.0.attn", 0, 0, 4, 2, 1, None, (2, 2), (16.0, 16.0), True)
    measure = Sinks(HeadLayout((site,), (Block("blocks.0", 0, "blocks.0.norm2"),)))
    stream, eye = torch.ones(2, 5, 4, dtype=torch.float64), torch.eye(2, 4, dtype=torch.float64).expand(4, 2, 4)
    measure.update(
        HeadBatch(
            z=(sizes[:, None].expand(2, 5, 4, 2),),
            logits=torch.zeros(2, 2),
            valid=torch.ones(2, dtype=torch.bool),
            attn=(on_class.expand(2, 1, 4, 5, 5),),
            stream=(Stream(stream, stream, stream),),
            weights=(HeadWeights(eye, eye, eye, eye),),
        )
    )
    assert measure.columns()["role"].tolist() == [1, 2, 2, 2]


def test_a_head_that_writes_nothing_hands_nothing_out_where_most_heads_write_nothing():
    on_class = torch.zeros(5, 5, dtype=torch.float64)
    on_class[:, 0] = 1
    z = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)[:, None].expand(2, 5, 3, 2)
    stream, eye = torch.ones(2, 5, 4, dtype=torch.float64), torch.eye(2, 4, dtype=torch.float64).expand(3, 2, 4)
    measure = Sinks(LAYOUT)
    measure.update(
        HeadBatch(
            z=(z,),
            logits=torch.zeros(2, 2),
            valid=torch.ones(2, dtype=torch.bool),
            attn=(on_class.expand(2, 1, 3, 5, 5),),
            stream=(Stream(stream, stream, stream),),
            weights=(HeadWeights(eye, eye, eye, eye),),
        )
    )
    assert measure.columns()["role"].tolist() == [1, 1, 2]
