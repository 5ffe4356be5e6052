"""A head that goes leaves its mean in the projection's bias: what mean ablation computes, in a plain, smaller model."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import mhprobe
import mhprobe.prune
import runs
from mhprobe.backbones import attach
from mhprobe.data.batch import Batch
from mhprobe.gates.fill import Fill
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.heads import KINDS
from mhprobe.recording.fills import find_fill
from mhprobe.recording.replay import Replay
from mhprobe.weights.checkpoint import save_weights
from mhprobe.weights.description import pruned_description
from models import images_for, labels_for, make_loud
from pruned import BACKBONES, EMPTIED, REMOVED, description, logits, network, shown


def loud(kind: str) -> nn.Module:
    model = network(kind)
    make_loud(model, 0.2)
    return model


def batches(model):
    yield Batch(images_for(model, 9), labels_for(9), torch.arange(9), torch.arange(9) < 8)


def fractional(model):
    mhprobe.attach(model).values.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))


def closed(model):
    gates = mhprobe.attach(model)
    gates.close(gates.layout.mask([0, 2]))


def learned(model):
    gates = attach(model, make=HardConcreteGates)
    gates.log_alpha.data.copy_(torch.linspace(-4, 4, gates.layout.num_heads))


@pytest.mark.parametrize(
    "gate", [mhprobe.attach, closed, fractional, learned], ids=lambda gate: gate.__name__
)
@pytest.mark.parametrize("removed", [REMOVED, EMPTIED], ids=["uneven", "emptied"])
@pytest.mark.parametrize("kind", BACKBONES)
def test_logits_are_those_of_mean_ablation_and_come_back_from_a_file(kind, removed, gate, tmp_path):
    model = loud(kind)
    gate(model)
    layout, images = mhprobe.attach(model).layout, images_for(model, 4, seed=5)
    fill, mask = find_fill(model, "mean", lambda: batches(model)), layout.mask(removed[kind])
    pruned = mhprobe.prune_heads(model, mask, fold=fill)
    expected = Replay(model, mask[None], fill=fill)(images)[0]
    torch.testing.assert_close(logits(pruned, images), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(mhprobe.prune_heads(model, mask), images), expected, atol=1e-3)
    path = tmp_path / "pruned.safetensors"
    save_weights(
        pruned, path, pruned_description(description(kind), pruned.kept_heads, "keep", None)
    )
    assert torch.equal(logits(mhprobe.load_pruned(path), images), logits(pruned, images))


def test_the_constant_that_costs_least_is_folded():
    folded({"head"})


def test_no_sixteenth_of_an_mlp_costs_more_than_with_its_means_and_a_mix_is_folded():
    model, layout, judge, fill, mean = folded(KINDS)
    spans = [
        layout.span(number) for number, site in enumerate(layout.sites) if site.kind == "neuron"
    ]
    parts = [list(range(span.start + part, span.stop, 16)) for span in spans for part in range(16)]
    masks = torch.stack([layout.mask(part) for part in parts])
    best, plain = (
        judge.evaluate(model, False, instead)(masks).mean_loss for instead in (fill, mean)
    )
    assert (best <= plain + 1e-6).all()
    assert (best < plain - 1e-4).sum() > len(masks) // 2


def folded(units):
    """The pruned network has the masked network's logits with the optimal constants, which are not the means."""
    model, layout, judge = shown(units)
    fill, mean = (judge.selection.stands_in(model, fold) for fold in ("optimal", "mean"))
    mask, seen = layout.mask([1, *range(4, layout.num_heads, 3)]), judge.selection.data.images
    expected = Replay(model, mask[None], fill=fill)(seen)[0]
    torch.testing.assert_close(
        logits(mhprobe.prune_heads(model, mask, fold=fill), seen), expected, rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(Replay(model, mask[None], fill=mean)(seen)[0], expected, atol=1e-3)
    return model, layout, judge, fill, mean


@pytest.mark.parametrize("kind", ["head", "neuron"])
def test_a_fill_of_heads_and_neurons_serves_either_alone(kind):
    """It once ended in a ValueError of zip()."""
    model, layout, judge = shown(KINDS)
    fill, seen = judge.selection.stands_in(model, "mean"), judge.selection.data.images
    part = torch.tensor([site.kind == kind for _, _, site in layout])
    mask = torch.zeros(int(part.sum()), dtype=torch.bool)
    mask[[1, 4]] = True
    whole = torch.zeros(layout.num_heads, dtype=torch.bool).masked_scatter(part, mask)
    expected = Replay(model, whole[None], fill=fill)(seen)[0]
    pruned = mhprobe.prune_heads(model, mask, fold=fill, units={kind})
    torch.testing.assert_close(logits(pruned, seen), expected, rtol=1e-4, atol=1e-5)
    short = Fill(fill.sites[:2])
    with pytest.raises(
        mhprobe.UserError,
        match=r"^prune_heads: fold takes a constant per head of 3 sites, got 2 sites",
    ):
        mhprobe.prune_heads(model, mask, fold=short, units={kind})


def test_what_no_bias_can_hold_is_refused():
    model = loud("vit")
    mhprobe.attach(model)
    places = find_fill(model, "mean_per_position", lambda: batches(model))
    with pytest.raises(mhprobe.UserError, match="takes a constant per head"):
        mhprobe.prune_heads(model, [0], fold=places)
    mean = find_fill(model, "mean", lambda: batches(model))
    model.blocks[0].attn.proj.bias = None
    with pytest.raises(
        mhprobe.UserError, match=r"projection of blocks.0.attn has no bias.*fold=zero"
    ):
        mhprobe.prune_heads(model, [0], fold=mean)


@pytest.mark.slow
def test_the_command_folds_and_says_so(trained, tmp_path):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    for how in (
        ("prune=order", "prune.remove=3"),
        ("prune=order", "prune.remove=3", "prune.rounds=2"),
    ):
        folder = tmp_path / f"run{len(how)}"
        mhprobe.prune.run(runs.config("prune", tmp_path, weights, "prune.fold=mean", *how), folder)
        assert json.loads((folder / "pruned.json").read_text())["made"]["fold"] == "mean"
        stages = {row["stage"]: row for row in runs.rows(folder / "tables" / "pruning.csv")}
        assert stages["masked"]["accuracy"] == stages["pruned"]["accuracy"]
        assert json.loads((folder / "metrics.json").read_text())["prune/largest_difference"] < 1e-5
    for wrong in ("prune.proj_bias=drop", "prune.rescale=true"):
        cfg = runs.config(
            "prune", tmp_path, weights, "prune=order", "prune.remove=1", "prune.fold=mean", wrong
        )
        with pytest.raises(mhprobe.UserError, match=r"prune\.fold: heads leave their mean"):
            mhprobe.prune.run(cfg, tmp_path / "refused")
