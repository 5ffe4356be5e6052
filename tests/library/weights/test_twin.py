"""The random twin of a network: what it has of the network, and that its heads do something."""

from __future__ import annotations

import logging

import pytest
import timm
import torch

import mhprobe
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.weights.twin import RandomTwin

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
SHUT = {  # of timm: what is built small, and which of its scales start at about 0
    "DINOv2": ({**TINY, "name": "vit_small_patch14_dinov2"}, "ls1.gamma"),
    "DeiT III": ({**TINY, "name": "deit3_small_patch16_224"}, "ls2.gamma"),
    "BEiT": ({**TINY, "name": "beitv2_base_patch16_224"}, "gamma_1"),
    "Swin V2": (
        {
            **{
                "name": "swinv2_tiny_window8_256",
                "img_size": 32,
                "patch_size": 4,
                "window_size": 4,
            },
            **{"embed_dim": 12, "depths": (1, 1), "num_heads": (2, 3)},
        },
        "norm1.weight",
    ),
}


def network(settings):
    """A network whose scales are as if it had been trained."""
    torch.manual_seed(0)
    model = timm.create_model(
        settings["name"], num_classes=5, **{k: v for k, v in settings.items() if k != "name"}
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 and parameter.abs().max() < 0.1:
                parameter.uniform_(0.2, 1.0)
    return model.eval()


def twin_of(model, settings):
    description = {"backbone": settings, "class_names": list("abcde")}
    return RandomTwin(model, mhprobe.attach(model).layout, description, seed=0)


def importance(model):
    torch.manual_seed(1)
    loader = [(torch.randn(16, 3, 32, 32), torch.arange(16) % 5)]
    return mhprobe.measure(model, loader, [GateImportance])["gate_importance"].mean()


@pytest.mark.parametrize(("settings", "scale"), SHUT.values(), ids=SHUT)
def test_the_twin_of_a_network_whose_branches_start_shut_has_heads_that_do_something(
    settings, scale, caplog
):
    model = network(settings)
    makes = twin_of(model, settings)
    # as it was drawn: the identity, which any head beats
    assert importance(makes.twin) < 1e-3 * importance(model)
    with caplog.at_level(logging.INFO):
        twin = makes()
    assert importance(twin) > 0.05 * importance(model)
    assert "the random network has this network's scales of residual branches" in caplog.text
    assert any(name.endswith(scale) for name in makes.shut)
    theirs, ours = dict(model.named_parameters()), dict(twin.named_parameters())
    assert all(torch.equal(theirs[name], ours[name]) for name in makes.shut)
    # and nothing else: no matrix that was drawn is the network's
    drawn = {name: each for name, each in ours.items() if each.dim() > 1 and each.std() > 0}
    assert drawn and not any(torch.equal(theirs[name], each) for name, each in drawn.items())


def test_a_twin_that_is_made_in_inference_mode_can_be_used_outside():
    """Lightning tests in inference mode.

    On a GPU the twin's gates kept it, and their values could not be read.
    """
    settings, _ = SHUT["DINOv2"]
    model = network(settings)
    with torch.inference_mode():
        assert torch.ones(1).is_inference()  # negative control
        twin = twin_of(model, settings)()
    gates = mhprobe.attach(twin)
    assert not any(
        tensor.is_inference()
        for tensor in (*twin.parameters(), *twin.buffers(), *gates.parameters())
    )


def test_scales_are_those_of_when_the_twin_is_asked_for():
    settings, _ = SHUT["DINOv2"]
    model = network(settings)
    makes = twin_of(model, settings)
    gamma = model.blocks[0].ls1.gamma
    with torch.no_grad():
        gamma.fill_(0.7)  # a training, after the command has been put together
    assert torch.equal(makes().blocks[0].ls1.gamma, gamma)


def test_a_network_whose_branches_are_open_gives_its_twin_nothing(caplog):
    settings = {**TINY, "name": "vit_tiny_patch16_224"}
    makes = twin_of(network(settings), settings)
    with caplog.at_level(logging.INFO):
        makes()
    assert makes.shut == [] and caplog.text == ""
