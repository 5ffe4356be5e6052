"""WriteNorm against what it must be where the answer is known, without a model."""

from __future__ import annotations

import re

import pytest
import torch
from timm.models.vision_transformer import ResPostBlock

from mhprobe.backbones import attach, family_of
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import Block, HeadBatch, HeadLayout, HeadSite, HeadWeights, Stream
from mhprobe.measures.write_norm import WriteNorm
from mhprobe.recording.record import record
from models import (
    images_for,
    make_loud,
    tiny_swin,
    tiny_swinv2,
    tiny_tokens,
    tiny_vit,
    torchvision_swin,
)

LAYOUT = HeadLayout(
    (HeadSite("blocks.0.attn", 0, 0, 2, 3),), (Block("blocks.0", 0, "blocks.0.norm2"),)
)


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
    output = torch.linalg.qr(
        torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    ).Q.mT  # rows orthonormal
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
    with pytest.raises(
        UserError, match="write_norm: the batch has no residual stream; record it with"
    ):
        WriteNorm(LAYOUT).update(
            HeadBatch(z=(), logits=torch.zeros(1, 5), valid=torch.ones(1, dtype=torch.bool))
        )


BEHIND = {
    "swin v2": tiny_swinv2,
    "torchvision's swin v2": lambda: torchvision_swin(v2=True),
    "relative positions": lambda: tiny_tokens("vit_relpos_small_patch16_rpn_224"),
    "post-norm": lambda: tiny_vit(block_fn=ResPostBlock, global_pool="avg", class_token=False),
}


@pytest.mark.parametrize(
    "build", [*BEHIND.values(), tiny_vit, tiny_swin], ids=[*BEHIND, "vit", "swin"]
)
def test_writes_add_up_to_what_the_stream_gains_also_where_a_norm_stands_behind_the_heads(build):
    model = build().double()
    make_loud(model, 0.3)
    attach(
        model, units={"head"} if hasattr(model, "features") else {"head", "neuron"}
    )  # of torchvision's heads alone
    layout, family = gates_of(model).layout, family_of(model)
    for site in layout.sites:
        family.seam(model, site).output.bias.data.zero_()
    for name, part in model.named_parameters():
        if re.search(r"norm\d\.bias", name):
            part.data.zero_()
        elif re.search(r"norm\d\.weight", name):  # timm begins with zeros in Swin V2
            part.data.uniform_(0.5, 1.5)
    heads = record(model, images_for(model, 3).double(), needs={"stream", "weights"})
    for number, site in enumerate(layout.sites):
        z, output = heads.writing(number, "a test")
        before, middle, after = heads.stream[site.block]
        gained = middle - before if site.kind == "head" else after - middle
        written = torch.einsum("bthd,hdc->btc", z, output)
        torch.testing.assert_close(
            written, gained, rtol=1e-9, atol=1e-12 * float(gained.abs().max())
        )


def test_heads_behind_a_norm_of_weight_0_write_nothing():
    model = tiny_swinv2()
    attach(model)
    for block in (block for layer in model.layers for block in layer.blocks):
        block.norm1.weight.data.zero_()
    heads = record(model, images_for(model, 3), needs={"stream", "weights"})
    measure = WriteNorm(gates_of(model).layout)
    measure.update(heads)
    assert (heads.stream[0].middle == heads.stream[0].before).all() and not measure.compute().any()
