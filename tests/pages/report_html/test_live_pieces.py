"""Pieces of a model as ONNX give its logits and its attention, whatever the gates are."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.backbones import attach, backbone_of
from mhprobe.errors import UserError
from mhprobe.pages.live import parts_of_model, stored
from mhprobe.recording.outputs import logits_of
from models import TWINS, make_loud, tiny_eva, tiny_registers, tiny_swin, tiny_vit

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'mhprobe[export]'")


def run(found, images, gates):
    """Chain the pieces as a page does: logits, and attention by site."""
    stream, seen = images.numpy(), {}
    for piece in found:
        session = onnxruntime.InferenceSession(piece.onnx, providers=["CPUExecutionProvider"])
        inputs = {"stream": stream}
        if piece.heads:
            inputs["gates"] = gates[piece.first : piece.first + piece.heads].numpy()
        stream, *attention = session.run(None, inputs)
        seen |= dict(zip(piece.sites, map(torch.from_numpy, attention), strict=True))
    return torch.from_numpy(stream), seen


def dropping():
    """In training it drops half of the patches, as the networks that are shipped do."""
    return tiny_vit(patch_drop_rate=0.5)


def beit():
    """Its class token once was traced for two images, whatever their number."""
    return TWINS["beit"]()


def shared_positions():
    """Biases that all blocks share once could not be exported."""
    return TWINS["relpos_shared"]()


def hugging_face():
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32)
    config = transformers.ViTConfig(image_size=16, patch_size=4, num_labels=5, **sizes)
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(config).eval()


@pytest.mark.parametrize(
    ("make", "count"),
    [
        *[
            (tiny_vit, 4),
            (dropping, 4),
            (tiny_registers, 4),
            (tiny_swin, 6),
            (tiny_eva, 4),
            (hugging_face, 1),
        ],
        *[(beit, 4), (shared_positions, 4)],
    ],
)
def test_masks_and_half_open_gates_give_the_models_logits(make, count):
    model = make()
    make_loud(model, 0.3)
    gates = attach(model)
    side = 18 if make is tiny_swin else 16
    images = torch.randn(3, 3, side, side)
    found = parts_of_model(model, images[:2])
    assert len(found) == count  # stem, blocks, tail; or all in one
    generator, heads = torch.Generator().manual_seed(0), gates.layout.num_heads
    whole = logits_of(model(images))
    half_open = torch.rand(heads, generator=generator)
    for values in (torch.ones(heads), (half_open > 0.5).float(), half_open):
        logits, seen = run(found, images, values)
        with torch.no_grad():
            gates.values.copy_(values)
            expected = logits_of(model(images))
            gates.values.fill_(1)
        torch.testing.assert_close(
            logits, expected, rtol=0, atol=1e-4
        )  # other kernels add in another order
        assert torch.equal(values, torch.ones(heads)) or (expected - whole).abs().max() > 1e-3
    attn = mhprobe.record(model, images, needs={"attn"}).attn
    _, seen = run(found, images, torch.ones(heads))
    assert sorted(seen) == list(range(len(attn)))
    for site, weights in seen.items():
        torch.testing.assert_close(weights, attn[site].flatten(0, 1), rtol=0, atol=1e-5)


def test_a_model_of_half_precision_is_taken_apart_in_float32():
    model, images = tiny_vit().bfloat16(), torch.randn(2, 3, 16, 16)
    whole = tiny_vit()
    whole.load_state_dict({key: value.float() for key, value in model.state_dict().items()})
    torch.testing.assert_close(
        run(parts_of_model(model, images), images, torch.ones(6))[0],
        whole(images),
        rtol=0,
        atol=1e-4,
    )
    assert model.head.weight.dtype == torch.bfloat16


def test_gates_that_were_learned_are_in_the_pieces():
    model = tiny_vit()
    make_loud(model, 0.3)
    gates = attach(model)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        gates.values[1] = 0.3
    torch.testing.assert_close(
        run(parts_of_model(model, images), images, torch.ones(6))[0],
        model(images).detach(),
        rtol=0,
        atol=1e-4,
    )


@pytest.mark.parametrize(("kind", "share", "apart"), [("float16", 0.5, 2e-3), ("int8", 0.25, 3e-2)])
def test_weights_kept_as_something_smaller_give_nearly_the_same_logits(kind, share, apart):
    """A float16 errs by 2^-11, an int8 by 1 / 254 of the largest of its row; errors of a few layers add up."""
    model = tiny_vit(embed_dim=96)
    make_loud(model, 0.3)
    attach(model)
    images = torch.randn(3, 3, 16, 16)
    whole = parts_of_model(model, images[:2])
    small = [stored(piece, kind) for piece in whole]
    before, after = (sum(len(piece.onnx) for piece in each) for each in (whole, small))
    assert after < (share + 0.1) * before  # graphs and biases stay
    logits, seen = run(small, images, torch.ones(6))
    expected = model(images).detach()
    far = float((logits - expected).abs().max() / expected.abs().max())
    assert 0 < far < apart and len(seen) == 2
    assert stored(whole[0], "float32") is whole[0]


class Strange(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


@pytest.mark.parametrize(
    ("make", "module"),
    [
        (tiny_vit, "blocks.1.mlp"),
        (tiny_vit, "patch_embed.proj"),
        (tiny_vit, "norm"),
        (hugging_face, "layers.0.mlp"),
    ],
    ids=["block", "stem", "classifier", "whole"],
)
def test_what_onnx_cannot_hold_is_named_with_its_module_and_nothing_else_is_said(
    make, module, capfd
):
    model = make()
    backbone = backbone_of(model)
    holder, _, name = module.rpartition(".")
    setattr(
        backbone.get_submodule(holder),
        name,
        nn.Sequential(backbone.get_submodule(module), Strange()),
    )
    with pytest.raises(
        UserError, match=rf"^live: {re.escape(module)}\.1: ONNX cannot hold it \(aten::special_bes"
    ):
        parts_of_model(model, torch.randn(2, 3, 16, 16))
    assert capfd.readouterr().out == ""


def test_without_the_package_the_user_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'mhprobe\[live\]'"):
        parts_of_model(tiny_vit(), torch.randn(2, 3, 16, 16))
