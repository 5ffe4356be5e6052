"""Gates at one change nothing; gates at zero remove exactly one head; copies carry their own."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import mhprobe
from mhprobe.gates import find_gates
from models import BUILDERS, images_for, labels_for, tiny_swin, tiny_vit

families = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


@families
def test_gates_at_one_leave_every_bit_of_output_and_gradient(build):
    model, images, labels = build(), None, labels_for(3)
    images = images_for(model, 3)
    bare = copy.deepcopy(model)
    mhprobe.attach(model)
    for net in (bare, model):
        torch.nn.functional.cross_entropy(net(images), labels).backward()
    assert torch.equal(bare(images), model(images))
    for (name, expected), got in zip(bare.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(expected.grad, got.grad), name


@families
def test_attach_leaves_the_state_dict_plain(build):
    model = build()
    keys = list(model.state_dict())
    mhprobe.attach(model)
    assert list(model.state_dict()) == keys


@families
def test_masked_switches_off_the_named_heads_and_restores(build):
    model = build()
    images = images_for(model, 2)
    gates = mhprobe.attach(model)
    before = model(images)
    mask = torch.zeros(gates.layout.num_heads, dtype=torch.bool)
    mask[1] = True
    with gates.masked(mask):
        assert gates.values.tolist()[:3] == [1.0, 0.0, 1.0]
        inside = model(images)
        with gates.masked(~mask):
            assert not gates.values.any()
        assert torch.equal(model(images), inside)
    assert torch.equal(model(images), before)
    assert not torch.equal(inside, before)


def test_masked_restores_after_an_error():
    gates = mhprobe.attach(tiny_vit())
    with pytest.raises(KeyError), gates.masked(torch.ones(6, dtype=torch.bool)):
        raise KeyError
    assert (gates.values == 1).all()


def test_gates_may_be_edited_in_place():
    model = tiny_vit()
    images = images_for(model, 2)
    gates = mhprobe.attach(model)
    with gates.masked(torch.tensor([False, True, False, False, False, False])):
        expected = model(images)
    gates.values[1] = 0
    assert torch.equal(model(images), expected)


def test_attach_twice_gives_the_same_gates():
    model = tiny_vit()
    assert mhprobe.attach(model) is mhprobe.attach(model)
    assert sum(len(m._forward_pre_hooks) for m in model.modules()) == 2


@families
def test_a_copy_and_a_pickle_obey_their_own_gates(build):
    model = build()
    images = images_for(model, 2)
    gates = mhprobe.attach(model)
    before = model(images)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        theirs = find_gates(other)
        assert theirs is not gates
        with theirs.masked(torch.ones(gates.layout.num_heads, dtype=torch.bool)):
            assert not torch.equal(other(images), before)
            assert torch.equal(model(images), before)


@families
def test_learnable_gates_get_the_slope_of_the_loss(build):
    model = build()
    images, labels = images_for(model, 4), labels_for(4)
    gates = mhprobe.attach(model, learnable=True)
    torch.nn.functional.cross_entropy(model(images), labels, reduction="sum").backward()
    batch = mhprobe.record(model, images, labels)
    slopes = torch.cat([(z * g).sum((1, 3)) for z, g in zip(batch.z, batch.grad, strict=True)], dim=1)
    # float32 sums of a few hundred terms in two orders
    torch.testing.assert_close(gates.values.grad, slopes.sum(0), rtol=1e-4, atol=1e-7)
    assert slopes.abs().min() > 0


@families
def test_a_compiled_model_obeys_new_values_without_a_new_compilation(build):
    torch._dynamo.reset()
    model = build()
    images = images_for(model, 2)
    gates = mhprobe.attach(model)
    mask = torch.zeros(gates.layout.num_heads, dtype=torch.bool)
    mask[0] = True
    with torch.no_grad(), gates.masked(mask):
        expected = model(images)
    model.compile(backend="eager")
    with torch.no_grad():
        compiled = model(images)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with gates.masked(mask):
            masked = model(images)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0
    torch.testing.assert_close(masked, expected)
    assert not torch.equal(compiled, masked)


def test_gates_follow_the_dtype_of_the_heads():
    model = tiny_vit().to(torch.bfloat16)
    mhprobe.attach(model)
    assert model(images_for(model, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("mask", [torch.zeros(5, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool)])
def test_a_mask_of_the_wrong_length_says_what_is_expected(mask):
    gates = mhprobe.attach(tiny_vit())
    with pytest.raises(mhprobe.UserError, match=r"expected shape \(6,\)"), gates.masked(mask):
        pass


def test_gates_of_another_layout_are_refused():
    ours, theirs = mhprobe.attach(tiny_vit()), mhprobe.attach(tiny_swin())
    file = io.BytesIO()
    torch.save(theirs.state_dict(), file)
    file.seek(0)
    with pytest.raises(mhprobe.UserError, match="another layout"):
        ours.set_extra_state(torch.load(file, weights_only=True)["_extra_state"])
    ours.load_state_dict(mhprobe.attach(tiny_vit()).state_dict())


def test_a_block_pruned_after_attach_is_named():
    model = tiny_vit()
    mhprobe.attach(model)
    attn = model.blocks[1].attn
    attn.qkv, attn.proj = torch.nn.Linear(24, 48), _with_hooks(torch.nn.Linear(16, 24), attn.proj)
    attn.num_heads, attn.attn_dim = 2, 16
    with pytest.raises(mhprobe.UserError, match=r"blocks.1.attn: projection input has 16 channels, expected .*24"):
        model(images_for(model, 1))


def _with_hooks(new: torch.nn.Module, old: torch.nn.Module) -> torch.nn.Module:
    new._forward_pre_hooks = old._forward_pre_hooks
    return new
