"""The direct path: its parts add up to the logits, to rounding; where it cannot be followed, that is said by name."""

from __future__ import annotations

import pytest
import timm
import torch

import mhprobe
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Stream
from mhprobe.recording.direct import direct_logits
from mhprobe.recording.record import forward_equivalents, record
from models import TWINS, images_for, tiny_registers, tiny_swin, tiny_swinv2, tiny_vit


def lively(model: torch.nn.Module, std: float = 0.3) -> torch.nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():  # heads of a fresh timm model are nearly silent
        torch.nn.init.normal_(parameter, std=std)
    return model


def deep_swin() -> torch.nn.Module:
    """Three stages on 9 x 9, 5 x 5 and 3 x 3 tokens: merging fills up odd grids."""
    sizes = {
        "img_size": 36,
        "window_size": 3,
        "embed_dim": 12,
        "depths": (1, 1, 2),
        "num_heads": (2, 3, 4),
    }
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **sizes).eval()


@pytest.mark.parametrize("build", [tiny_vit, tiny_registers, tiny_swin, deep_swin])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_heads_mlps_embedding_and_biases_add_up_to_the_logits(build, dtype, rounding):
    model = lively(build()).to(dtype)
    gates = mhprobe.attach(model)
    gates.values.data[1], gates.values.data[2] = 0.0, 0.5
    batch = record(model, images_for(model, 3, dtype=dtype), needs={"direct"})
    parts = batch.direct
    total = sum(part.sum(1) for part in parts)
    size = max(part.abs().max() for part in parts)
    assert (total - batch.logits).abs().max() < rounding * size
    assert parts.heads.shape == (3, gates.layout.num_heads, 5)
    assert (parts.heads[:, 1] == 0).all()  # its gate is closed
    assert parts.heads[:, 2].abs().max() > 1e-3 * size  # and the others do write


@pytest.mark.parametrize("build", [tiny_vit, deep_swin])
@pytest.mark.parametrize("proj_bias", ["keep", "drop"])
def test_a_layer_whose_heads_are_all_removed_writes_the_bias_that_it_keeps(build, proj_bias):
    """It was a traceback."""
    model = lively(build()).double()
    masked = mhprobe.attach(model)
    removed = list(range(masked.layout.sites[0].num_heads))
    pruned = mhprobe.prune_heads(model, removed, proj_bias)
    mhprobe.attach(pruned)
    masked.values.data[removed] = 0.0
    images = images_for(model, 3, dtype=torch.float64)
    found, expected = (record(each, images, needs={"direct"}).direct for each in (pruned, model))
    assert found.heads.shape[1] == masked.layout.num_heads - len(removed)
    if proj_bias == "keep":
        for got, right in zip(
            found[1:], expected[1:], strict=True
        ):  # heads but for the removed ones
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9)
    else:
        assert (found.biases[:, 0] == 0).all()


@pytest.mark.parametrize("build", [tiny_vit, deep_swin])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parts_of_a_half_model_are_those_of_its_outputs_in_full_precision(build, dtype):
    """Its weights were multiplied with float32 writes, which torch refuses."""
    model = lively(build(), 0.1).to(dtype)
    mhprobe.attach(model)
    batch = record(model, images_for(model, 3, dtype=dtype), needs={"direct", "stream"})
    assert batch.direct.heads.dtype == torch.float32
    parts = direct_logits(model, batch.z, batch.stream, batch.logits)
    full = model.float()
    wide = [[x.float() for x in part] for part in (batch.z, batch.logits)]
    stream = [Stream(*(x.float() for x in each)) for each in batch.stream]
    expected = direct_logits(full, wide[0], stream, torch.stack(wide[1]))
    for got, right in zip(parts, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("build", [tiny_vit, deep_swin])
def test_the_heads_of_the_last_block_write_what_the_norm_and_the_classifier_make_of_their_outputs(
    build,
):
    model = lively(build()).double()
    layout = mhprobe.attach(model).layout
    batch = record(
        model, images_for(model, 2, dtype=torch.float64), needs={"direct", "stream", "weights"}
    )
    last, span = layout.sites[-1], layout.span(len(layout.sites) - 1)
    written = torch.einsum("bthd,hdc->bhtc", batch.z[-1], batch.weights[-1].output)
    stream = batch.stream[last.block].after
    deviation = (stream.var(-1, correction=0, keepdim=True) + model.norm.eps).sqrt()
    normed = (written - written.mean(-1, keepdim=True)) / deviation[:, None] * model.norm.weight
    pooled = normed.mean(2) if build is deep_swin else normed[:, :, 0]
    classifier = model.head.fc if build is deep_swin else model.head
    torch.testing.assert_close(
        batch.direct.heads[:, span], pooled @ classifier.weight.mT, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("build", [tiny_vit, deep_swin])
def test_the_products_of_the_direct_path_are_few(build):
    """Sent token by token, each head by itself, the heads of a Swin took as much again as two forward passes."""
    model = build().eval()
    mhprobe.attach(model)
    images = images_for(model, 4)
    batch = Batch(
        images, torch.zeros(4, dtype=torch.long), torch.arange(4), torch.ones(4, dtype=torch.bool)
    )
    assert 1 < forward_equivalents(model, batch, {"direct"}) < 1.2


def test_a_write_of_the_last_block_is_what_the_logits_lose_without_it_while_norms_are_held():
    """With a norm that changes nothing, removal of a last-block head is its direct path and its way through the MLP."""
    model = lively(tiny_vit(depth=1)).double()
    model.norm = torch.nn.Identity()
    torch.nn.init.zeros_(model.blocks[0].mlp.fc2.weight)
    gates = mhprobe.attach(model)
    images = images_for(model, 4, dtype=torch.float64)
    batch = record(model, images, needs={"direct"})
    for head in range(gates.layout.num_heads):
        with gates.masked(gates.layout.mask([head])), torch.no_grad():
            lost = batch.logits - model(images)
        torch.testing.assert_close(batch.direct.heads[:, head], lost, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name", [name for name in TWINS if name.startswith(("eva", "beit", "relpos"))]
)
def test_other_families_are_refused_by_name(name):
    model = TWINS[name]()
    mhprobe.attach(model)
    with pytest.raises(
        UserError,
        match="logit_attribution: mhprobe does not know the direct path to the logits of a",
    ):
        record(model, images_for(model, 1), needs={"direct"})


def test_pooling_that_is_no_sum_and_norms_behind_heads_are_refused():
    pooled = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=8,
        embed_dim=12,
        depth=1,
        num_heads=3,
        global_pool="max",
    )
    behind = timm.create_model(
        "vit_relpos_small_patch16_rpn_224",
        img_size=16,
        patch_size=8,
        embed_dim=12,
        depth=1,
        num_heads=3,
    )
    for model in (pooled, behind, tiny_swinv2()):
        mhprobe.attach(model)
        with pytest.raises(UserError, match="logit_attribution: "):
            record(model.eval(), torch.randn(1, 3, *model.patch_embed.img_size), needs={"direct"})
