"""WriteNorm against what it must be where the answer is known, without a model."""

from __future__ import annotations

import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadBatch, HeadLayout, HeadSite, HeadWeights, Stream
from mhprobe.measures.write_norm import WriteNorm

LAYOUT = HeadLayout((HeadSite("blocks.0.attn", 0, 0, 2, 3),), (Block("blocks.0", 0, "blocks.0.norm2"),))


def batch(z: torch.Tensor, stream: torch.Tensor, output: torch.Tensor, **more) -> HeadBatch:
    nothing = torch.zeros(2, 3, 6, dtype=torch.float64)
    return HeadBatch(
        z=(z,),
        logits=torch.zeros(len(z), 5),
        valid=torch.ones(len(z), dtype=torch.bool),
        stream=(Stream(stream, stream, stream),),
        weights=(HeadWeights(nothing, nothing, nothing, output),),
        **more,
    )


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4, 5, 2, 3, generator=generator, dtype=torch.float64)
    stream = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
    output = torch.linalg.qr(torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)).Q.mT  # rows orthonormal
    return z, stream, output


def test_orthonormal_weights_write_the_length_of_z(parts):
    z, stream, _ = parts
    measure = WriteNorm(LAYOUT)
    measure.update(batch(*parts))
    columns = measure.columns()
    length = z.norm(dim=-1)
    torch.testing.assert_close(columns["norm"], length.mean((0, 1)), rtol=1e-12, atol=0)
    ratio = (length / stream.norm(dim=-1)[..., None]).mean((0, 1))
    torch.testing.assert_close(columns["value"], ratio, rtol=1e-12, atol=0)
    assert abs(ratio[0] - ratio[1]) > 1e-3 * ratio[0]


def test_a_head_with_no_weights_is_inert_and_twice_the_weights_write_twice(parts):
    z, stream, output = parts
    measure = WriteNorm(LAYOUT)
    measure.update(batch(z, stream, output * torch.tensor([0.0, 2.0])[:, None, None]))
    once = WriteNorm(LAYOUT)
    once.update(batch(*parts))
    assert measure.compute()[0] == 0
    torch.testing.assert_close(measure.compute()[1], 2 * once.compute()[1], rtol=1e-12, atol=0)


def test_a_batch_without_the_stream_is_refused():
    with pytest.raises(UserError, match="write_norm: the batch has no residual stream; record it with"):
        WriteNorm(LAYOUT).update(HeadBatch(z=(), logits=torch.zeros(1, 5), valid=torch.ones(1, dtype=torch.bool)))
