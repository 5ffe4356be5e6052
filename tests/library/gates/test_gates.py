"""Gates at one change nothing; gates at zero remove exactly one head; copies carry their own."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import mhprobe
from mhprobe.backbones import sliced
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.gates import HeadGates, find_gates, put_on
from mhprobe.gates.base import Gate, modules_of
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.recording.replay import Replay
from mhprobe.recording.state import moved
from models import BUILDERS, images_for, labels_for, make_loud, tiny_swin, tiny_vit

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
def test_a_smaller_copy_shares_weights_and_nothing_that_is_put_on_it(build):
    model = build()
    layout = mhprobe.attach(model).layout
    kept = {site.name: range(site.num_heads) for site in layout.sites}
    before = [{name: len(part) for name, part in held(module)} for module in model.modules()]
    smaller = sliced(model, layout, kept)
    assert all(
        one is other for one, other in zip(model.parameters(), smaller.parameters(), strict=True)
    )
    assert find_gates(smaller) is None and find_gates(model) is not None
    for module in smaller.modules():
        for _, part in held(module):
            (part.add if isinstance(part, set) else part.setdefault)("new")
    assert before == [{name: len(part) for name, part in held(part)} for part in model.modules()]


def held(module):
    return [(name, part) for name, part in vars(module).items() if isinstance(part, dict | set)]


@families
def test_modules_are_those_that_torch_finds_once_each(build):
    model = build()
    model.again = next(model.children())
    assert modules_of(model) == list(model.modules())


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


def test_measuring_leaves_learnable_gates_learnable():
    """It once fixed them without a word, and a training that went on no longer moved them."""
    model = tiny_vit()
    gates = mhprobe.attach(model, learnable=True)
    mhprobe.measure(
        model, [(images_for(model, 2), torch.tensor([0, 1]))], [mhprobe.measures.GateImportance]
    )
    assert mhprobe.attach(model) is gates and gates.values.requires_grad
    assert mhprobe.attach(model, units={"head", "neuron"}).values.requires_grad
    assert not mhprobe.attach(model, learnable=False).values.requires_grad


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


class Held(torch.nn.Module):
    """Somebody's model with a backbone in it."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone


KINDS = [HeadGates, HardConcreteGates]


def devices(gates) -> set[str]:
    return {tensor.device.type for tensor in (*gates.parameters(), *gates.buffers())}


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    "hold", [lambda backbone: backbone, Held, lambda backbone: torch.nn.ModuleList([backbone])]
)
def test_gates_go_where_their_model_goes(hold, make):
    """The meta device is another device, which every machine has."""
    model = tiny_vit()
    gates = mhprobe.attach(model, make=make)
    assert devices(gates) == {"cpu"}
    hold(model).to("meta")
    assert find_gates(model) is gates and devices(gates) == {"meta"}


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_takes_its_own_gates_along_and_leaves_the_originals(way, make):
    model = tiny_vit()
    gates = mhprobe.attach(model, make=make)
    other = way(model).to("meta")
    assert devices(find_gates(other)) == {"meta"} and devices(gates) == {"cpu"}
    again = way(model)
    model.to("meta")
    assert devices(find_gates(again)) == {"cpu"} and devices(gates) == {"meta"}


def test_a_classifiers_gates_are_moved_with_its_backbone():
    """Commands that look at the backbone alone, as maps do."""
    model = GatedClassifier(tiny_vit(), {})
    model.backbone.to("meta")
    assert devices(model.gates) == {"meta"} and find_gates(model.backbone) is model.gates


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_gates_stay_float32_in_a_model_of_another_type(dtype):
    model = tiny_vit()
    gates = mhprobe.attach(model)
    gates.values[0] = 1 / 3
    images = images_for(model.to(dtype), 2).to(dtype)
    assert gates.values.dtype == torch.float32 and gates.values[0] == torch.tensor(1 / 3)
    closed, plain = model(images), copy.deepcopy(model)
    mhprobe.detach(plain)
    assert closed.dtype == dtype and not torch.equal(closed, plain(images))
    gates.values[0] = 1.0
    assert torch.equal(model(images), plain(images))


def test_gates_are_no_parameters_of_their_backbone_and_leave_it_whole():
    model = tiny_vit()
    before = [
        dict(model.named_parameters()),
        dict(model.named_buffers()),
        list(dict(model.named_modules())),
    ]
    mhprobe.attach(model, learnable=True)
    assert [dict(model.named_parameters()).keys(), dict(model.named_buffers()).keys()] == [
        part.keys() for part in before[:2]
    ]
    model.load_state_dict(tiny_vit(1).state_dict())  # strictly: plain timm keys are all keys
    mhprobe.detach(model)
    assert list(dict(model.named_modules())) == before[2]


def test_a_backbone_that_runs_its_children_in_turn_is_not_disturbed():
    chain = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    x = torch.randn(2, 3)
    before = chain(x)
    put_on(chain, mhprobe.attach(tiny_vit()), [])
    assert torch.equal(chain(x), before)


def test_a_model_moved_in_inference_mode_can_be_asked_for_slopes():
    """As the control's twin is, at the end of a test.

    Another dtype stands for another device: torch moves alike.
    """
    model = tiny_vit()
    mhprobe.attach(model)
    with torch.inference_mode():
        plain, moved_ = copy.deepcopy(model).to(torch.float64), moved(model, torch.float64)
    assert next(plain.parameters()).is_inference() and not any(
        each.is_inference() for each in moved_.parameters()
    )
    mhprobe.record(moved_, images_for(model, 2, dtype=torch.float64), labels_for(2))


@pytest.fixture
def alone(tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def test_a_model_that_fsdp_has_sharded_is_refused(alone):
    for attach_first in (True, False):
        model = tiny_vit()
        if attach_first:
            mhprobe.attach(model)
        model = sharded(model)
        images, labels = images_for(model, 2), labels_for(2)
        for work in (
            lambda: mhprobe.attach(model),  # noqa: B023
            lambda: mhprobe.record(model, images, labels),  # noqa: B023
            lambda: mhprobe.prune_heads(model, [0]),  # noqa: B023
        ):
            with pytest.raises(
                mhprobe.UserError, match=r"FSDPVisionTransformer: .* DistributedDataParallel"
            ):
                work()


def test_gates_in_ddp_are_those_of_the_model_inside(alone):
    """It moves nothing itself; what it broadcasts are the backbone's parameters, and those are plain."""
    model = tiny_vit()
    gates, images = mhprobe.attach(model), images_for(model, 2)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    assert find_gates(wrapped) is gates
    with gates.masked(gates.layout.mask([0, 1])):
        masked = wrapped(images)
        assert torch.equal(masked, model(images))
    assert not torch.equal(masked, model(images))
    wrapped.to("meta")
    assert devices(gates) == {"meta"}


@families
def test_learnable_gates_get_the_slope_of_the_loss(build):
    model = build()
    images, labels = images_for(model, 4), labels_for(4)
    gates = mhprobe.attach(model, learnable=True)
    torch.nn.functional.cross_entropy(model(images), labels, reduction="sum").backward()
    batch = mhprobe.record(model, images, labels)
    slopes = torch.cat(
        [(z * g).sum((1, 3)) for z, g in zip(batch.z, batch.grad, strict=True)], dim=1
    )
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


@pytest.mark.parametrize(
    "mask", [torch.zeros(5, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool)]
)
def test_a_mask_of_the_wrong_length_says_what_is_expected(mask):
    gates = mhprobe.attach(tiny_vit())
    with pytest.raises(mhprobe.UserError, match=r"expected shape \(6,\)"), gates.masked(mask):
        pass


@pytest.mark.parametrize(
    "values", [float("nan"), torch.full((6,), torch.nan), torch.full((6,), torch.inf)]
)
def test_factors_that_are_not_finite_are_refused_by_the_name_of_the_argument(values):
    gates = mhprobe.attach(tiny_vit())
    with pytest.raises(
        mhprobe.UserError, match=r"gates\.fixed: values: expected a tensor of 6 finite numbers"
    ):
        gates.fixed(values).__enter__()


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
    with pytest.raises(
        mhprobe.UserError, match=r"blocks.1.attn: projection input has 16 channels, expected .*24"
    ):
        model(images_for(model, 1))


def _with_hooks(new: torch.nn.Module, old: torch.nn.Module) -> torch.nn.Module:
    new._forward_pre_hooks = old._forward_pre_hooks
    return new


# --- blocks that are replaced, and threads


def replace_projection(model):
    site = mhprobe.attach(model).layout.sites[1]
    attention = model.get_submodule(site.name)
    attention.proj = copy.deepcopy(attention.proj)
    attention.proj._forward_pre_hooks.clear()
    return site.name


def replace_block(model):
    site = mhprobe.attach(model).layout.sites[1]
    name, _, _ = site.name.rpartition(".")
    parent, _, number = name.rpartition(".")
    block = copy.deepcopy(model.get_submodule(name))
    for module in block.modules():
        module._forward_pre_hooks.clear()
    model.get_submodule(parent)[int(number)] = block
    return site.name


@pytest.mark.parametrize("replace", [replace_projection, replace_block])
@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_a_block_or_a_projection_that_was_replaced_is_missed(build, replace):
    model = build()
    gates, images, labels = mhprobe.attach(model), images_for(model, 2), labels_for(2)
    mask = gates.layout.mask(list(range(gates.layout.num_heads)))
    name = replace(model)
    asked = [
        lambda: mhprobe.record(model, images, labels),
        lambda: Replay(model, mask[None])(images),
        lambda: gates.masked(mask).__enter__(),
        lambda: gates.fixed(gates.values.detach()).__enter__(),
    ]
    for ask in asked:
        with pytest.raises(
            mhprobe.UserError, match=f"{name}: its output .* no gate .* 0 more of .*Attach again"
        ) as error:
            ask()
        assert "\n" not in str(error.value)
    gates.values.data[0] = 0
    again = mhprobe.attach(model)
    assert again is not gates and again.values[0] == 0 and again.values[1:].eq(1).all()
    with torch.no_grad(), again.masked(mask):
        silent = model(images)
    with torch.no_grad():
        torch.testing.assert_close(silent, Replay(model, mask[None])(images)[0])
        assert not torch.allclose(silent, model(images))
    for _, hooks in ((module, module._forward_pre_hooks) for module in model.modules()):
        assert sum(isinstance(hook, Gate) for hook in hooks.values()) <= 1  # none stands twice


def test_copies_and_pickles_take_no_lock_and_no_model_along():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        theirs = find_gates(other)
        assert theirs.lock is not gates.lock and theirs._model is None
        replace_projection(model)
        with theirs.masked(theirs.layout.mask([0])):  # the copy is whole
            mhprobe.record(other, images_for(other, 2), labels_for(2))
        mhprobe.attach(model)


def test_threads_that_measure_and_mask_one_model_get_what_each_gets_alone():
    model = tiny_vit()
    make_loud(model, 0.2)
    gates, images, labels = mhprobe.attach(model), images_for(model, 8), labels_for(8)
    masks = torch.eye(6, dtype=torch.bool)

    def masked(head):
        with gates.masked(masks[head]), torch.no_grad():
            return model(images)

    def slopes(head):
        with gates.masked(masks[head]):
            return torch.cat([z.flatten() for z in mhprobe.record(model, images, labels).grad])

    def side_by_side(head):
        return Replay(model, masks[head:])(images)

    asked = [(ask, head) for head in range(6) for ask in (masked, slopes, side_by_side)] * 4
    expected = [ask(head) for ask, head in asked]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns often
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda each: each[0](each[1]), asked))
    finally:
        sys.setswitchinterval(interval)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert gates.values.eq(1).all() and not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("learned", [False, True])
def test_attaching_again_to_a_model_whose_grid_has_changed_keeps_the_gates(learned):
    """Closed gates once were open again: a site with another grid counted as another site."""
    model = tiny_vit()
    gates = mhprobe.attach(model, learnable=learned)
    with torch.no_grad():
        gates.values[[0, 4]] = 0
    model.set_input_size(img_size=32)
    again = mhprobe.attach(model, units={"head", "neuron"})
    assert again.layout.sites[0].grid != gates.layout.sites[0].grid
    assert again.effective()[:6].tolist() == gates.effective().tolist() == [0, 1, 1, 1, 0, 1]
    assert again.values.requires_grad == learned


def test_masks_that_end_in_another_order_leave_nothing_behind():
    """Generators and an ExitStack may end the first block before the second."""
    model = tiny_vit()
    gates = mhprobe.attach(model)
    first, second = gates.masked([0]), gates.masked([1])
    first.__enter__()
    second.__enter__()
    assert gates.values[:2].tolist() == [0, 0]
    first.__exit__(None, None, None)
    assert gates.values[:2].tolist() == [1, 0]  # the second is open still
    second.__exit__(None, None, None)
    assert bool((gates.values == 1).all()) and not gates.held


def test_a_fixed_block_that_ends_first_keeps_the_mask_inside_it():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    halves = torch.full_like(gates.values.detach(), 0.5)
    fixed, masked = gates.fixed(halves), gates.masked([1])
    fixed.__enter__()
    masked.__enter__()
    assert gates.values[:2].tolist() == [0.5, 0]
    fixed.__exit__(None, None, None)
    assert gates.values[:2].tolist() == [1, 0]
    masked.__exit__(None, None, None)
    assert bool((gates.values == 1).all())


def test_new_gates_are_not_put_on_inside_a_mask():
    """They would take the zero over, and keep it when the block ends."""
    model = tiny_vit()
    gates = mhprobe.attach(model)
    refused = pytest.raises(mhprobe.UserError, match=r"attach: .* masked or fixed .* with block")
    with gates.masked([0]), refused:
        mhprobe.attach(model, units={"head", "neuron"})
    assert bool((gates.values == 1).all()) and mhprobe.attach(model) is gates
    with gates.masked([0]):
        assert mhprobe.attach(model) is gates  # the control: nothing new is needed
    both = mhprobe.attach(model, units={"head", "neuron"})
    assert bool((both.values == 1).all())


def test_a_block_that_masks_is_entered_as_often_as_one_likes():
    """Python's own gives an AttributeError the second time."""
    gates = mhprobe.attach(tiny_vit())
    off, half = gates.masked([1]), gates.fixed(torch.full_like(gates.values, 0.5))
    for _ in range(2):
        with off:
            assert gates.values[1] == 0
            with off:  # also inside itself
                assert gates.values[1] == 0
            assert gates.values[1] == 0
        with half:
            assert bool((gates.values == 0.5).all())
        assert bool((gates.values == 1).all())
    with pytest.raises(mhprobe.UserError):  # bad input still is, when it is entered
        gates.masked([99]).__enter__()
    assert bool((gates.values == 1).all())
