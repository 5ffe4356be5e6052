"""A head that was removed is a head that was masked; what is left is an ordinary timm model."""

from __future__ import annotations

import contextlib
import copy
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from timm.layers import Attention
from timm.models.swin_transformer import WindowAttention

import mhprobe
from mhprobe.backbones import family_of, layout_of
from mhprobe.backbones.parts.narrow import NoHeads
from mhprobe.backbones.swin import Windowed
from mhprobe.gates import find_gates
from mhprobe.surgery import removal
from mhprobe.surgery.costs import costs, count_flops, count_parameters
from mhprobe.surgery.removal import largest_difference
from mhprobe.surgery.repair import repair
from models import (
    BUILDERS,
    TWINS,
    images_for,
    labels_for,
    make_loud,
    tiny_swin,
    tiny_swinv2,
    tiny_vit,
    torchvision_vit,
)
from oracles import surgery as oracle

CONF = Path(__file__).parents[3] / "conf"
MODELS = {}
for name, build in BUILDERS.items():
    with contextlib.suppress(pytest.skip.Exception):  # an older timm has not all of them
        MODELS[name] = build()
# two sites of two heads stay whole, one window covers the grid of the second stage: no shift there
MODELS["swin_one_window"] = tiny_swin(img_size=16, window_size=4, num_heads=(3, 6))
torch.manual_seed(0)
MODELS["vit_parallel_blocks"] = timm.create_model(
    "vit_small_patch16_18x2_224",
    **dict(
        img_size=16,
        patch_size=4,
        embed_dim=24,
        depth=1,
        num_heads=3,
        num_classes=5,
        init_values=0.1,
    ),
).eval()
MODELS["vit_gated"] = tiny_vit()
for block in MODELS["vit_gated"].blocks:  # as timm builds it with Attention(gated=True)
    block.attn.gate = torch.nn.Linear(24, block.attn.attn_dim)
MODELS["vit_bare"] = tiny_vit(qkv_bias=False, proj_bias=False)
every_model = pytest.mark.parametrize("name", MODELS)


def masked(model, mask, images):
    gated = copy.deepcopy(model)
    with torch.no_grad(), mhprobe.attach(gated).masked(mask):
        return gated(images)


def fuse(model, fused):
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    return model


def masks(name):
    """Any mask that leaves a head: also uneven ones and whole layers."""
    heads = layout_of(MODELS[name]).num_heads
    return (
        st.lists(st.booleans(), min_size=heads, max_size=heads)
        .filter(lambda mask: not all(mask))
        .map(torch.tensor)
    )


@every_model
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_removing_heads_equals_masking_them(name, data):
    model, mask, fused = MODELS[name], data.draw(masks(name)), data.draw(st.booleans())
    fuse(model, fused)
    images = images_for(model, 2)
    with torch.no_grad():
        pruned = mhprobe.prune_heads(model, mask)(images)
    torch.testing.assert_close(
        pruned, masked(model, mask, images), rtol=1e-5, atol=1e-5
    )  # sums in another order


@every_model
def test_removing_heads_in_float64_is_exact_to_its_last_digits_and_does_something(name):
    model = copy.deepcopy(MODELS[name]).double()
    layout = layout_of(model)
    mask = torch.arange(layout.num_heads) % 2 == 1
    images = images_for(model, 3, dtype=torch.float64)
    with torch.no_grad():
        pruned = mhprobe.prune_heads(model, mask)(images)
        torch.testing.assert_close(pruned, masked(model, mask, images), rtol=1e-12, atol=1e-13)
        assert (pruned - model(images)).abs().max() > 1e-6


def test_a_swin_v2_whose_queries_are_as_large_as_timm_allows_is_pruned_to_the_last_digits():
    model = tiny_swinv2().double()
    make_loud(model, 0.3)
    with torch.no_grad():
        for block in (block for layer in model.layers for block in layer.blocks):
            block.attn.logit_scale.fill_(5.0)  # above ln 100
    mask = torch.arange(layout_of(model).num_heads) % 2 == 1
    images = images_for(model, 2, dtype=torch.float64)
    with torch.no_grad():
        pruned = mhprobe.prune_heads(model, mask)(images)
    torch.testing.assert_close(pruned, masked(model, mask, images), rtol=1e-12, atol=1e-12)


@every_model
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_pruning_twice_is_pruning_once(name, data):
    model, mask = MODELS[name], data.draw(masks(name))
    kept = torch.nonzero(~mask).flatten()
    once = mhprobe.prune_heads(model, mask)
    assert layout_of(once).num_heads == len(kept)
    again = data.draw(
        st.lists(st.booleans(), min_size=len(kept), max_size=len(kept)).filter(lambda m: not all(m))
    )
    both = mask.clone()
    both[kept[torch.tensor(again)]] = True
    twice, direct = mhprobe.prune_heads(once, torch.tensor(again)), mhprobe.prune_heads(model, both)
    images = images_for(model, 2)
    for (key, one), (other_key, other) in zip(
        twice.state_dict().items(), direct.state_dict().items(), strict=True
    ):
        assert key == other_key and torch.equal(one, other), key
    with torch.no_grad():
        assert torch.equal(twice(images), direct(images))


@pytest.mark.parametrize("name", ["vit", "vit_registers", "swin"])
def test_the_parameters_that_go_are_the_heads_own(name):
    model = MODELS[name]
    layout = layout_of(model)
    site = layout.sites[-1]
    pruned = mhprobe.prune_heads(model, [layout.num_heads - 1])
    dim = model.get_submodule(site.name).proj.out_features
    per_head = (
        4 * dim * site.head_dim + 3 * site.head_dim
    )  # rows of q, k, v with their biases, columns of proj
    table = getattr(model.get_submodule(site.name), "relative_position_bias_table", None)
    per_head += 0 if table is None else len(table)
    count = [sum(p.numel() for p in m.parameters()) for m in (model, pruned)]
    assert count[0] - count[1] == per_head
    attention = pruned.get_submodule(site.name)
    assert attention.num_heads == site.num_heads - 1
    assert attention.proj.in_features == attention.proj.weight.shape[1]
    assert (
        attention.qkv.out_features == attention.qkv.weight.shape[0] == attention.qkv.bias.shape[0]
    )


@every_model
def test_an_emptied_layer_adds_its_bias_or_not(name):
    model = copy.deepcopy(MODELS[name])
    layout = layout_of(model)
    for site in layout.sites:
        bias = model.get_submodule(site.name).proj.bias
        if bias is not None:
            torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(layout.num_heads, dtype=torch.bool)
    mask[layout.span(0)] = True
    images = images_for(model, 2)
    with torch.no_grad():
        kept, dropped = (
            mhprobe.prune_heads(model, mask, proj_bias=choice)(images)
            for choice in ("keep", "drop")
        )
        torch.testing.assert_close(kept, masked(model, mask, images), rtol=1e-5, atol=1e-5)
        bias = model.get_submodule(layout.sites[0].name).proj.bias
        if bias is None:
            assert torch.equal(kept, dropped)
            return
        bias.zero_()
        torch.testing.assert_close(dropped, masked(model, mask, images), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(kept, dropped, atol=1e-3)


@every_model
def test_gates_are_multiplied_into_the_projection(name):
    model = copy.deepcopy(MODELS[name])
    gates = mhprobe.attach(model)
    with torch.no_grad():
        gates.values.copy_(torch.linspace(0.2, 1.8, len(gates.values)))
    images = images_for(model, 2)
    mask = gates.layout.mask([1])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    pruned = mhprobe.prune_heads(model, mask)
    with torch.no_grad():
        with gates.masked(mask):
            torch.testing.assert_close(pruned(images), model(images), rtol=1e-5, atol=1e-5)
        ungated = mhprobe.prune_heads(MODELS[name], mask)
        assert not torch.allclose(pruned(images), ungated(images), atol=1e-6)
    assert all(
        torch.equal(value, before[key]) for key, value in model.state_dict().items()
    )  # a copy was pruned


@every_model
def test_what_is_left_is_plain_timm(name):
    model = copy.deepcopy(MODELS[name])
    mhprobe.attach(model)
    mask = torch.arange(layout_of(model).num_heads) % 2 == 0
    pruned = mhprobe.prune_heads(model, mask)
    assert find_gates(pruned) is None and find_gates(model) is not None
    for module in pruned.modules():
        assert not module._forward_pre_hooks and not module._forward_hooks
        assert "forward" not in vars(module)
        assert not type(module).__module__.startswith("mhprobe")
    assert type(pruned) is type(model)
    assert {type(pruned.get_submodule(site.name)) for site in layout_of(pruned).sites} <= {
        Attention,
        WindowAttention,
    }
    images = images_for(model, 2)
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(pruned))(images), pruned(images))


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_only_an_emptied_layer_needs_a_class_of_ours(name):
    first = layout_of(MODELS[name]).sites[0]
    pruned = mhprobe.prune_heads(MODELS[name], range(first.num_heads))
    ours = [
        part
        for part, module in pruned.named_modules()
        if type(module).__module__.startswith("mhprobe")
    ]
    assert ours == [first.name]
    assert type(pruned.get_submodule(first.name)) is NoHeads


@pytest.mark.parametrize("name", ["vit", "vit_registers", "swin"])
def test_a_pruned_model_trains_and_can_be_looked_into(name):
    model = MODELS[name]
    first = layout_of(model).sites[0].num_heads
    pruned = mhprobe.prune_heads(model, [*range(first), first])  # a layer and one more head
    images, labels = images_for(model, 3), labels_for(3)
    pruned.train()
    torch.nn.functional.cross_entropy(pruned(images), labels).backward()
    for site in layout_of(pruned).sites:
        assert pruned.get_submodule(f"{site.name}.qkv").weight.grad.abs().sum() > 0
    pruned.eval()
    gates = mhprobe.attach(pruned)
    assert gates.layout.num_heads == layout_of(model).num_heads - first - 1
    found = mhprobe.measure(pruned, [(images, labels)], [mhprobe.measures.GateImportance])
    assert found["gate_importance"].shape == (gates.layout.num_heads,)
    heads = mhprobe.record(pruned, images, labels, needs={"grad", "attn", "stream", "weights"})
    assert [z.shape[2] for z in heads.z] == [site.num_heads for site in gates.layout.sites]
    assert len(heads.stream) == len(layout_of(model).blocks)


@pytest.mark.parametrize("name", ["vit_registers", "swin"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_compiled_pruned_model_gives_the_same_logits(name, empty):
    model = MODELS[name]
    pruned = mhprobe.prune_heads(model, [0, 1] if empty else [0])
    images = images_for(model, 2)
    compiled = copy.deepcopy(pruned)
    compiled.compile(backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), pruned(images))
    torch.compiler.reset()


def test_masks_that_cannot_be_are_refused_in_a_line():
    model = MODELS["vit"]
    for mask, word in [
        (torch.ones(6, dtype=torch.bool), "empties the model"),
        (torch.zeros(7, dtype=torch.bool), r"\(6,\)"),
        ([6], "0 to 5"),
        ([-1], "0 to 5"),
        ([0.5], "whole numbers"),
    ]:
        with pytest.raises(mhprobe.UserError, match=word) as error:
            mhprobe.prune_heads(model, mask)
        assert "\n" not in str(error.value)
    with pytest.raises(mhprobe.UserError, match="proj_bias is one of keep, drop, got 'fold'"):
        mhprobe.prune_heads(model, [0], proj_bias="fold")


def test_a_model_that_cannot_be_pruned_is_refused_by_name(monkeypatch):
    with torch.device("meta"):
        names = ("mobilenetv5_300m", "nest_tiny", "cait_xxs24_224")
        unknown, among, talking = (timm.create_model(name) for name in names)
    with pytest.raises(mhprobe.UserError, match=r"remove heads of a timm MobileNetV5.*masked"):
        mhprobe.prune_heads(unknown, [0])
    with pytest.raises(mhprobe.UserError, match=r"Nest.*not side by side"):
        mhprobe.prune_heads(among, [0])
    with pytest.raises(mhprobe.UserError, match=r"Cait: its heads talk.*Not supported\.$"):
        mhprobe.prune_heads(talking, [0])
    with pytest.raises(mhprobe.UserError, match=r"blocks\.0\.attn\.norm .*scale_norm"):
        mhprobe.prune_heads(tiny_vit(scale_attn_norm=True), [0])
    monkeypatch.delattr(
        Windowed, "slice_heads"
    )  # a family that says where its heads are, and no more
    with pytest.raises(mhprobe.UserError, match=r"Swin v1.*can still be .* masked"):
        mhprobe.prune_heads(MODELS["swin"], [0])


# what heads cost


CUT = {
    name: model
    for name, build in TWINS.items()
    if family_of(model := build()).unprunable(model) is None
} | MODELS


@pytest.mark.parametrize("units", [{"head"}, {"neuron"}, {"head", "neuron"}])
@pytest.mark.parametrize("name", CUT)
def test_what_a_mask_leaves_is_what_the_pruned_network_has(name, units):
    """Without a unit, some, all of a layer: the last also spares what heads of Swin V2 or relative positions share."""
    model, image = CUT[name], images_for(CUT[name], 1)
    layout = layout_of(model, units)
    some = torch.rand(layout.num_heads, generator=torch.Generator().manual_seed(0)) < 0.4
    masks = [layout.mask([start]) for start in layout.offsets[:-1]] + [some]
    masks += [some | (layout.site_of_head == number) for number in range(len(layout.sites))]
    left = costs(model, layout, image, {"flops", "params"})
    for mask in masks:
        small = mhprobe.prune_heads(model, mask, units=units)
        for unit, count in (
            ("flops", lambda network: count_flops(network, image)),
            ("params", count_parameters),
        ):
            assert float(left[unit](mask[None])[0]) * count(model) == pytest.approx(
                count(small), abs=1e-3
            )


def test_flops_of_heads_that_cannot_be_removed_are_those_of_the_same_network_of_timm():
    """torchvision's attention keeps all its heads; timm's of the same sizes spares as much under every mask."""
    spared = []
    for model in (torchvision_vit(), tiny_vit(num_heads=4, mlp_ratio=32 / 24)):
        layout, image = mhprobe.attach(model).layout, images_for(model, 1)
        share_A = 1 - costs(model, layout, image, {"flops"})["flops"](
            torch.eye(layout.num_heads, dtype=torch.bool)
        )
        spared.append(share_A * count_flops(model, image))
    torch.testing.assert_close(*spared, rtol=1e-12, atol=0)


# repair


def rows_of(module, site, model, images, which):
    """What enters or leaves a projection, without the padding of windows."""
    seen = []
    handle = module.register_forward_hook(
        lambda _m, args, out: seen.append(args[0] if which == "in" else out)
    )
    with torch.no_grad():
        model(images)
    handle.remove()
    rows = seen[0].unflatten(0, (len(images), -1)).flatten(1, 2)
    return (rows if site.windows is None else rows[:, site.windows.rows()]).flatten(0, 1)


@pytest.mark.parametrize("per", ["head", "weights"])
@pytest.mark.parametrize("name", ["vit", "vit_registers", "swin"])
def test_repair_is_the_least_squares_solution_layer_by_layer(name, per):
    dense = copy.deepcopy(MODELS[name]).double()
    layout = layout_of(dense)
    images = images_for(dense, 6, dtype=torch.float64)
    mask = torch.arange(layout.num_heads) % 3 == 0
    expected = mhprobe.prune_heads(dense, mask)
    for site in layout_of(expected).sites:
        before, after = dense.get_submodule(site.name).proj, expected.get_submodule(site.name).proj
        if before.in_features == after.in_features:
            continue
        inputs, target = (
            rows_of(after, site, expected, images, "in"),
            rows_of(before, site, dense, images, "out"),
        )
        with torch.no_grad():
            if per == "weights":
                weight, bias = oracle.weights(inputs, target)
                after.weight.copy_(weight), after.bias.copy_(bias)
            else:
                parts = [
                    x @ w.T
                    for x, w in zip(
                        inputs.split(site.head_dim, 1),
                        after.weight.split(site.head_dim, 1),
                        strict=True,
                    )
                ]
                after.weight *= oracle.factors(parts, target - after.bias).repeat_interleave(
                    site.head_dim
                )
    repaired = mhprobe.prune_heads(dense, mask)
    repair(repaired, dense, lambda: images.split(4), per=per, ridge=0)
    fresh = images_for(dense, 3, seed=5, dtype=torch.float64)
    with torch.no_grad():
        pruned = mhprobe.prune_heads(dense, mask)(fresh)
        torch.testing.assert_close(repaired(fresh), expected(fresh), rtol=1e-6, atol=1e-8)
        assert not torch.allclose(repaired(fresh), pruned, rtol=1e-5)


@pytest.mark.parametrize("name", ["vit", "swin"])
@pytest.mark.parametrize("per", ["head", "weights"])
def test_repair_brings_each_layer_nearer_and_weights_nearer_than_factors(name, per):
    dense = MODELS[name]
    images = images_for(dense, 16)
    first = layout_of(dense).sites[0]
    pruned = mhprobe.prune_heads(dense, [0])
    repaired = copy.deepcopy(pruned)
    repair(repaired, dense, lambda: [images], per=per)
    target = rows_of(dense.get_submodule(first.name).proj, first, dense, images, "out")
    error = [
        (rows_of(m.get_submodule(first.name).proj, first, m, images, "out") - target).square().sum()
        for m in (pruned, repaired)
    ]
    assert error[1] < error[0]
    if per == "weights":
        scaled = copy.deepcopy(pruned)
        repair(scaled, dense, lambda: [images], per="head")
        rows = rows_of(scaled.get_submodule(first.name).proj, first, scaled, images, "out")
        assert error[1] < (rows - target).square().sum()


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_a_twin_head_is_made_up_for(name):
    """If a head equals the one that was removed, repair finds the whole model again."""
    dense = copy.deepcopy(MODELS[name]).double()
    site = layout_of(dense).sites[0]
    attention, width = dense.get_submodule(site.name), site.head_dim
    with torch.no_grad():
        for part in range(3):
            start = part * site.channels
            for tensor in (attention.qkv.weight, attention.qkv.bias):
                tensor[start + width : start + 2 * width] = tensor[start : start + width]
        attention.proj.weight[:, width : 2 * width] = attention.proj.weight[:, :width]
        if name == "swin":
            attention.relative_position_bias_table[:, 1] = attention.relative_position_bias_table[
                :, 0
            ]
    images, fresh = (images_for(dense, 8, seed=seed, dtype=torch.float64) for seed in (1, 7))
    for per in ("head", "weights"):
        pruned = mhprobe.prune_heads(dense, [1])
        with torch.no_grad():
            assert not torch.allclose(pruned(fresh), dense(fresh))
            repair(pruned, dense, lambda: [images], per=per, ridge=0)
            torch.testing.assert_close(pruned(fresh), dense(fresh), rtol=1e-6, atol=1e-8)


def test_the_ridge_that_nobody_asked_for_is_the_documented_one():
    """1e-4 of the mean square of the inputs, as rows that are added to the least squares."""
    dense = copy.deepcopy(MODELS["vit"]).double()
    site = layout_of(dense).sites[0]
    images = images_for(dense, 6, dtype=torch.float64)
    pruned = mhprobe.prune_heads(dense, [0])
    before, after = dense.get_submodule(site.name).proj, pruned.get_submodule(site.name).proj
    inputs, target = (
        rows_of(after, site, pruned, images, "in"),
        rows_of(before, site, dense, images, "out"),
    )
    x, y = inputs - inputs.mean(0), target - target.mean(0)
    pull = (len(x) * 1e-4 * x.square().mean(0).mean()).sqrt() * torch.eye(x.shape[1], dtype=x.dtype)
    with torch.no_grad():
        design, wanted = torch.cat([x, pull]), torch.cat([y, pull @ after.weight.T])
        expected = torch.linalg.lstsq(design, wanted, driver="gelsd").solution.T
    repair(pruned, dense, lambda: [images])
    torch.testing.assert_close(after.weight.data, expected, rtol=1e-8, atol=1e-10)
    without = mhprobe.prune_heads(dense, [0])
    repair(without, dense, lambda: [images], ridge=0)
    weight = without.get_submodule(site.name).proj.weight
    assert not torch.allclose(weight, expected, rtol=1e-6, atol=1e-8)
    assert OmegaConf.load(CONF / "prune" / "none.yaml").repair.ridge == 1e-4


def test_an_emptied_layer_is_repaired_to_the_mean_of_what_it_wrote():
    for name in ("vit", "swin"):
        dense = MODELS[name]
        layout = layout_of(dense)
        site = layout.sites[0]
        pruned = mhprobe.prune_heads(dense, list(range(site.num_heads)))
        images = images_for(dense, 8)
        repair(pruned, dense, lambda images=images: [images], per="head")
        written = rows_of(dense.get_submodule(site.name).proj, site, dense, images, "out")
        torch.testing.assert_close(pruned.get_submodule(site.name).proj.bias.data, written.mean(0))


def test_a_strong_ridge_leaves_the_weights_and_layers_that_kept_all_heads_are_left_alone():
    dense = MODELS["vit"]
    pruned = mhprobe.prune_heads(dense, [0])
    images = images_for(dense, 8)
    before = {key: value.clone() for key, value in pruned.state_dict().items()}
    repair(pruned, dense, lambda: [images], per="head", ridge=1e9)
    torch.testing.assert_close(pruned.state_dict(), before)
    repair(pruned, dense, lambda: [images])
    changed = {
        key for key, value in pruned.state_dict().items() if not torch.equal(value, before[key])
    }
    assert changed == {"blocks.0.attn.proj.weight", "blocks.0.attn.proj.bias"}
    for options, word in (
        ({"per": "layer"}, "head, weights"),
        ({"ridge": float("nan")}, "ridge"),
        ({"ridge": "1"}, "ridge"),
    ):
        with pytest.raises(mhprobe.UserError, match=word):
            repair(pruned, dense, lambda: [images], **options)
    for batches, word in (
        (lambda: [images[:0]], r"^repair: no images to repair with, expected at least one\.$"),
        ([images], r"^repair: batches is a function, as lambda: loader, got \["),
    ):
        with pytest.raises(mhprobe.UserError, match=word):
            repair(pruned, dense, batches)
    repair(pruned, dense, lambda: [images[:0], images])


@pytest.mark.parametrize("name", ["vit", "swin"])
@pytest.mark.parametrize("per", ["head", "weights"])
def test_a_bias_that_was_dropped_is_not_repaired(name, per):
    dense = MODELS[name]
    site = layout_of(dense).sites[0]
    with torch.no_grad():
        dense = copy.deepcopy(dense)
        dense.get_submodule(site.name).proj.bias.add_(1.0)
    mask = (
        torch.arange(layout_of(dense).num_heads) <= site.num_heads
    )  # the first layer, and a head of the second
    for choice in ("keep", "drop"):
        pruned = mhprobe.prune_heads(dense, mask, proj_bias=choice)
        second = pruned.get_submodule(layout_of(dense).sites[1].name).proj.weight.clone()
        repair(pruned, dense, lambda: [images_for(dense, 4)], per, proj_bias=choice)
        assert bool(pruned.get_submodule(site.name).proj.bias.any()) == (choice == "keep")
        assert not torch.equal(
            pruned.get_submodule(layout_of(dense).sites[1].name).proj.weight, second
        )


def test_masked_and_pruned_are_compared_in_whole_float32():
    """TF32 has 10 bits: the 1e-5 of the check would be missed by products that are right."""
    if not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this torch has older switches, which the next test looks at")

    class Asking(torch.nn.Module):
        said: list[tuple[str, str]] = []  # noqa: RUF012

        def forward(self, x):
            backends = torch.backends
            self.said.append(
                (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision)
            )
            return x

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        convolutions = torch.backends.cudnn.conv.fp32_precision
        largest_difference(Asking(), Asking(), [torch.ones(2, 3)])
        assert (
            torch.get_float32_matmul_precision() == "high"
            and torch.backends.cuda.matmul.fp32_precision == "tf32"
        )
        assert torch.backends.cudnn.conv.fp32_precision == convolutions
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(Asking.said) == {("ieee", "ieee")} and len(Asking.said) == 2


def test_an_older_torch_is_asked_by_its_own_switches(monkeypatch):
    """Before 2.9 there is no ``cudnn.conv``; the switches are those that torch documents for TF32."""
    backends = SimpleNamespace(
        cudnn=SimpleNamespace(allow_tf32=True),
        cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)),
    )
    monkeypatch.setattr(torch, "backends", backends)
    with removal._whole_float32():
        assert not backends.cudnn.allow_tf32 and not backends.cuda.matmul.allow_tf32
    assert backends.cudnn.allow_tf32 and backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("of", [tiny_vit, tiny_swin, tiny_swinv2])
def test_a_network_that_is_pruned_in_inference_mode_can_be_trained(of):
    """Its parameters were inference tensors, which no backward pass may use."""
    model = of()
    with torch.inference_mode():
        pruned = mhprobe.prune_heads(model, [0])
    assert not any(parameter.is_inference() for parameter in pruned.parameters())
    pruned(images_for(model, 2)).sum().backward()
