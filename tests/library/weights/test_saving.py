"""``mhprobe.save``: what was made in Python comes back as it was, or is refused before anything is written."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import mhprobe

SIZES = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5)
SWIN = dict(img_size=32, patch_size=4, window_size=4, embed_dim=12, depths=(2, 1), num_heads=(2, 4))


def vit(name: str = "vit_tiny_patch16_224", **changes) -> nn.Module:
    model = timm.create_model(name, **{**SIZES, **changes}).eval()
    with torch.no_grad():
        for weight in model.parameters():  # as after tuning; biases are 0 at first
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


@torch.no_grad()
def outputs(model: nn.Module, channels: int = 3, size: tuple[int, int] = (32, 32)):
    return model(torch.randn(3, channels, *size, generator=torch.Generator().manual_seed(1)))


MADE = {
    "plain": lambda: vit(),
    "pooled by the mean": lambda: vit(global_pool="avg"),
    "features": lambda: vit(num_classes=0),
    "another activation": lambda: vit(act_layer=nn.ReLU),
    "grey": lambda: vit(in_chans=1),
    "rectangular": lambda: vit(img_size=(32, 64)),
    "registers, no class token": lambda: vit(
        reg_tokens=2, class_token=False, global_pool="avg", no_embed_class=True
    ),
    "layer scale": lambda: vit(init_values=1e-3),
    "another width of the MLP": lambda: vit(mlp_ratio=2.0),
    "norms of queries": lambda: vit(qk_norm=True),
    "Swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN).eval(),
}


@pytest.mark.parametrize("made", MADE)
def test_a_network_comes_back_with_the_outputs_that_it_had(made, tmp_path):
    torch.manual_seed(0)
    model = MADE[made]()
    channels, size = (1 if made == "grey" else 3), ((32, 64) if made == "rectangular" else (32, 32))
    file = mhprobe.save(model, tmp_path)
    assert file == tmp_path / "model.safetensors"
    again = outputs(mhprobe.load(file), channels, size)
    torch.testing.assert_close(again, outputs(model, channels, size), rtol=1e-4, atol=1e-5)
    heads = [(0, 1), (1, 0)]
    small = mhprobe.prune_heads(model, heads)
    file = mhprobe.save(small, tmp_path / "pruned.safetensors")
    again = outputs(mhprobe.load_pruned(file), channels, size)
    torch.testing.assert_close(again, outputs(small, channels, size), rtol=1e-4, atol=1e-5)
    # negative control: the heads mattered
    assert not torch.allclose(outputs(small, channels, size), outputs(model, channels, size))


def test_neurons_an_empty_layer_and_gates_come_back(tmp_path):
    model = vit()
    layout = mhprobe.attach(model, units={"head", "neuron"}).layout
    small = mhprobe.prune_heads(model, layout.mask([0, 1, 2, 8, 110]), units={"head", "neuron"})
    again = mhprobe.load_pruned(mhprobe.save(small, tmp_path / "small.safetensors"))
    torch.testing.assert_close(outputs(again), outputs(small), rtol=1e-4, atol=1e-5)
    gated = vit()
    gates = mhprobe.attach(gated)
    with torch.no_grad():
        gates.values[1] = 0.25
    again = mhprobe.load(mhprobe.save(gated, tmp_path / "gated.safetensors"))
    torch.testing.assert_close(outputs(again), outputs(gated), rtol=1e-4, atol=1e-5)
    assert float(mhprobe.attach(again).values[1].detach()) == 0.25


def by_hand(model: nn.Module) -> nn.Module:
    model.norm.eps = 0.5
    return model


def hooked(model: nn.Module) -> nn.Module:
    model.blocks[0].register_forward_hook(lambda module, args, out: out * 2)
    return model


def one_activation(model: nn.Module) -> nn.Module:
    model.blocks[1].mlp.act = nn.Tanh()
    return model


def pooled(model: nn.Module) -> nn.Module:
    model.global_pool = "avg"
    return model


@pytest.mark.parametrize("change", [by_hand, hooked, one_activation])
def test_what_no_description_builds_again_is_refused_and_nothing_is_written(change, tmp_path):
    with pytest.raises(mhprobe.UserError, match=r"save: .*other outputs on random images.*changed"):
        mhprobe.save(change(vit()), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_pooling_that_was_set_by_hand_comes_back(tmp_path):
    model = pooled(vit())
    again = mhprobe.load(mhprobe.save(model, tmp_path))
    torch.testing.assert_close(outputs(again), outputs(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: nn.Sequential(vit()), r"Sequential holds a VisionTransformer.*give model\.0"),
        (lambda: None, "expected a model"),
    ],
)
def test_what_is_no_network_of_timm_is_called_what_it_is(model, says, tmp_path):
    with pytest.raises(mhprobe.UserError, match=says):
        mhprobe.save(model(), tmp_path)


@pytest.mark.parametrize("path", ["model.pth", 3, None])
def test_a_path_of_another_kind_is_refused(path, tmp_path):
    with pytest.raises(mhprobe.UserError, match=r"save.*path"):
        mhprobe.save(vit(), path if not isinstance(path, str) else tmp_path / path)


@pytest.mark.parametrize(
    "path", ["a\0b", "x" * 300, "/proc/none/model.safetensors", "~nobody_here/a"]
)
def test_a_place_that_cannot_be_written_is_named(path):
    with pytest.raises(mhprobe.UserError, match=r"save: .* cannot be written"):
        mhprobe.save(vit(), path)
