"""What can be frozen of every family: parts that are apart, or one line that says which part nobody can tell.

The families are those of tests/helpers/models.py and tests/helpers/located.py, all of them.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch

import mhprobe
from located import LOCATED
from mhprobe.backbones import family_of, layout_of
from mhprobe.backbones.parts.freezing import freeze, part_of
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.heads import Part
from models import TWINS, tiny_swin, tiny_vit

MODELS = {**TWINS, **LOCATED}
QUICK = {"vit", "swin", "encoder", "xcit", "sam"}
every = pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)


def gated(build):
    model = build()
    mhprobe.attach(model)
    return model


def parts(model) -> dict[str, set[str]]:
    """By part the names of its parameters; those that the family cannot tell are left out."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for part in get_args(Part):
        try:
            found[part] = {names[id(parameter)] for parameter in part_of(model, part)}
        except mhprobe.UserError as error:
            assert family_of(model).title in str(error) and f"the {part} of" in str(error)
    return found


@every
def test_parts_are_apart_and_what_is_frozen_is_not_trained_and_the_rest_is(name):
    """Or nothing is frozen at all, and the model is left as it was."""
    model = gated(MODELS[name])
    found = parts(model)
    check_apart(name, model, found)
    every, trainable = dict(model.named_parameters()), trained(model)
    for part in get_args(Part):
        if part in found:
            freeze(model, [part])
            assert trained(model) == trainable - found[part]
            for key in found[part]:
                every[key].requires_grad_(key in trainable)
        else:
            with pytest.raises(
                mhprobe.UserError, match=f"cannot tell the {part} .* can freeze {', '.join(found)};"
            ):
                freeze(model, ["attention", part])
            assert trained(model) == trainable
    freeze(model, list(found))
    assert trained(model) == trainable - set().union(*found.values())


def trained(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def check_apart(name, model, found):
    """None is in two parts; attention is known everywhere, with its outputs, and MLPs wherever blocks are."""
    together = [parameter for part in found.values() for parameter in part]
    assert len(together) == len(set(together))
    family, layout = family_of(model), layout_of(model)
    blocks = layout.blocks
    outputs = {id(family.seam(model, site).output.weight) for site in layout.sites}
    own = {key for key, parameter in model.named_parameters() if id(parameter) in outputs}
    assert own and own <= found["attention"]
    assert ("mlp" in found) == bool(blocks)
    assert name in {"encoder", "encoder_behind"} or ("embedding" in found) == bool(blocks)
    for block in blocks:
        inside = {key for key in found["mlp"] if key.startswith(f"{block.name}.")}
        assert len(inside) >= 2, block.name  # an MLP has two layers at the least


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
@pytest.mark.parametrize("units", [{"head", "neuron"}, {"neuron"}])
def test_parts_are_the_same_where_neurons_have_gates(build, units):
    model = build()
    mhprobe.attach(model, units=units)
    assert parts(model) == parts(gated(build))


@pytest.mark.parametrize("build, size", [(tiny_vit, 16), (tiny_swin, 18)])
def test_no_gradient_flows_through_frozen_first_blocks(build, size):
    """What goes into the first block that is trained needs none, so nothing in front of it is trained."""
    for number in range(1, len(layout_of(gated(build)).blocks)):
        model, needs = gated(build), []
        freeze(model, number)
        for block in layout_of(model).blocks:
            model.get_submodule(block.name).register_forward_hook(_notes(needs))
        model(torch.randn(2, 3, size, size))
        assert needs == [False] * number + [True] * (len(needs) - number)


def _notes(needs):
    return lambda module, images, out: needs.append(out.requires_grad)


def test_a_number_of_blocks_is_from_one_to_all_of_them():
    model = gated(tiny_vit)
    blocks = len(layout_of(model).blocks)
    for number in (0, blocks + 1):
        with pytest.raises(mhprobe.UserError, match=f"at most the {blocks} blocks .* got {number}"):
            freeze(model, number)


def test_a_classifier_freezes_the_parts_that_it_is_told():
    model = gated(tiny_swin)
    module = GatedClassifier(model, {}, frozen=["mlp", "embedding"])
    frozen = {key for key, each in module.backbone.named_parameters() if not each.requires_grad}
    assert frozen == parts(model)["mlp"] | parts(model)["embedding"] != set()


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_parts_of_timms_vit_and_swin_are_those_of_their_names(build):
    model = gated(build)
    expected = {
        "attention": {key for key, _ in model.named_parameters() if ".attn." in key},
        "mlp": {key for key, _ in model.named_parameters() if ".mlp." in key},
        "embedding": {
            key
            for key, _ in model.named_parameters()
            if key.startswith(("patch_embed", "pos_embed", "cls_token"))
        },
        "classifier": {key for key, _ in model.named_parameters() if key.startswith("head.")},
    }
    assert parts(model) == expected
