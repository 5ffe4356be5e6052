"""Networks that people have changed: adapters (LoRA), weight norms, masks of weights, own forwards and hooks."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import mhprobe
from mhprobe.backbones import gives_features
from mhprobe.heads import KINDS
from mhprobe.recording.replay import Replay
from models import images_for, labels_for, make_loud, tiny_swin, tiny_vit


class LoRA(nn.Linear):
    """As in most libraries: a linear layer that adds a product of two narrow ones."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features)
        self.weight, self.bias = base.weight, base.bias
        self.down, self.up = (
            nn.Linear(base.in_features, 2, bias=False),
            nn.Linear(2, base.out_features, bias=False),
        )

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
    with pytest.warns(
        UserWarning, match=rf"{grow.__name__} may compute more than its weight says.*LoRA"
    ):
        found = mhprobe.measure(
            model, loader, [mhprobe.measures.WriteNorm, mhprobe.measures.GateImportance]
        )
    assert set(found) == {"gate_importance"} and found["gate_importance"].min() > 0


GROWTHS = [
    LoRA,
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
]


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
@pytest.mark.parametrize("grow", GROWTHS)
def test_heads_can_be_masked_and_are_not_cut_out_of_layers_that_have_grown(build, grow):
    model = grown("proj", grow, build)
    images, labels = images_for(model, 4), labels_for(4)
    curve = mhprobe.masking_curve(model, [(images, labels)], "layer")
    gates = mhprobe.attach(model)
    with torch.no_grad(), gates.masked(curve.masks[1]):
        expected = nn.functional.cross_entropy(model(images), labels)
    assert curve[1]["loss"] == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(
        mhprobe.UserError, match=r"attn\.proj is no nn\.Linear whose weight is a parameter"
    ):
        mhprobe.prune_heads(model, [0])
    for cost in ("params", "memory"):  # both are those of a copy that has lost heads
        with pytest.raises(
            mhprobe.UserError, match=r"attn\.proj is no nn\.Linear whose weight is a parameter"
        ):
            mhprobe.masking_curve(model, [(images, labels)], target={cost: 0.9})


def test_a_projection_that_does_not_say_its_inputs_is_named():
    with pytest.raises(
        mhprobe.UserError,
        match=r"blocks\.0\.attn: its projection, a Around, has no number in_features",
    ):
        mhprobe.attach(grown("proj", Around))


@pytest.mark.parametrize("name", ["fc1", "fc2"])
@pytest.mark.parametrize("grow", GROWTHS)
def test_neurons_are_masked_and_not_cut_out_of_layers_that_have_grown(name, grow):
    model = tiny_vit()
    setattr(model.blocks[1].mlp, name, grow(getattr(model.blocks[1].mlp, name)))
    make_loud(model.eval(), 0.3)
    gates = mhprobe.attach(model, units=KINDS)
    mask, images = torch.arange(gates.layout.num_heads) % 3 == 0, images_for(model, 4)
    with torch.no_grad(), gates.masked(mask):
        masked = model(images)
    torch.testing.assert_close(
        Replay(model, mask[None], smaller=True)(images)[0], masked, rtol=1e-5, atol=1e-5
    )
    with pytest.raises(
        mhprobe.UserError,
        match=rf"blocks\.1\.mlp\.{name} is no nn\.Linear.*, so no neuron can be cut",
    ):
        mhprobe.prune_heads(model, mask)


@pytest.mark.parametrize("grow", GROWTHS[:3])  # torch copies no masked weight that has a graph
def test_gates_that_cannot_go_into_a_layer_that_has_grown_are_not_dropped(grow):
    model = tiny_vit()
    model.blocks[1].mlp.fc2 = grow(model.blocks[1].mlp.fc2)
    make_loud(model.eval(), 0.3)
    gates = mhprobe.attach(model, units=KINDS)
    assert (
        mhprobe.prune_heads(model, [0], units={"head"}) is not model
    )  # neurons of open gates are left alone
    with torch.no_grad():
        gates.values[-1] = 0.5
    with pytest.raises(
        mhprobe.UserError,
        match=r"gates that are not 1 cannot go into the weights: blocks\.1\.mlp\.fc2",
    ):
        mhprobe.prune_heads(model, [0], units={"head"})


def loud(model):
    make_loud(model, 0.3)
    return model.eval()


def keeping_its_weights(attention):
    """The forward that many notebooks put onto a block, to look at its attention: it knows the module it is put on."""

    def forward(x, *_, **__):
        q, k, v = (
            attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        )
        attention.kept = (q @ k.mT * attention.scale).softmax(-1)
        return attention.proj((attention.kept @ v).transpose(1, 2).flatten(2))

    return forward


def test_a_forward_that_was_put_onto_a_module_is_masked_and_no_copy_of_it_is_pruned():
    plain, model = loud(tiny_vit()), loud(tiny_vit())
    model.blocks[1].attn.forward = keeping_its_weights(model.blocks[1].attn)
    loader = [(images_for(model, 8), labels_for(8))]
    curve, expected = (
        mhprobe.masking_curve(network, loader, "head", score="kl") for network in (model, plain)
    )
    assert [row["masked"] for row in curve] == [row["masked"] for row in expected]
    assert [row["loss"] for row in curve] == pytest.approx(
        [row["loss"] for row in expected], rel=1e-4, abs=1e-6
    )
    with pytest.raises(
        mhprobe.UserError,
        match=r"prune_heads: blocks\.1\.attn has a forward of its own, by which a copy would run",
    ):
        mhprobe.prune_heads(model, [(1, 0)])
    del model.blocks[1].attn.forward
    assert mhprobe.prune_heads(model, [(1, 0)]).blocks[1].attn.num_heads == 2


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
@pytest.mark.parametrize("name", ["forward", "forward_features"])
def test_masks_of_a_model_with_a_forward_of_its_own_are_masks_of_that(build, name):
    model = loud(build())
    whole = getattr(model, name)
    setattr(model, name, lambda *args, **options: 2 * whole(*args, **options) + 1)
    gates, images = mhprobe.attach(model), images_for(model, 3)
    mask = gates.layout.mask([0, 4])
    with torch.no_grad(), gates.masked(mask):
        masked = model(images)
    for smaller in (False, True):
        logits = Replay(model, torch.stack([mask, ~mask]), smaller=smaller)(images)[0]
        torch.testing.assert_close(logits, masked, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "beit_base_patch16_224", "eva02_tiny_patch14_224"]
)
@pytest.mark.parametrize("heads", [[1], [0, 1, 2]])  # some of a layer, and all
def test_hooks_of_the_user_are_on_the_pruned_model_too(name, heads):
    options = {
        "img_size": 16,
        "patch_size": 8,
        "embed_dim": 24,
        "depth": 2,
        "num_heads": 3,
        "num_classes": 5,
    }
    model = loud(timm.create_model(name, **options))
    model.blocks[0].attn.register_forward_hook(lambda module, args, output: 3 * output)
    gates, images = mhprobe.attach(model), images_for(model, 3)
    with torch.no_grad(), gates.masked(gates.layout.mask(heads)):
        masked = model(images)
        torch.testing.assert_close(
            mhprobe.prune_heads(model, heads)(images), masked, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    "name", ["deit_tiny_distilled_patch16_224", "pit_ti_distilled_224", "samvit_base_patch16"]
)
def test_a_network_without_its_several_or_wrapped_classifiers_gives_features(name):
    """Its features once counted as logits, so that a run gave the accuracy of 24 features."""
    sizes = {
        "pit": {},
        "sam": {
            "img_size": 64,
            "embed_dim": 24,
            "depth": 2,
            "num_heads": 3,
            "global_attn_indexes": (),
        },
    }
    sizes["dei"] = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 3}
    for classes in (0, 5):
        model = timm.create_model(name, num_classes=classes, **sizes[name[:3]])
        assert gives_features(model) == (classes == 0)
