import pytest
import timm
import torch
from torch import nn

import mhprobe
from mhprobe.recording import recomputing as module
from mhprobe.recording.recomputing import Recomputed, recomputing


def kept(model: nn.Module, x: torch.Tensor) -> tuple[list[object], torch.Tensor]:
    """What a graph of ``model`` keeps, and the slope along ``x``."""
    packed: list[object] = []
    x = x.clone().requires_grad_()
    is_of = Recomputed.is_of

    def told(self: Recomputed, saved: torch.Tensor) -> bool:
        found = is_of(self, saved)
        packed.extend([self] * found)
        return found

    with pytest.MonkeyPatch.context() as patch, recomputing(model):
        patch.setattr(Recomputed, "is_of", told)
        out = model(x)
    (slope,) = torch.autograd.grad(out.square().sum(), [x])
    return packed, slope


def mlp(activation: nn.Module, wide: int = 32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, wide), activation, nn.Linear(wide, 8)).requires_grad_(False)


def plain_slope(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), [x])
    return slope


def test_a_wide_activation_is_made_again_bit_for_bit():
    x = torch.randn(3, 5, 8)
    packed, slope = kept(model := mlp(nn.GELU()), x)
    assert len(packed) == 1 and torch.equal(slope, plain_slope(model, x))


@pytest.mark.parametrize(
    "model",
    [mlp(nn.ReLU(inplace=True)), mlp(nn.GELU(), wide=8), mlp(nn.Identity())],
    ids=["written over", "not wider", "not kept by a graph"],
)
def test_what_is_not_kept_as_it_was_is_left_alone(model):
    x = torch.randn(3, 5, 8)
    packed, slope = kept(model, x)
    assert not packed and torch.equal(slope, plain_slope(model, x))


def test_a_layer_whose_output_a_hook_changes_is_left_alone():
    model, x = mlp(nn.GELU()), torch.randn(3, 5, 8)
    model[0].register_forward_hook(lambda module, args, output: 2 * output)
    packed, slope = kept(model, x)
    assert not packed and torch.equal(slope, plain_slope(model, x))


def test_slopes_along_rows_of_attention_are_those_of_a_graph_that_keeps_all(monkeypatch):
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, patch_size=8, depth=2, num_classes=3
    )
    mhprobe.attach(model)
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([0, 2])
    again = mhprobe.record(model, images, labels, {"row_slopes"})
    monkeypatch.setattr(module, "WIDER", 1000)
    whole = mhprobe.record(model, images, labels, {"row_slopes"})
    rows, queries = torch.arange(2), torch.arange(65)
    for one, other in zip(again.rows, whole.rows, strict=True):
        slopes = one.slopes_at(rows, queries)
        assert slopes.any() and torch.equal(slopes, other.slopes_at(rows, queries))
    assert again.grad is None  # nobody asked
