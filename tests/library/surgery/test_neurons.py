"""Neurons of MLPs are units as heads are: gated, measured, masked, removed, in any mix; heads alone are the default."""

from __future__ import annotations

import copy
import functools
import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers.mlp import SwiGLUPacked

import mhprobe
from mhprobe.backbones import layout_of
from mhprobe.backbones.parts import narrow
from mhprobe.data.batch import Batch
from mhprobe.heads import KINDS
from mhprobe.maps.rollout import Rollout
from mhprobe.measures import ActivationNorm, Magnitude, WriteNorm
from mhprobe.measures.base import MeasureWarning
from mhprobe.recording.fills import find_fill
from mhprobe.recording.measuring import needs_of
from mhprobe.recording.record import forward_equivalents, record
from mhprobe.recording.replay import Replay
from mhprobe.report import tables
from mhprobe.surgery.costs import latency_cost, same_share_everywhere
from mhprobe.surgery.removal import largest_difference
from mhprobe.surgery.repair import repair
from mhprobe.weights.checkpoint import load_weights, save_weights
from mhprobe.weights.description import pruned_description
from models import (
    TWINS,
    images_for,
    labels_for,
    make_loud,
    needs_timm,
    tiny_eva,
    tiny_grouped,
    tiny_tokens,
    tiny_vit,
)
from oracles import activation_norm, magnitude
from oracles import gate_importance as slopes_oracle
from oracles import lrp_relevance as lrp_oracle
from oracles import surgery as oracle
from pruned import description, logits, network

MORE = {
    # two rows of the first layers are a neuron
    "swiglu": lambda: tiny_eva(name="eva02_tiny_patch14_224"),
    "eva_grouped": tiny_grouped,
    "swiglu_packed": lambda: tiny_vit(mlp_layer=SwiGLUPacked, act_layer=torch.nn.SiLU),
}
ALONE = "eva_grouped"  # neurons can go, heads share keys and values
OWN = ["vit", "vit_registers", "swin", "eva_rope", "eva_apart", "swiglu_packed"]
STANDS_IN = [  # a small module of ours stands in timm's place: its forward cannot hold fewer heads
    *(
        "eva",
        "eva_mixed",
        "swinv2",
        "beit",
        "beit_shared",
        "relpos",
        "relpos_shared",
        "relpos_behind",
        "swiglu",
    )
]


@functools.cache
def twin(name: str, dtype: torch.dtype = torch.float32):
    """Loud, so that each unit matters."""
    model = (TWINS | MORE)[name]()
    make_loud(model, 0.2)
    return model.to(dtype)


def masked(model, mask, images, units=KINDS):
    gated = copy.deepcopy(model)
    with torch.no_grad(), mhprobe.attach(gated, units=units).masked(mask):
        return gated(images)


def some(layout, seed=0, share=0.5):
    """A mask of any mix, with one MLP that loses every neuron and one head that stays."""
    mask = torch.rand(layout.num_heads, generator=torch.Generator().manual_seed(seed)) < share
    mlps = [number for number, site in enumerate(layout.sites) if site.kind == "neuron"]
    mask[layout.span(mlps[-1])] = True
    mask[0] = False
    return mask


def nearly(one, other, share):
    return (one - other).abs().max() <= share * other.abs().max()


def test_heads_alone_are_the_default_and_keep_their_numbers():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    alone = gates.layout
    assert alone == layout_of(tiny_vit(), {"head"}) == layout_of(tiny_vit(), KINDS).of("head")
    gates.values.data[3] = 0.5
    both = mhprobe.attach(model, units={"head", "neuron"})
    assert both.layout.sites[: len(alone.sites)] == alone.sites
    assert both.values[3] == 0.5 and both.values.sum() == both.layout.num_heads - 0.5
    assert repr(both) == "HeadGates(6 heads and 192 neurons in 4 sites, 0 closed)"
    assert mhprobe.attach(model) is both  # whoever asks for nothing takes what is there
    assert mhprobe.attach(model, units={"head"}).layout == alone
    assert layout_of(tiny_vit(), {"neuron"}).kinds == {"neuron"}


@pytest.mark.parametrize("units", [{"attention"}, set(), "head"])
def test_other_units_are_refused(units):
    with pytest.raises(mhprobe.UserError, match="units: expected some of head, neuron"):
        mhprobe.attach(tiny_vit(), units=units)


def test_gates_that_change_outputs_are_not_left_out():
    model = tiny_vit()
    mhprobe.attach(model, units=KINDS).close(layout_of(model).mask([20]))
    images = images_for(model, 2)
    before = logits(model, images)
    with pytest.raises(mhprobe.UserError, match=r"^units: blocks\.0\.mlp has gates that are not 1"):
        mhprobe.attach(model, units={"head"})
    mhprobe.attach(model)
    assert torch.equal(logits(model, images), before)
    alone = tiny_vit()
    mhprobe.attach(alone, units={"neuron"}).close(layout_of(alone).mask([14]))  # the same neuron
    mhprobe.attach(alone, units=KINDS)
    assert torch.equal(logits(alone, images), before)


def test_mlps_that_mix_neurons_or_that_nobody_knows_are_refused_by_name_and_reason():
    for name in ("torchvision_vit", "hf_vit", "encoder"):
        model = TWINS[name]()
        with pytest.raises(mhprobe.UserError, match="does not know where neurons of a"):
            mhprobe.attach(model, units=KINDS)
        mhprobe.attach(model)  # heads as before
    normed = tiny_tokens("eva02_base_patch14_224")
    with pytest.raises(
        mhprobe.UserError, match=r"blocks.0.mlp.norm is a LayerNorm .* mixes neurons"
    ):
        mhprobe.attach(normed, units=KINDS)
    other = tiny_vit()
    other.blocks[1].mlp = torch.nn.Linear(24, 24)
    with pytest.raises(
        mhprobe.UserError,
        match=r"blocks.1.mlp is a Linear, expected one of timm's Mlp, GluMlp, SwiGLU",
    ):
        mhprobe.attach(other, units=KINDS)


@pytest.mark.parametrize("name", [*OWN, *STANDS_IN, ALONE])
def test_a_neuron_is_the_channel_of_what_its_rows_make(name):
    """Zero rows make the neuron's channel, and no other, fall silent: what `supported` says."""
    model = copy.deepcopy(twin(name))
    layout = layout_of(model, {"neuron"})
    images, site = images_for(model, 2), layout.sites[-1]
    mhprobe.attach(model, units={"neuron"})
    before = record(model, images, needs=()).z[-1]
    mlp = model.get_submodule(site.name)
    firsts = [mlp.fc1_g, mlp.fc1_x] if hasattr(mlp, "fc1_x") else [mlp.fc1]
    with torch.no_grad():
        for first in firsts:
            first.weight.unflatten(0, (-1, site.num_heads))[:, 5] = 0
            first.bias.unflatten(0, (-1, site.num_heads))[:, 5] = 0
    after = record(model, images, needs=()).z[-1]
    assert before.shape == (2, len(site.places()[0]), site.num_heads, 1)
    assert (after[:, :, 5] == 0).all() and (before[:, :, 5] != 0).any()
    others = torch.arange(site.num_heads) != 5
    assert torch.equal(after[:, :, others], before[:, :, others])


@pytest.mark.parametrize("name", [*OWN, *STANDS_IN, ALONE])
def test_removing_any_mix_equals_masking_it(name):
    """To 1e-12 of the largest logit in float64, 1e-5 in float32: the same sums in another order."""
    units = {"neuron"} if name == ALONE else KINDS
    if name == "eva_mixed":
        needs_timm("1.0.31", "rotations that it learns, in float64", verb="run")
    for dtype, share in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        model = twin(name, dtype)
        layout = layout_of(model, units)
        images, mask = images_for(model, 2, dtype=dtype), some(layout)
        expected = masked(model, mask, images, units)
        pruned = mhprobe.prune_heads(model, mask, units=units)
        assert nearly(logits(pruned, images), expected, share)
        assert not nearly(logits(model, images), expected, 1e-3)  # the mask does something
        assert layout_of(pruned, units).num_heads == int((~mask).sum())
        if name != ALONE:
            assert any(
                isinstance(part, narrow.Biased | narrow.Rotary) for part in pruned.modules()
            ) == (name in STANDS_IN)
    if name == ALONE:
        with pytest.raises(mhprobe.UserError, match="can still be gated"):
            mhprobe.prune_heads(model, [0], units=KINDS)


@pytest.mark.parametrize("name", ["vit", "swin"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_masks_of_any_raggedness_and_pruning_twice(name, data):
    model = twin(name, torch.float64)
    layout = layout_of(model, KINDS)
    mask = some(
        layout, data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.02, 0.5, 0.98]))
    )
    images = images_for(model, 2, dtype=torch.float64)
    once = mhprobe.prune_heads(model, mask, units=KINDS)
    kept = torch.nonzero(~mask).flatten()
    again = torch.arange(len(kept)) % 3 == 1
    both = mask.clone()
    both[kept[again]] = True
    twice, direct = (
        mhprobe.prune_heads(once, again, units=KINDS),
        mhprobe.prune_heads(model, both, units=KINDS),
    )
    assert (
        torch.equal(logits(twice, images), logits(direct, images))
        and twice.kept_heads == direct.kept_heads
    )
    assert nearly(logits(twice, images), masked(model, both, images), 1e-12)


def test_maps_are_of_heads_whatever_else_has_gates():
    model = tiny_vit()
    images = images_for(model, 2)
    alone = Rollout()(model, images), mhprobe.attention(model, images, head=1)
    mhprobe.attach(model, units=KINDS)
    both = Rollout()(model, images), mhprobe.attention(model, images, head=1)
    torch.testing.assert_close(both, alone, rtol=0, atol=0)


def test_a_row_of_a_table_says_its_kind_where_there_are_neurons():
    model = tiny_vit()
    heads, both = layout_of(model), layout_of(model, KINDS)
    alone, mixed = (
        tables.per_head(each, {"value": torch.arange(each.num_heads)}) for each in (heads, both)
    )
    assert alone.columns == ["head", "site", "stage", "block", "index", "value", "layout"]
    assert mixed.columns == ["head", "site", "stage", "block", "index", "kind", "value", "layout"]
    assert [row[:5] for row in mixed.rows[:6]] == [row[:5] for row in alone.rows]
    assert mixed.rows[6][:7] == [6, "blocks.0.mlp", 0, 0, 0, "neuron", 6]


def test_the_time_of_neurons_is_found_as_that_of_heads():
    model = tiny_vit()
    layout = mhprobe.attach(model, units=KINDS).layout
    left = latency_cost(None, model, layout, images_for(model, 2), repeats=3)
    masks = torch.stack([same_share_everywhere(layout, share) for share in (0, 0.3, 0.6, 1)])
    assert left(masks)[0] == 1 and (left(masks).diff() <= 0).all() and 0 < left(masks)[-1] < 1


def test_an_mlp_without_neurons_gives_its_bias():
    model = copy.deepcopy(twin("vit"))
    layout = layout_of(model, KINDS)
    mlp = layout.sites.index(next(site for site in layout.sites if site.kind == "neuron"))
    mask = torch.zeros(layout.num_heads, dtype=torch.bool)
    mask[layout.span(mlp)] = True
    images = images_for(model, 2)
    kept, dropped = (
        mhprobe.prune_heads(model, mask, proj_bias=bias, units=KINDS) for bias in ("keep", "drop")
    )
    assert torch.equal(
        kept.blocks[0].mlp(torch.randn(1, 3, 24)), model.blocks[0].mlp.fc2.bias.expand(1, 3, 24)
    )
    model.blocks[0].mlp.fc2.bias.data.zero_()
    assert nearly(logits(dropped, images), masked(model, mask, images), 1e-5)
    assert not nearly(logits(dropped, images), logits(kept, images), 1e-3)
    with pytest.raises(mhprobe.UserError, match="it removes all 6 heads and 192 neurons"):
        mhprobe.prune_heads(model, mask | True, units=KINDS)


def test_fractional_gates_and_means_go_into_the_weights():
    model = copy.deepcopy(twin("vit", torch.float64))
    gates = mhprobe.attach(model, units=KINDS)
    gates.values.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
    images, mask = images_for(model, 4, dtype=torch.float64), some(gates.layout)
    with torch.no_grad(), gates.masked(mask):
        expected = model(images)
    assert nearly(
        logits(mhprobe.prune_heads(model, mask), images), expected, 1e-6
    )  # gates are float32
    batch = Batch(
        images, labels_for(4), torch.arange(4), torch.ones(4, dtype=torch.bool), None, None
    )
    fill = find_fill(model, "mean", lambda: [batch])
    filled = Replay(model, mask[None], fill=fill)(images)[0]
    assert nearly(logits(mhprobe.prune_heads(model, mask, fold=fill), images), filled, 1e-5)


def test_masks_side_by_side_are_masks_one_by_one():
    """Where masks share blocks, and part in heads, in neurons, or in both of one block."""
    for name in ("vit", "swin", "relpos_behind"):
        model = copy.deepcopy(twin(name, torch.float64))
        layout = mhprobe.attach(model, units=KINDS).layout
        images = images_for(model, 2, dtype=torch.float64)
        masks = torch.stack(
            [some(layout, seed, share) for seed, share in enumerate([0.5, 0.1, 0.02, 0.02])]
        )
        heads = layout.of("head").num_heads
        masks[1:, :heads] = False
        masks[3], masks[3, 1] = masks[2], True  # the same neurons, one head
        together = Replay(model, masks)(images)
        for mask, found in zip(masks, together, strict=True):
            assert nearly(found, masked(model, mask, images), 1e-12)


@pytest.mark.parametrize("name", ["vit", "swin", "swiglu"])
def test_slopes_of_neurons_are_those_of_explicit_gates(name):
    model = copy.deepcopy(twin(name, torch.float64))
    images, labels = images_for(model, 3, dtype=torch.float64), labels_for(3)
    layout = layout_of(model, KINDS)
    expected = slopes_oracle.slopes(
        model, images, labels, [(site.name, site.num_heads) for site in layout.sites]
    )
    mhprobe.attach(model, units=KINDS)
    found = mhprobe.measure(
        model, [(images, labels)], [mhprobe.measures.GateImportance, mhprobe.measures.Fisher]
    )
    torch.testing.assert_close(
        found["gate_importance"], expected.abs().mean(0), rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(found["fisher"], expected.square().mean(0), rtol=1e-9, atol=1e-12)
    assert expected.std() > 0.1 * expected.abs().mean()
    # of heads and of neurons together: one forward and one backward pass, which costs less than two
    # more
    both = needs_of([mhprobe.measures.GateImportance(layout), mhprobe.measures.Fisher(layout)])
    batch = Batch(images, labels, torch.arange(3), torch.ones(3, dtype=torch.bool), None, None)
    assert forward_equivalents(model, batch, both) < 3


@pytest.mark.parametrize("name", ["vit", "swin", "swiglu"])
def test_sizes_of_neurons_are_those_of_their_oracles(name):
    """The same oracles as of heads; write_norm is |z| |w| over the stream before the MLP, layer by layer."""
    model = copy.deepcopy(twin(name, torch.float64))
    images = images_for(model, 4, dtype=torch.float64)
    layout = layout_of(model, {"neuron"})
    sites = [(site.name, site.num_heads) for site in layout.sites]
    gates, asked = mhprobe.attach(model, units={"neuron"}), [Magnitude, ActivationNorm, WriteNorm]
    found = mhprobe.measure(model, [(images, labels_for(4))], asked)
    for each in (magnitude, activation_norm):
        expected = each.value(model, images, labels_for(4), sites)
        torch.testing.assert_close(
            found[each.__name__.rpartition(".")[2]], expected, rtol=1e-9, atol=0
        )
        assert expected.std() > 0.02 * expected.mean()
    batch = record(model, images, needs={"stream"})
    span, site = layout.span(1), layout.sites[1]
    scale = mhprobe.backbones.family_of(model).layer_scale(model, site)
    column = model.get_submodule(site.name).fc2.weight * (1 if scale is None else scale[:, None])
    expected = (
        batch.z[1][..., 0].abs()
        * column.norm(dim=0)
        / batch.stream[site.block].middle.norm(dim=-1)[..., None]
    )
    torch.testing.assert_close(
        found["write_norm"][span], expected.mean((0, 1)).detach(), rtol=1e-9, atol=0
    )
    assert gates.layout.num_heads == len(found["write_norm"])


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_relevance_of_neurons_is_what_enters_the_last_layer_of_their_mlp(name):
    """Among the neurons of an MLP, as among the heads of a layer, whose shares stay what they were."""
    model = twin(name, torch.float64)
    images, labels = images_for(model, 3, dtype=torch.float64), labels_for(3)
    shares = []
    for image in images:
        sizes = [each.abs() for each in lrp_oracle.Books(model, image, 0.25).neurons]
        shares.append(torch.cat([each / each.sum() for each in sizes]))
    gated = copy.deepcopy(model)
    heads = mhprobe.measure(gated, [(images, labels)], [mhprobe.measures.LRPRelevance])[
        "lrp_relevance"
    ]
    mhprobe.attach(gated, units=KINDS)
    both = mhprobe.measure(gated, [(images, labels)], [mhprobe.measures.LRPRelevance])[
        "lrp_relevance"
    ]
    torch.testing.assert_close(both[: len(heads)], heads, rtol=0, atol=0)
    torch.testing.assert_close(
        both[len(heads) :], torch.stack(shares).mean(0), rtol=1e-8, atol=1e-9
    )  # as for heads
    assert both.columns["residual"][len(heads) :].isnan().all()
    for column in set(heads.columns) - {"images"}:
        # the ends of intervals are one sum over the rows of all units: with more rows torch 2.6
        # was seen to round the last bit otherwise
        older = torch.__version__ < "2.7"
        share = 1e-15 if older and column in ("low", "high") else 0
        torch.testing.assert_close(
            both.columns[column][: len(heads)], heads.columns[column], rtol=share, atol=0
        )


def test_measures_of_heads_leave_neurons_out_and_say_so():
    model, images, labels = tiny_vit(), images_for(tiny_vit(), 4), labels_for(4)
    asked = [
        mhprobe.measures.Entropy,
        mhprobe.measures.GateImportance,
        mhprobe.measures.WeightSimilarity,
    ]
    before = mhprobe.measure(model, [(images, labels)], asked)
    mhprobe.attach(model, units=KINDS)
    with pytest.warns(
        MeasureWarning, match="entropy, weight_similarity: of heads alone, the model's 192 neurons"
    ):
        after = mhprobe.measure(model, [(images, labels)], asked)
    for name in ("entropy", "weight_similarity"):
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        after["gate_importance"][:6], before["gate_importance"], rtol=0, atol=0
    )
    with pytest.raises(mhprobe.UserError, match="entropy: is of heads"):
        mhprobe.measures.Entropy(layout_of(model))


def test_confidence_of_a_neuron_is_the_share_of_tokens_that_it_fires_on():
    model = copy.deepcopy(twin("swin", torch.float64))
    images, labels = images_for(model, 3, dtype=torch.float64), labels_for(3)
    alone = mhprobe.measure(
        copy.deepcopy(model), [(images, labels)], [mhprobe.measures.Confidence]
    )["confidence"]
    fired = []
    for site in layout_of(model, {"neuron"}).sites:
        enters = model.get_submodule(site.name).fc2
        enters.register_forward_pre_hook(
            lambda _, args: fired.append((args[0] > 0).double().flatten(0, -2).mean(0))
        )
    logits(model, images)
    expected = torch.cat(fired)
    mhprobe.attach(model, units=KINDS)
    found = mhprobe.measure(model, [(images, labels)], [mhprobe.measures.Confidence])["confidence"]
    torch.testing.assert_close(found[: len(alone)], alone, rtol=1e-12, atol=0)
    torch.testing.assert_close(found[len(alone) :], expected, rtol=1e-12, atol=0)
    assert expected.std() > 0.05
    assert found.columns["uniform"][len(alone) :].isnan().all()
    assert (found.columns["low"] <= found + 1e-12).all() and (
        found <= found.columns["high"] + 1e-12
    ).all()


def test_files_come_back_go_on_to_be_pruned_and_are_exported(tmp_path):
    model, about, path = network("vit"), description("vit"), tmp_path / "pruned.safetensors"
    make_loud(model, 0.2)
    layout = layout_of(model, KINDS)
    mask = some(layout)
    pruned = mhprobe.prune_heads(model, mask, units=KINDS)
    save_weights(pruned, path, pruned_description(about, layout.kept(mask), "keep", None))
    loaded, about = load_weights(path)
    images = images_for(model, 3)
    assert torch.equal(logits(loaded, images), logits(pruned, images))
    # heads alone, of a network that has lost neurons, and then neurons of one whose last MLP has
    # none
    alone = mhprobe.prune_heads(loaded, [0])
    gone = layout_of(loaded).kept(layout_of(loaded).mask([0]))
    save_weights(alone, path, pruned_description(about, gone, "keep", None))
    again = load_weights(path)[0]
    assert torch.equal(logits(again, images), logits(alone, images))
    kept = json.loads(path.with_suffix(".json").read_text())["kept"]
    assert kept["blocks.1.mlp"] == [] and kept["blocks.0.mlp"] == layout.kept(mask)["blocks.0.mlp"]
    exported = io.BytesIO()
    torch.export.save(torch.export.export(again, (images,)), exported)
    exported.seek(0)
    assert nearly(torch.export.load(exported).module()(images), logits(again, images), 1e-5)
    assert max(largest_difference(again, alone, [images])[:1]) == 0


def test_repair_solves_the_last_layer_of_an_mlp():
    model = copy.deepcopy(twin("vit", torch.float64))
    layout = mhprobe.attach(model, units={"neuron"}).layout
    mask = some(layout)
    mask[layout.span(len(layout.sites) - 1)] = torch.arange(96) % 2 == 0
    images = images_for(model, 16, dtype=torch.float64)
    pruned = mhprobe.prune_heads(model, mask)
    broken = copy.deepcopy(pruned)
    repair(pruned, model, lambda: [images], ridge=0.0)
    heads = {}
    for key, each in (("dense", model), ("pruned", pruned)):
        part = each.blocks[0].mlp.fc2
        part.register_forward_hook(
            lambda _, args, out, key=key: heads.__setitem__(key, (args[0], out))
        )
        logits(each, images)
    weight, bias = oracle.weights(heads["pruned"][0].flatten(0, 1), heads["dense"][1].flatten(0, 1))
    torch.testing.assert_close(pruned.blocks[0].mlp.fc2.weight, weight, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(pruned.blocks[0].mlp.fc2.bias, bias, rtol=1e-6, atol=1e-8)
    whole = logits(model, images)
    assert (logits(pruned, images) - whole).norm() < 0.7 * (logits(broken, images) - whole).norm()


def test_a_network_whose_heads_are_all_gone_is_measured_by_its_neurons():
    model = tiny_vit()
    layout = layout_of(model, KINDS)
    gone = torch.arange(layout.num_heads) < layout.of("head").num_heads
    rest, loader = (
        mhprobe.prune_heads(model, gone, units=KINDS),
        [(images_for(model, 2), torch.tensor([0, 1]))],
    )
    with pytest.raises(mhprobe.UserError, match=r"units={'neuron'} if all its heads were removed"):
        mhprobe.measure(rest, loader, [mhprobe.measures.GateImportance])
    mhprobe.attach(rest, units={"neuron"})
    values = mhprobe.measure(rest, loader, [mhprobe.measures.GateImportance])["gate_importance"]
    assert len(values) == layout.of("neuron").num_heads and values.max() > 0


def test_repair_refuses_a_dense_network_that_lost_its_gates():
    """Without gates on neurons it would repair the layers of the heads alone, and say nothing."""
    model = copy.deepcopy(twin("vit"))
    layout = mhprobe.attach(model, units={"head", "neuron"}).layout
    pruned = mhprobe.prune_heads(model, some(layout))
    images = images_for(model, 4)
    before = {name: value.clone() for name, value in pruned.state_dict().items()}
    mhprobe.detach(model)
    with pytest.raises(
        mhprobe.UserError, match=r"repair: .* lost neurons of .*mlp.*mhprobe\.attach\(dense"
    ):
        repair(pruned, model, lambda: [images])
    assert all(torch.equal(before[name], value) for name, value in pruned.state_dict().items())
    mhprobe.attach(model, units={"head", "neuron"})  # the control
    repair(pruned, model, lambda: [images])
    assert any(not torch.equal(before[name], value) for name, value in pruned.state_dict().items())
