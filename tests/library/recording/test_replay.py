"""Many masks on one batch give what the whole model gives under each of them, for less."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import mhprobe
from mhprobe.backbones import family_of
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.recording.replay import Replay, gate_values, most_beside
from models import BUILDERS, images_for, make_loud, tiny_swin, tiny_vit

MORE = {
    "deep": lambda: tiny_vit(depth=4),
    "parallel": lambda: timm.create_model(
        "vit_small_patch16_18x2_224",
        img_size=16,
        patch_size=4,
        embed_dim=24,
        depth=2,
        num_heads=3,
        num_classes=5,
    ),
    "post_norm": lambda: tiny_vit(
        block_fn=ResPostBlock, init_values=0.1, global_pool="avg", class_token=False
    ),
    "padded_swin": lambda: tiny_swin(depths=(2, 2, 2), num_heads=(1, 2, 4)),
}


@pytest.fixture(params=[*BUILDERS, *MORE])
def model(request) -> nn.Module:
    """A model whose heads matter, with gates that are not one."""
    model = {**BUILDERS, **MORE}[request.param]().eval()
    make_loud(model, 0.2)
    gates = mhprobe.attach(model)
    with torch.no_grad():
        gates.values.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
    return model


def masks_for(model: nn.Module, seed: int = 0) -> Tensor:
    """Single heads, pairs of layers, half of all, one twice, none and all."""
    layout = mhprobe.attach(model).layout
    heads = layout.num_heads
    some = torch.rand(8, heads, generator=torch.Generator().manual_seed(seed)) < 0.4
    base = some[0] & (torch.arange(heads) < heads // 2)
    single = torch.eye(heads, dtype=torch.bool)
    none = torch.zeros(1, heads, dtype=torch.bool)
    return torch.cat([single, base | single, some, some[:1], none, ~none])


def one_by_one(model: nn.Module, images: Tensor, masks: Tensor) -> Tensor:
    gates, logits = mhprobe.attach(model), []
    with torch.no_grad():
        for mask in masks:
            before = gates.values.clone()
            gates.values[mask] = 0
            logits.append(model(images))
            gates.values.copy_(before)
    return torch.stack(logits)


def closed(model: nn.Module) -> None:
    """A head, a pair and a whole layer are off already; another head is at half."""
    gates = mhprobe.attach(model)
    mask = torch.zeros(gates.layout.num_heads, dtype=torch.bool)
    mask[gates.layout.span(1)] = True
    mask[0] = True
    gates.close(mask)
    with torch.no_grad():
        gates.values[1] = 0.5


def learned(model: nn.Module) -> None:
    """Hard-concrete gates, some of which have come to exactly 0, some of which are fractions."""
    gates = mhprobe.backbones.attach(model, make=HardConcreteGates)
    with torch.no_grad():
        gates.log_alpha.copy_(torch.linspace(-4, 4, gates.layout.num_heads))
    assert (gates.effective() == 0).sum() > 1 and (gates.effective() % 1 != 0).any()


GATES = {"open": mhprobe.attach, "closed": closed, "learned": learned}
gated = pytest.mark.parametrize("gate", GATES.values(), ids=GATES.keys())


@gated
@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_masks_replay_whatever_the_gates_are(build, gate):
    model = build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(0))
    gate(model)
    masks, images = masks_for(model), images_for(model, 2)
    assert same(Replay(model, masks)(images, 1), one_by_one(model, images, masks))


@gated
def test_masks_that_differ_in_closed_heads_alone_are_one_forward(gate):
    model = tiny_vit()
    gate(model)
    values = mhprobe.attach(model).effective()
    masks = torch.eye(6, dtype=torch.bool)
    run = []
    model.blocks[0].register_forward_hook(lambda *_: run.append(1))
    Replay(model, masks)(images_for(model, 2), 1)
    different = (
        3 - int((values[:3] == 0).sum()) + 1
    )  # each open head of the block, and none of them
    assert len(run) == different


def test_segments_put_together_are_the_models_forward(model):
    segments = family_of(model).segments(model)
    images = images_for(model, 3)
    with torch.no_grad():
        x = segments.stem(images)
        for block in segments.blocks:
            x = block(x)
        assert torch.equal(segments.tail(x), model(images))
    assert len(segments.blocks) == len(mhprobe.attach(model).layout.blocks)


def same(logits: Tensor, expected: Tensor) -> bool:
    """The same predictions, and logits that differ by no more than where in memory a matrix lies can make."""
    return torch.equal(logits.argmax(-1), expected.argmax(-1)) and torch.allclose(
        logits, expected, 1e-5, 1e-6
    )


def test_logits_are_those_of_the_whole_model(model):
    masks, images = masks_for(model), images_for(model, 3)
    expected = one_by_one(model, images, masks)
    logits = Replay(model, masks)(images, side_by_side=1)
    assert same(logits, expected)
    assert (logits.std(0) > 1e-3).any()  # masks do differ


GPU = 80 * 2**30  # bytes


@pytest.mark.parametrize(
    ("tokens", "width", "heads"),
    [(197, 768, 12), (197, 1024, 16), (1370, 1024, 16), (3136, 128, 4)],
    ids=["ViT-B", "ViT-L", "ViT-L at 518 px", "the first stage of Swin-B"],
)
@pytest.mark.parametrize("images", [1, 8, 100])
def test_a_gpu_gets_as_many_masks_as_keep_it_busy_and_fit(tokens, width, heads, images):
    numbers, attended = images * tokens * width, images * heads * tokens * min(tokens, 1370)
    beside = most_beside("cuda", images, numbers, attended, 4, GPU)
    together = beside * images
    assert together * tokens * width <= 1024 * 197 * 768 and together <= 1024
    assert (
        beside * 4 * (10 * numbers + attended) < GPU
    )  # what enters, its norm, queries to values, the MLP, its heads' maps
    assert most_beside("cuda", images, numbers, attended, 4, GPU // 100) <= max(1, beside // 2)


def test_images_of_224_pixels_go_beside_each_other_as_before():
    assert most_beside("cuda", 8, 8 * 197 * 768, 8 * 12 * 197 * 197, 4, GPU) == 128
    assert most_beside("cpu", 4, 4 * 65 * 192, 4 * 6 * 65 * 65, 4, None) == 4
    assert most_beside("cpu", 100, 1, 1, 4, None) == most_beside("mps", 4, 1, 1, 4, None) == 1


def test_attention_weights_are_counted_as_a_block_has_them():
    """Of a ViT every pair of tokens, of a Swin those within a window."""
    vit, swin = tiny_vit(), tiny_swin()
    for model, expected in ((vit, 2 * 3 * 17 * 17), (swin, 2 * 2 * 81 * 16)):
        mhprobe.attach(model)
        segments = family_of(model).segments(model)
        with torch.no_grad():
            x = segments.stem(images_for(model, 2))
        tree = Replay(
            model, torch.zeros(1, mhprobe.attach(model).layout.num_heads, dtype=torch.bool)
        ).tree
        assert (
            tree.attended(0, x) >= expected
            and x[..., 0].numel() == expected // {vit: 3 * 17, swin: 2 * 16}[model]
        )


@pytest.mark.parametrize("side_by_side", [2, 5, 1000])
def test_masks_may_share_a_batch(model, side_by_side):
    masks, images = masks_for(model), images_for(model, 2)
    # matrix products of another size may add in another order: float32 roundings
    torch.testing.assert_close(
        Replay(model, masks)(images, side_by_side),
        one_by_one(model, images, masks),
        rtol=1e-4,
        atol=1e-5,
    )


@gated
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_heads_that_all_masks_switch_off_can_be_left_out(build, rescale, gate):
    model = build()
    make_loud(model, 0.2)
    gate(model)
    masks, images = masks_for(model), images_for(model, 2)
    masks[:, mhprobe.attach(model).layout.span(1)] = True  # a whole layer
    masks[:, 0] = True  # and a head of another
    before = copy.deepcopy(model.state_dict())
    whole = flops(lambda: Replay(model, masks, rescale)(images, 1))
    replay = Replay(model, masks, rescale, smaller=True)
    # matrix products of another size may add in another order: float32 roundings
    torch.testing.assert_close(
        replay(images, 1), Replay(model, masks, rescale)(images, 1), rtol=1e-4, atol=1e-5
    )
    assert flops(lambda: replay(images, 1)) < whole
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_smaller_copy_shares_its_weights_and_answers_inside_a_wrapper():
    model = tiny_vit()
    wrapped, gates = nn.Sequential(nn.Identity(), model), mhprobe.attach(model)
    masks, images = masks_for(model), images_for(model, 2)
    masks[:, 0] = True
    replay = Replay(wrapped, masks, smaller=True)
    torch.testing.assert_close(
        replay(images), one_by_one(model, images, masks), rtol=1e-4, atol=1e-5
    )
    inside = replay.tree.segments.blocks
    assert (
        inside[0].attn.num_heads == 2
        and inside[1].attn.proj.weight is model.blocks[1].attn.proj.weight
    )
    assert model.blocks[0].attn.num_heads == 3 and gates.values.eq(1).all()


def test_rescaling_counts_open_heads_only():
    """One of three heads is closed: a mask of the next leaves one of two, not two of three."""
    gates = mhprobe.attach(tiny_vit())
    gates.close(gates.layout.mask([0]))
    masks = torch.stack([gates.layout.mask(heads) for heads in ([], [0], [1], [1, 2])])
    factors = gate_values(gates, masks, rescale=True)[:, :3]
    assert factors.tolist() == [[0, 1, 1], [0, 1, 1], [0, 0, 2], [0, 0, 0]]


def test_kept_heads_can_be_rescaled(model):
    layout, images = mhprobe.attach(model).layout, images_for(model, 2)
    gates, masks = mhprobe.attach(model), masks_for(model)[-6:]
    expected = []
    for mask in masks:
        before = gates.values.detach().clone()
        with torch.no_grad():
            for span in map(layout.span, range(len(layout.sites))):
                kept = int((~mask[span]).sum())
                gates.values[span] *= len(mask[span]) / max(1, kept)
            gates.values[mask] = 0
            expected.append(model(images))
            gates.values.copy_(before)
    logits = Replay(model, masks, rescale=True)(images, 1)
    torch.testing.assert_close(logits, torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(logits, Replay(model, masks)(images, 1))


def test_the_model_is_left_as_it_was():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    model.train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    values, forwards_before = (
        gates.values.detach().clone(),
        [vars(m).get("forward") for m in model.modules()],
    )
    Replay(model, masks_for(model))(images_for(model, 2))
    assert [module.training for module in model.modules()] == modes
    assert [vars(m).get("forward") for m in model.modules()] == forwards_before
    assert torch.equal(gates.values, values) and gates.beside is None
    assert all(
        parameter.requires_grad
        for name, parameter in model.named_parameters()
        if "gates" not in name
    )


def test_an_error_on_the_way_leaves_the_model_as_it_was():
    model = tiny_vit()
    mhprobe.attach(model)
    model.blocks[1].mlp.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        Replay(model, masks_for(model))(images_for(model, 2))
    del model.blocks[1].mlp.forward
    assert all("forward" not in vars(module) for module in model.modules())
    assert mhprobe.attach(model).beside is None


class Wrapper(nn.Module):
    """Looks at the image and its mirror, and changes what goes in and what comes out."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        images = 2 * images - 0.5
        return (self.backbone(images) + self.backbone(images.flip(-1))).log_softmax(-1)


class Bypass(Wrapper):
    def forward(self, images: Tensor) -> Tensor:
        return self.backbone.forward_head(self.backbone.forward_features(images))


@pytest.mark.parametrize("wrap", [Wrapper, Bypass])
def test_a_wrapper_has_its_say(model, wrap):
    wrapped, masks, images = wrap(model), masks_for(model)[::3], images_for(model, 2)
    assert same(Replay(wrapped, masks)(images, 1), one_by_one(wrapped, images, masks))


def test_a_subclass_with_a_forward_of_its_own_is_run_whole():
    class Other(VisionTransformer):
        def forward_features(self, x, **kwargs):
            return super().forward_features(x.flip(-1), **kwargs)

    torch.manual_seed(0)
    model = Other(
        img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5
    ).eval()
    mhprobe.attach(model)
    assert family_of(model).segments(model) is None
    masks, images = masks_for(model), images_for(model, 2)
    assert same(Replay(model, masks)(images), one_by_one(model, images, masks))


def test_inference_mode_and_inference_tensors_are_fine():
    model = tiny_vit()
    mhprobe.attach(model)
    with torch.inference_mode():
        images = images_for(model, 2)
        logits = Replay(model, masks_for(model))(images)
    assert same(logits, one_by_one(model, images_for(model, 2), masks_for(model)))


def test_copies_of_a_model_walk_on_their_own():
    import copy

    model = tiny_vit()
    mhprobe.attach(model)
    twin, masks, images = copy.deepcopy(model), masks_for(model), images_for(model, 2)
    with torch.no_grad():
        model.head.weight.zero_()
    assert same(Replay(twin, masks)(images), one_by_one(twin, images, masks))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_compiled_models_are_run_eager(how):
    model = tiny_vit()
    mhprobe.attach(model)
    masks, images = masks_for(model), images_for(model, 2)
    expected = one_by_one(model, images, masks)
    if how == "in place":
        model.compile(backend="eager")
        compiled = model
    else:
        compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(images)
    assert same(Replay(compiled, masks)(images, 1), expected)


def flops(work) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_single_heads_of_a_deep_model_take_about_half_the_flops():
    model = tiny_vit(depth=6, embed_dim=48, num_heads=12, mlp_ratio=2)
    mhprobe.attach(model)
    masks, images = torch.eye(72, dtype=torch.bool), images_for(model, 4)
    whole = flops(lambda: one_by_one(model, images, masks))
    shared = flops(lambda: Replay(model, masks)(images, 1))
    assert whole / shared >= 1.8


def test_a_block_runs_once_for_all_masks_that_agree_up_to_it():
    model = tiny_vit(depth=4)
    mhprobe.attach(model)
    run = 0
    for block in model.blocks:
        block.register_forward_hook(lambda *_: count())

    def count() -> None:
        nonlocal run
        run += 1

    Replay(model, torch.eye(12, dtype=torch.bool))(images_for(model, 2), 1)
    assert run == 4 + 7 + 10 + 12
