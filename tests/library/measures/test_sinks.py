"""Sinks by hand: who rests on the class token, who hands out what is there, and who does neither."""

from __future__ import annotations

import torch

from mhprobe.heads import Block, HeadBatch, HeadLayout, HeadSite, HeadWeights, Stream
from mhprobe.measures.sinks import Sinks

ON_CLASS = torch.zeros(5, 5, dtype=torch.float64)
ON_CLASS[:, 0] = 1


def sinks_of(z: torch.Tensor, attn: torch.Tensor) -> dict[str, torch.Tensor]:
    """Columns for (B, 5, H, 2) outputs and (B, 1, H, 5, 5) attention of one block."""
    images, _, heads, _ = z.shape
    site = HeadSite("blocks.0.attn", 0, 0, heads, 2, 1, None, (2, 2), (16.0, 16.0), True)
    measure = Sinks(HeadLayout((site,), (Block("blocks.0", 0, "blocks.0.norm2"),)))
    stream = torch.ones(images, 5, 4, dtype=torch.float64)
    eye = torch.eye(2, 4, dtype=torch.float64).expand(heads, 2, 4)
    measure.update(
        HeadBatch(
            z=(z,),
            logits=torch.zeros(images, 2),
            valid=torch.ones(images, dtype=torch.bool),
            attn=(attn,),
            stream=(Stream(stream, stream, stream),),
            weights=(HeadWeights(eye, eye, eye, eye),),
        )
    )
    return measure.columns()


def sinks_that_write(*sizes: float) -> dict[str, torch.Tensor]:
    """Columns for heads that all look at the class token alone, and write as much as this."""
    z = torch.tensor(sizes, dtype=torch.float64)[:, None].expand(2, 5, len(sizes), 2)
    return sinks_of(z, ON_CLASS.expand(2, 1, len(sizes), 5, 5))


def test_a_no_op_a_broadcast_and_a_head_that_looks_at_itself():
    attn = torch.stack([ON_CLASS, ON_CLASS, torch.eye(5, dtype=torch.float64)])[None, None].expand(
        2, -1, -1, -1, -1
    )
    z = torch.ones(2, 5, 3, 2, dtype=torch.float64)
    z[:, :, 0] *= 0.01
    z[:, :, 2] = torch.randn(
        2, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    columns = sinks_of(z, attn)
    assert columns["value"].tolist() == [1, 1, 0.2]  # of five queries one looks at each token
    assert columns["sink"].tolist() == [1, 1, 0]
    assert columns["class_token"][:2].tolist() == [1, 1]
    assert columns["role"].tolist() == [1, 2, 0]
    torch.testing.assert_close(columns["common"][:2], torch.ones(2, dtype=torch.float64))
    assert columns["common"][2] < 0.9


def test_a_no_op_is_quiet_beside_the_median_head_not_beside_the_mean():
    """One loud head raises the mean, and beside it every sink would be quiet."""
    columns = sinks_that_write(0.2, 1, 1, 1, 100)
    write, role = columns["write"], columns["role"]
    assert (write[1:4] < 0.25 * write.mean()).all()
    assert role.tolist() == [1, 2, 2, 2, 2]


def test_the_median_of_an_even_number_of_heads_lies_between_the_two_middle_ones():
    role = sinks_that_write(0.3, 1, 3, 9)[
        "role"
    ]  # a quarter of 2 is more than 0.3, one of 1 is not
    assert role.tolist() == [1, 2, 2, 2]


def test_a_head_that_writes_nothing_hands_nothing_out_where_most_heads_write_nothing():
    assert sinks_that_write(0, 0, 1)["role"].tolist() == [1, 1, 2]
