"""Networks whose layers have grown: adapters (LoRA), weight norms, masks of weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import mhprobe
from models import images_for, labels_for, make_loud, tiny_swin, tiny_vit


class LoRA(nn.Linear):
    """As in most libraries: a linear layer that adds a product of two narrow ones."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features)
        self.weight, self.bias = base.weight, base.bias
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


class Around(nn.Module):
    """As in most tutorials: a module around a linear layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.linear, self.lora = base, nn.Linear(base.in_features, base.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + self.lora(x)


def grown(name, grow, build=tiny_vit):
    model = build()
    for module in [module for module in model.modules() if hasattr(module, "qkv")]:
        setattr(module, name, grow(getattr(module, name)))
    make_loud(model, 0.3)
    return model.eval()


@pytest.mark.parametrize(("name", "grow"), [("proj", LoRA), ("qkv", LoRA), ("qkv", Around)])
def test_weights_are_not_read_from_a_layer_that_computes_more(name, grow):
    model = grown(name, grow)
    loader = [(images_for(model, 4), labels_for(4))]
    with pytest.warns(UserWarning, match=rf"{grow.__name__} may compute more than its weight says.*LoRA"):
        found = mhprobe.measure(model, loader, [mhprobe.measures.WriteNorm, mhprobe.measures.GateImportance])
    assert set(found) == {"gate_importance"} and found["gate_importance"].min() > 0


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
@pytest.mark.parametrize(
    "grow",
    [
        LoRA,
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
    ],
)
def test_heads_can_be_masked_and_are_not_cut_out_of_layers_that_have_grown(build, grow):
    model = grown("proj", grow, build)
    images, labels = images_for(model, 4), labels_for(4)
    curve = mhprobe.masking_curve(model, [(images, labels)], "layer")
    gates = mhprobe.attach(model)
    with torch.no_grad(), gates.masked(curve.masks[1]):
        expected = nn.functional.cross_entropy(model(images), labels)
    assert curve[1]["loss"] == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(mhprobe.UserError, match=r"attn\.proj is no nn\.Linear whose weight is a parameter"):
        mhprobe.prune_heads(model, [0])
    for cost in ("params", "memory"):  # both are those of a copy that has lost heads
        with pytest.raises(mhprobe.UserError, match=r"attn\.proj is no nn\.Linear whose weight is a parameter"):
            mhprobe.masking_curve(model, [(images, labels)], target={cost: 0.9})


def test_a_projection_that_does_not_say_its_inputs_is_named():
    with pytest.raises(
        mhprobe.UserError, match=r"blocks\.0\.attn: its projection, a Around, has no number in_features"
    ):
        mhprobe.attach(grown("proj", Around))
