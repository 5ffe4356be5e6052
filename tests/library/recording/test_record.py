"""record() tells what the heads did, changes nothing, and says so when it cannot."""

from __future__ import annotations

import pytest
import timm
import torch

import mhprobe
from mhprobe.heads import Relevance
from models import (
    BUILDERS,
    huggingface_swin,
    images_for,
    labels_for,
    tiny_swin,
    tiny_swinv2,
    tiny_vit,
    torchvision_swin,
)

families = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


@families
def test_slopes_are_finite_differences_of_the_gates(build):
    model = build().double()
    images, labels = images_for(model, 2, dtype=torch.float64), labels_for(2)
    gates = mhprobe.attach(model)
    gates.values.data = gates.values.data.double()
    batch = mhprobe.record(model, images, labels)
    slopes = torch.cat(
        [(z * g).sum((1, 3)) for z, g in zip(batch.z, batch.grad, strict=True)], dim=1
    )
    step = 1e-5
    for head in range(gates.layout.num_heads):
        losses = []
        for value in (1 + step, 1 - step):
            gates.values[head] = value
            with torch.no_grad():
                losses.append(
                    torch.nn.functional.cross_entropy(model(images), labels, reduction="none")
                )
        gates.values[head] = 1
        # central differences: error of the order step ** 2, and rounding of 1e-16 / step
        torch.testing.assert_close(
            (losses[0] - losses[1]) / (2 * step), slopes[:, head], rtol=1e-5, atol=1e-9
        )


@families
def test_slopes_are_finite_differences_also_at_other_values_of_the_gates(build):
    """Of a masked head, and of gates that were learned: the slope is that at the present gates."""
    model = build().double()
    images, labels = images_for(model, 2, dtype=torch.float64), labels_for(2)
    gates = mhprobe.attach(model, learnable=True)
    gates.values.data = (
        0.2
        + torch.rand(gates.layout.num_heads, generator=torch.Generator().manual_seed(3)).double()
    )
    gates.values.data[1] = 0.0
    present = gates.values.detach().clone()
    batch = mhprobe.record(model, images, labels)
    # z is before the gate, grad behind it: their product is the slope at any value
    slopes = torch.cat(
        [(z * g).sum((1, 3)) for z, g in zip(batch.z, batch.grad, strict=True)], dim=1
    )
    step = 1e-5
    for head in range(gates.layout.num_heads):
        losses = []
        for value in (present[head] + step, present[head] - step):
            with torch.no_grad():
                gates.values[head] = value
                losses.append(
                    torch.nn.functional.cross_entropy(model(images), labels, reduction="none")
                )
                gates.values[head] = present[head]
        # central differences: error of the order step ** 2, and rounding of 1e-16 / step
        torch.testing.assert_close(
            (losses[0] - losses[1]) / (2 * step), slopes[:, head], rtol=1e-5, atol=1e-9
        )
    assert slopes[:, 1].abs().min() > 0


def test_a_masked_head_still_has_a_slope():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    with gates.masked(torch.arange(6) == 0):
        batch = mhprobe.record(model, images_for(model, 2), labels_for(2))
    assert (batch.z[0] * batch.grad[0])[:, :, 0].sum((1, 2)).abs().min() > 0


@families
def test_attention_times_values_through_the_projection_is_the_module(build):
    """Ties z, attn and their order in windows and image to the attention module's own output."""
    model = build()
    images = images_for(model, 2)
    layout = mhprobe.attach(model).layout
    outputs = {}
    for site in layout.sites:
        model.get_submodule(site.name).register_forward_hook(
            lambda module, args, out, name=site.name: outputs.__setitem__(name, (args[0], out))
        )
    batch = mhprobe.record(model, images, needs={"attn"})
    for site, z, attn in zip(layout.sites, batch.z, batch.attn, strict=True):
        module = model.get_submodule(site.name)
        rows, expected = outputs[site.name]
        values = module.qkv(rows).unflatten(-1, (3, site.num_heads, site.head_dim))[:, :, 2]
        context = torch.einsum(
            "bwhqk,bwkhd->bwqhd", attn, values.unflatten(0, attn.shape[:2])
        ).flatten(0, 1)
        # one softmax-weighted sum in another order of summation
        torch.testing.assert_close(module.proj(context.flatten(2)), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(attn.sum(-1), torch.ones(attn.shape[:-1]))
        if site.windows is None:
            torch.testing.assert_close(z, context, rtol=1e-4, atol=1e-5)


def test_windowed_tokens_come_back_in_raster_order():
    """Against timm's own way back: reverse windows, cut the padding, roll."""
    model = tiny_swin()
    images = images_for(model, 2)
    layout = mhprobe.attach(model).layout
    block, site = model.layers[0].blocks[1], layout.sites[1]
    assert site.windows.shift != (0, 0) and site.windows.grid[0] % site.windows.size[0]
    # an identity projection makes the block's attention branch return z itself, in image order
    with torch.no_grad():
        block.attn.proj.weight.copy_(torch.eye(site.channels))
        block.attn.proj.bias.zero_()
    branch = {}
    block.norm1.register_forward_hook(lambda module, args, out: branch.__setitem__("in", out))
    batch = mhprobe.record(model, images, needs=())
    with torch.no_grad():
        expected = block._attn(branch["in"]).flatten(1, 2)
    torch.testing.assert_close(batch.z[1].flatten(2), expected)


@families
def test_record_leaves_mode_gradients_and_attention_path_as_they_were(build):
    model = build().train()
    model.patch_embed.requires_grad_(False)
    mhprobe.attach(model)
    attentions = [m for m in model.modules() if hasattr(m, "fused_attn")]
    before = [m.fused_attn for m in attentions], [p.requires_grad for p in model.parameters()]
    mhprobe.record(model, images_for(model, 2), labels_for(2), needs={"grad", "attn"})
    assert (
        [m.fused_attn for m in attentions],
        [p.requires_grad for p in model.parameters()],
    ) == before
    assert all(m.training for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


@families
def test_only_parts_in_training_mode_are_put_into_eval_mode_and_back(build, monkeypatch):
    """In a large model a walk over all modules takes milliseconds, for every batch."""
    model = build()
    site = mhprobe.attach(model).layout.sites[1]
    model.get_submodule(site.name).train()
    monkeypatch.setattr(type(model), "train", lambda *_: pytest.fail("the model is in eval mode"))
    modes, during = [part.training for part in model.modules()], []
    model.register_forward_pre_hook(
        lambda *_: during.append(any(part.training for part in model.modules()))
    )
    mhprobe.record(model, images_for(model, 2), labels_for(2))
    assert during == [False] and [part.training for part in model.modules()] == modes and any(modes)


@families
def test_attention_weights_asked_of_a_module_without_any_are_an_error_that_names_it(build):
    model = build()
    name = mhprobe.attach(model).layout.sites[1].name
    del model.get_submodule(name).attn_drop  # what modules without a matrix of weights lack
    with pytest.raises(
        mhprobe.UserError, match=rf"^{name} \(\w+\) has no attention weights to look at\.$"
    ):
        mhprobe.record(model, images_for(model, 1), labels_for(1), needs={"attn"})


def test_record_works_inside_inference_mode_and_behind_a_wrapper():
    model = tiny_vit()
    mhprobe.attach(model)
    images, labels = images_for(model, 2), labels_for(2)
    expected = mhprobe.record(model, images, labels)
    with torch.inference_mode():
        got = mhprobe.record(torch.nn.Sequential(model), images + 0, labels + 0)
    torch.testing.assert_close(got.grad[0], expected.grad[0])
    assert not got.z[0].is_inference()


def test_record_sees_the_heads_of_a_compiled_model():
    torch._dynamo.reset()
    model = tiny_vit()
    mhprobe.attach(model)
    images, labels = images_for(model, 2), labels_for(2)
    expected = mhprobe.record(model, images, labels)
    model.compile(backend="eager")
    model(images)
    torch.testing.assert_close(mhprobe.record(model, images, labels).z[1], expected.z[1])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda m, x, y: mhprobe.record(m, x, y, needs={"gradient"}), "unknown needs"),
        (lambda m, x, y: mhprobe.record(m, x), "needs labels"),
        (lambda m, x, y: (m.set_grad_checkpointing(), mhprobe.record(m, x, y)), "checkpointing"),
    ],
)
def test_what_record_cannot_do_it_says(call, reason):
    model = tiny_vit()
    mhprobe.attach(model)
    with pytest.raises(mhprobe.UserError, match=reason):
        call(model, images_for(model, 1), labels_for(1))


def test_record_without_gates_says_attach():
    model = tiny_vit()
    with pytest.raises(mhprobe.UserError, match="attach"):
        mhprobe.record(model, images_for(model, 1), labels_for(1))


@pytest.mark.parametrize("build", [tiny_swin, tiny_swinv2])
def test_the_grid_of_a_swin_is_what_its_tokens_are_whatever_its_blocks_note(build):
    """The blocks of timm 1.0.29 note a grid of 9, merged, as 4, and compute on 5."""
    model = build()
    for block in model.layers[1].blocks:
        block.input_resolution = (4, 4)
    layout = mhprobe.attach(model).layout
    assert [site.token_grid for site in layout.sites] == [(9, 9)] * 2 + [(5, 5)] * 2
    assert [site.windows.grid for site in layout.sites] == [(9, 9)] * 2 + [(5, 5)] * 2


@pytest.mark.parametrize(
    "size", [12, 22, 32]
)  # of 22 the windows hold as many places, most of them padding of 18
@pytest.mark.parametrize(
    ("build", "grid"),
    [(lambda: tiny_swin(strict_img_size=False), 9), (torchvision_swin, 18), (huggingface_swin, 9)],
)
def test_images_of_another_size_are_refused_by_a_windowed_site(build, grid, size):
    """Of larger ones a part of the tokens would be taken for all."""
    model = build()
    mhprobe.attach(model)
    with pytest.raises(
        mhprobe.UserError, match=rf"a grid of \({grid}, {grid}\)|expected 3 x 18 x 18 .* got 3 x 12"
    ):
        mhprobe.record(model, torch.randn(1, 3, size * grid // 9, size * grid // 9), of="norm")


def test_a_grid_of_another_form_with_as_many_tokens_is_refused():
    """A map of 8 x 2 tokens would be drawn as one of 4 x 4."""
    model = tiny_vit(dynamic_img_size=True)
    mhprobe.attach(model)
    mhprobe.record(
        model, torch.randn(1, 3, 32, 32), of="norm"
    )  # four times as many: what asks for places refuses
    for look in (mhprobe.attention, lambda *of: mhprobe.record(*of, needs={"stream"})):
        with pytest.raises(
            mhprobe.UserError, match=r"17 places of a grid of \(4, 4\), got those of 32 x 8 pixels"
        ):
            look(model, torch.randn(1, 3, 32, 8))


class Around(torch.nn.Module):
    """A model of one's own around a backbone without a classifier.

    call: from (module, images) to logits.
    """

    def __init__(self, call):
        super().__init__()
        self.backbone, self.head, self.call = tiny_vit(num_classes=0), torch.nn.Linear(24, 5), call

    def forward(self, images):
        return self.call(self, images)


def unseen(model, images):
    with torch.no_grad():
        features = model.backbone(images)
    return model.head(features)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (unseen, "no slope arrives at the heads, .*torch.no_grad"),
        (lambda m, x: m.head(m.backbone(x).detach()), "no slope arrives at the heads"),
        (
            lambda m, x: m.head(m.backbone(x) + m.backbone(x.flip(-1))),
            "Around runs its backbone twice or more for one",
        ),
        (
            lambda m, x: m.head(torch.cat([m.backbone(image) for image in x.split(1)])),
            "on 1 images for a batch of 4",
        ),
        (
            lambda m, x: m.head(
                m.backbone(torch.cat([x, x.flip(-1)])).unflatten(0, (2, -1)).mean(0)
            ),
            "on 8 images for a batch of 4, expected one run",
        ),
    ],
)
def test_a_wrapper_of_which_slopes_would_be_those_of_other_images_or_of_none_is_refused(
    call, words
):
    model = Around(call).eval()
    mhprobe.attach(model)
    with pytest.raises(mhprobe.UserError, match=words):
        mhprobe.record(model, images_for(model.backbone, 4), labels_for(4))


@pytest.mark.filterwarnings("ignore")  # torch means to move quantisation elsewhere
def test_heads_that_quantised_layers_cut_off_are_not_said_to_be_unimportant():
    model = torch.ao.quantization.quantize_dynamic(tiny_vit(), {torch.nn.Linear})
    mhprobe.attach(model)
    with pytest.raises(mhprobe.UserError, match=r"no slope arrives at the heads, .*quantised"):
        mhprobe.record(model, images_for(model, 4), labels_for(4))


def test_writes_into_features_are_not_added_up_to_the_logits_of_a_model_around_them():
    model = Around(lambda m, x: m.head(m.backbone(x))).eval()
    mhprobe.attach(model)
    with pytest.raises(
        mhprobe.UserError, match=r"misses the logits by inf, .* or is not in the backbone"
    ):
        mhprobe.record(model, images_for(model.backbone, 4), labels_for(4), {"direct"})


def test_a_network_without_convolutions_between_its_blocks_is_not_said_to_have_some():
    model = timm.create_model(
        "naflexvit_base_patch16_gap", embed_dim=24, depth=1, num_heads=3, num_classes=5
    ).eval()
    mhprobe.attach(model)
    for needs in ({"stream"}, {Relevance()}):
        with pytest.raises(mhprobe.UserError, match="mhprobe does not know") as error:
            mhprobe.record(model, torch.randn(1, 3, 384, 384), needs=needs)
        assert "convolution" not in str(error.value)
