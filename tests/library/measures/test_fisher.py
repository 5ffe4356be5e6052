"""Squared slopes: beside gate importance, and what it says about masking a head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.errors import UserError
from mhprobe.measures.fisher import Fisher
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.measures.parts.losses import gate_slopes
from models import BUILDERS, images_for, labels_for

families = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


def recorded(build, images=9):
    model = build()
    layout = mhprobe.attach(model).layout
    return layout, mhprobe.record(model, images_for(model, images), labels_for(images))


@families
def test_it_is_gate_importance_with_a_square(build):
    layout, batch = recorded(build)
    fisher, importance, squared = (
        Fisher(layout),
        GateImportance(layout),
        GateImportance(layout, power=2),
    )
    for measure in (fisher, importance, squared):
        measure.update(batch)
    slopes = gate_slopes(batch, "test")
    torch.testing.assert_close(fisher.compute(), slopes.square().mean(0))
    torch.testing.assert_close(fisher.compute(), squared.compute(), rtol=0, atol=0)
    assert fisher.name == "fisher" and importance.name == "gate_importance"
    got = fisher.columns()
    torch.testing.assert_close(got["standard_error"], slopes.square().std(0) / 3)
    torch.testing.assert_close(got["signed"], importance.columns()["signed"])
    # the mean square is at least the square of the mean size, with equality for heads that treat
    # all images alike
    assert (fisher.compute() > importance.compute().square()).all()


def test_slopes_are_computed_once_for_all_measures_of_a_batch(monkeypatch):
    import mhprobe.measures.parts.losses as slopes

    layout, batch = recorded(BUILDERS["vit"])
    calls, whole = [], slopes.token_slopes
    monkeypatch.setattr(slopes, "token_slopes", lambda *args: calls.append(1) or whole(*args))
    for measure in (Fisher(layout), GateImportance(layout)):
        measure.update(batch)
    assert len(calls) == 1


def test_at_a_small_step_the_loss_moves_by_the_signed_slope_and_its_square_bounds_it():
    """A gate turned down a little: the mean loss rises by -signed * step, and the spread over images is Fisher's."""
    model = BUILDERS["vit"]().double()
    images, labels = images_for(model, 16, dtype=torch.float64), labels_for(16)
    gates = mhprobe.attach(model)
    gates.values.data = gates.values.data.double()
    fisher = Fisher(gates.layout)
    fisher.update(mhprobe.record(model, images, labels))
    columns, step = fisher.columns(), 1e-5
    for head in range(gates.layout.num_heads):
        with torch.no_grad():
            before = torch.nn.functional.cross_entropy(model(images), labels, reduction="none")
            gates.values[head] = 1 - step
            rise = (
                torch.nn.functional.cross_entropy(model(images), labels, reduction="none") - before
            )
            gates.values[head] = 1
        torch.testing.assert_close(
            rise.mean() / step, -columns["signed"][head], rtol=1e-3, atol=1e-7
        )
        torch.testing.assert_close(
            rise.square().mean() / step**2, columns["value"][head], rtol=1e-3, atol=1e-9
        )


@pytest.mark.parametrize("normalize", ["layer_l2", "layer_l2_sqrtH"])
def test_layers_are_normalised_like_importance(normalize):
    layout, batch = recorded(BUILDERS["swin"])
    plain, scaled = Fisher(layout), Fisher(layout, normalize=normalize)
    plain.update(batch)
    scaled.update(batch)
    for site in range(len(layout.sites)):
        own = plain.compute()[layout.span(site)]
        factor = layout.sites[site].num_heads ** 0.5 if normalize == "layer_l2_sqrtH" else 1
        torch.testing.assert_close(scaled.compute()[layout.span(site)], own / own.norm() * factor)


def test_wrong_options_are_refused_under_its_own_name():
    layout, _ = recorded(BUILDERS["vit"], images=1)
    with pytest.raises(UserError, match=r"fisher: normalize is one of .*, got 'l2'"):
        Fisher(layout, normalize="l2")
    with pytest.raises(UserError, match="power is one of 1, 2, got 3"):
        GateImportance(layout, power=3)


@pytest.mark.peer
@families
def test_slopes_are_captums_gradient_times_activation_of_the_projections_input(build):
    """On a model without gates: an independent way to the same number."""
    attr = pytest.importorskip("captum.attr")
    layout, batch = recorded(build, images=3)
    bare = build()
    images, labels = images_for(bare, 3), labels_for(3)

    def loss(x):
        return torch.nn.functional.cross_entropy(bare(x), labels, reduction="none")

    found = []
    for site in layout.sites:
        layer = attr.LayerGradientXActivation(loss, bare.get_submodule(site.name).proj)
        rows = layer.attribute(images, attribute_to_layer_input=True)
        found.append(
            rows.reshape(3, -1, site.num_heads, site.head_dim).sum((1, 3))
        )  # windows of an image follow each other
    torch.testing.assert_close(
        gate_slopes(batch, "test").float(), torch.cat(found, 1).detach(), rtol=1e-3, atol=1e-6
    )


@pytest.mark.peer
def test_torch_prunings_taylor_importance_is_another_order():
    """Per weight and of the batch's sum, where ours is per image and of the head's sum: it documents the difference."""
    pruning = pytest.importorskip("torch_pruning")
    model = BUILDERS["vit"](embed_dim=48, num_heads=6, depth=1)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    images, labels = images_for(model, 12), labels_for(12)
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    projection = model.blocks[0].attn.proj
    # only the columns of the projection, not the layers that depend on them: theirs is then sum |w
    # * dL/dw| per column
    taylor = pruning.importance.GroupTaylorImportance(group_reduction="mean", normalizer=None)
    graph = pruning.DependencyGraph().build_dependency(
        nn.Sequential(projection), torch.randn(1, 48)
    )
    group = graph.get_pruning_group(projection, pruning.prune_linear_in_channels, list(range(48)))
    per_column = taylor(group)
    torch.testing.assert_close(
        per_column, (projection.weight * projection.weight.grad).abs().sum(0).detach()
    )

    ours = GateImportance(mhprobe.attach(model).layout, abs_at="batch")
    ours.update(mhprobe.record(model, images, labels))
    theirs = per_column.view(6, 8).sum(1).double()
    # |sum over a head's weights| <= sum of |weights|; both are of the mean loss, ours by dividing
    # by the images
    assert (theirs > ours.compute()).all()
    assert theirs.argsort().tolist() != ours.compute().argsort().tolist()
