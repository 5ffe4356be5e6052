"""What every backbone family promises: gates own their head's channels, and what is not supported says why."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import timm
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

import mhprobe
from mhprobe.backbones import Family, families, family_of, layout_of
from mhprobe.backbones.parts.located import Located
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.replay import Replay
from models import TWINS, images_for, labels_for, make_loud, tiny_grouped

CONF = Path(__file__).parents[3] / "conf" / "backbone"

# (timm name, heads per site, sites): one of every lineage in the family
SUPPORTED = [
    ("vit_tiny_patch16_224", {3}, 12),
    ("vit_base_patch16_224.augreg_in21k", {12}, 12),
    ("vit_small_patch14_reg4_dinov2", {6}, 12),
    ("deit_tiny_distilled_patch16_224", {3}, 12),
    ("deit3_small_patch16_224", {6}, 12),
    ("vit_base_patch16_clip_224.openai", {12}, 12),
    ("vit_base_patch16_siglip_224", {12}, 12),
    ("vit_small_patch16_18x2_224", {6}, 36),
    ("vit_base_patch32_plus_256", {14}, 12),
    ("flexivit_small", {6}, 12),
    ("vit_small_resnet26d_224", {8}, 8),
    ("swin_tiny_patch4_window7_224", {3, 6, 12, 24}, 12),
    ("swin_base_patch4_window7_224.ms_in22k", {4, 8, 16, 32}, 24),
    ("swin_s3_tiny_224", {3, 6, 12, 24}, 12),
    ("eva_giant_patch14_224", {16}, 40),
    ("eva02_tiny_patch14_224", {3}, 12),
    ("eva02_base_patch14_448", {12}, 12),
    ("vit_small_patch16_dinov3", {6}, 12),
    ("vit_pe_core_tiny_patch16_384", {3}, 12),
    ("vit_small_patch16_rope_mixed_224", {6}, 12),
    ("beit_base_patch16_224", {12}, 12),
    ("beitv2_base_patch16_224", {12}, 12),
    ("swinv2_tiny_window8_256", {3, 6, 12, 24}, 12),
    ("vit_relpos_small_patch16_224", {6}, 12),
    ("vit_srelpos_small_patch16_224", {6}, 12),
    ("vit_relpos_base_patch16_rpn_224", {12}, 12),
]

REFUSED = [  # (timm name, what the one line must name)
    (
        "eva02_base_patch16_clip_224",
        r"blocks\.0\.attn\.norm is a LayerNorm .*scale_norm.*mixes heads",
    ),
    ("cait_xxs24_224", "Cait: its heads talk"),
    ("nest_tiny", "Nest: .* lie among each other"),
    ("resnet18", "ResNet"),
]


@pytest.mark.parametrize(("name", "heads", "sites"), SUPPORTED, ids=[row[0] for row in SUPPORTED])
def test_supported_architectures_have_their_heads_found(name, heads, sites):
    with torch.device("meta"):
        model = timm.create_model(name)
    layout = layout_of(model)
    assert {site.num_heads for site in layout.sites} == heads
    assert len(layout.sites) == sites
    assert layout.num_heads == sum(site.num_heads for site in layout.sites)


@pytest.mark.parametrize(("name", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
def test_unsupported_architectures_are_refused_by_name(name, reason):
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(mhprobe.UserError, match=reason):
        layout_of(model)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        (
            {"block_fn": timm.models.vision_transformer.ParallelScalingBlock},
            r"blocks\.0 is a ParallelScalingBlock",
        ),
        ({"attn_layer": "diff"}, r"blocks\.0\.attn is a DiffAttention"),
        ({"scale_attn_norm": True}, r"blocks\.0\.attn\.norm is a LayerNorm"),
    ],
)
def test_blocks_that_mix_heads_are_refused_by_module_and_reason(kwargs, reason):
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=24, depth=1, **kwargs
    )
    with pytest.raises(mhprobe.UserError, match=reason):
        mhprobe.attach(model)


NAMES = {path.stem for path in CONF.glob("*.yaml")}


def yaml_of(family: Family) -> str:
    return type(family).__name__.lower()


twins = pytest.mark.parametrize("build", TWINS.values(), ids=TWINS.keys())


def loud(build) -> nn.Module:
    """A tiny model, gated, whose heads matter."""
    model = build()
    make_loud(model, 0.3)
    mhprobe.attach(model)
    return model


def run(model: nn.Module, images: Tensor) -> Tensor:
    return logits_of(model(images))


def head_by_head(model: nn.Module):
    """(family, flat index, number of the site, head, site) for every head."""
    layout = mhprobe.attach(model).layout
    for flat, (number, head, site) in enumerate(layout):
        yield family_of(model), flat, number, head, site


def columns(head: int, site) -> slice:
    return slice(head * site.head_dim, (head + 1) * site.head_dim)


@twins
def test_without_its_W_V_a_head_says_the_same_to_every_image_and_no_other_head_notices(build):
    model = loud(build)
    images = images_for(model, 2)
    for family, _, number, head, site in head_by_head(model):
        cut = copy.deepcopy(model)
        family.head_weights(cut, site).value[head].zero_()  # they are the module's own
        before = mhprobe.record(model, images, needs=()).z[number]
        after = mhprobe.record(cut, images, needs=()).z[number]
        others = [other for other in range(site.num_heads) if other != head]
        constant = after[:, :, head]
        # what is left is the bias, averaged with weights that add up to one
        torch.testing.assert_close(
            constant, constant[:1, :1].expand_as(constant), rtol=1e-4, atol=1e-5
        )
        assert torch.equal(after[:, :, others], before[:, :, others]), (site.name, head)
        assert before[:, :, head].std(0).mean() > 1e-3


@twins
def test_a_gate_of_zero_is_a_head_without_its_part_of_W_O(build):
    """The gate and the weights agree on which head is which."""
    model = loud(build)
    images = images_for(model, 2)
    gates, plain = mhprobe.attach(model), run(model, images)
    for family, flat, _, head, site in head_by_head(model):
        cut = copy.deepcopy(model)
        with torch.no_grad():
            family.seam(cut, site).output.weight[:, columns(head, site)] = 0
            with gates.masked(gates.layout.mask([flat])):
                torch.testing.assert_close(run(model, images), run(cut, images))
        assert not torch.allclose(run(cut, images), plain, atol=1e-4)


@twins
def test_what_a_head_hands_on_hangs_on_its_own_gate_alone(build):
    """The Jacobian of what passes the seam, along the gates of the site: one gate for each head's channels."""
    model = loud(build)
    gates = mhprobe.attach(model)
    family, images, passed = family_of(model), images_for(model, 2), {}
    for number, site in enumerate(gates.layout.sites):
        point = family.seam(model, site).point
        point.register_forward_pre_hook(
            lambda _, args, number=number: passed.__setitem__(number, args[0])
        )
    heads = list(head_by_head(model))
    gates.values.requires_grad_(True)
    run(model, images)
    noise = torch.Generator().manual_seed(0)
    for _, _, number, head, site in heads:
        mine = passed[number][..., columns(head, site)]
        along = torch.randn(mine.shape, generator=noise)
        (slope,) = torch.autograd.grad((mine * along).sum(), gates.values, retain_graph=True)
        inside = slope[gates.layout.span(number)]
        assert inside.nonzero().flatten().tolist() == [head], (site.name, head)


@twins
def test_the_seam_is_where_the_family_says(build):
    model = loud(build)
    layout, images = mhprobe.attach(model).layout, images_for(model, 2)
    family = family_of(model)
    for site in layout.sites:
        seam, seen = family.seam(model, site), {}
        handles = [
            seam.point.register_forward_pre_hook(
                lambda _, args, seen=seen: seen.update(heads=args[0])
            ),
            seam.attention.register_forward_hook(
                lambda _, args, out, seen=seen: seen.update(out=out)
            ),
        ]
        with torch.no_grad(), seam.watched(lambda _, args, seen=seen: seen.update(weights=args[0])):
            run(model, images)
        for handle in handles:
            handle.remove()
        assert seen["heads"].shape[-1] == site.channels
        assert seam.output.weight.shape[1] == site.channels
        assert seen["weights"].shape[:2] == (len(seen["heads"]), site.num_heads)
        torch.testing.assert_close(seen["weights"].sum(-1), torch.ones(seen["weights"].shape[:-1]))
        with torch.no_grad():
            # the hooks in front of the point have run: these heads are gated already, by ones
            again, out = seam.rest(seen["heads"]), seen["out"]
            again, out = (part[0] if isinstance(part, tuple) else part for part in (again, out))
            torch.testing.assert_close(again, out)


@twins
def test_gates_at_one_leave_every_bit_with_fused_attention_on(build):
    model, images = build(), None
    images, bare = images_for(model, 3), copy.deepcopy(model)
    gates = mhprobe.attach(model)
    fused = [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")]
    for net in (bare, model):
        nn.functional.cross_entropy(run(net, images), labels_for(3)).backward()
    assert torch.equal(run(bare, images), run(model, images))
    for (name, expected), got in zip(bare.named_parameters(), model.parameters(), strict=True):
        assert (expected.grad is got.grad is None) or torch.equal(expected.grad, got.grad), name
    mhprobe.record(model, images, needs={"attn"})
    assert [
        module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")
    ] == fused
    assert list(model.state_dict()) == list(bare.state_dict()) and gates.values.eq(1).all()


@twins
def test_masks_replay_and_the_pieces_are_the_forward(build):
    model = loud(build)
    gates, images = mhprobe.attach(model), images_for(model, 2)
    heads = gates.layout.num_heads
    masks = torch.cat([torch.eye(heads, dtype=torch.bool), torch.ones(1, heads, dtype=torch.bool)])
    expected = []
    with torch.no_grad():
        for mask in masks:
            with gates.masked(mask):
                expected.append(run(model, images))
    for side_by_side in (1, 3):  # products of another size add in another order
        found = Replay(model, masks)(images, side_by_side)
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert torch.stack(expected).std(0).median() > 1e-3
    first = (
        masks | masks[0]
    )  # off under all of them: where heads can be removed, a copy has not got it
    found = Replay(model, first, smaller=True)(images)
    torch.testing.assert_close(found, Replay(model, first)(images), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        if (segments := family_of(model).segments(model)) is not None:
            x = segments.stem(images)
            for block in segments.blocks:
                x = block(x)
            assert torch.equal(segments.tail(x), run(model, images))


@twins
def test_attention_times_values_is_what_the_heads_hand_on(build):
    """The recorded weights against a fused kernel's, or the module's own, products: z = A (x W_V + b_V)."""
    model = loud(build)
    family, layout, images = family_of(model), mhprobe.attach(model).layout, images_for(model, 2)
    rows = {}
    for site in layout.sites:
        model.get_submodule(site.name).register_forward_pre_hook(
            lambda _, args, named, name=site.name: rows.__setitem__(
                name, [*args, *named.values()][0].detach()
            ),
            with_kwargs=True,
        )
    plain = mhprobe.record(model, images, needs=()).z  # with fused attention, where there is any
    batch = mhprobe.record(model, images, needs={"attn"})
    for site, z, attn in zip(layout.sites, plain, batch.attn, strict=True):
        x = rows[site.name]
        if x.dim() == 4:  # attention that cuts its windows itself
            x = nn.functional.pad(x.flatten(1, 2), (0, 0, 0, 1))[:, site.places()].flatten(0, 1)
        x = x.unflatten(0, attn.shape[:2])
        value = torch.einsum("bwkc,hdc->bwkhd", x, family.head_weights(model, site).value)
        mixed = torch.einsum("bwhqk,bwkhd->bwqhd", attn, value).flatten(1, 2)
        if site.windows is not None:
            mixed = mixed[:, site.windows.rows()]
        rest = z - mixed
        # weights add up to one, so that the bias is left: the same for every token and image
        torch.testing.assert_close(rest, rest[:1, :1].expand_as(rest), rtol=1e-3, atol=1e-4)
        assert mixed.std(0).mean() > 10 * 1e-4  # more than the tolerance would hide
        assert attn.std() > 1e-3
        if site.line:
            continue
        real = site.places() >= 0
        outside = (
            ~site.support() & real[:, :, None] & real[:, None, :]
        )  # of other regions of a shifted window
        assert not outside.any() or attn.amax((0, 2))[outside].max() < 1e-6


# families with a yaml in conf/backbone: commands build and train them
BUILT = {name: build for name, build in TWINS.items() if yaml_of(family_of(build())) in NAMES}
built = pytest.mark.parametrize("build", BUILT.values(), ids=BUILT.keys())


@built
def test_every_parameter_is_in_one_group_and_the_classifier_is_the_last_step(build):
    model = build()
    family = family_of(model)
    for layer_decay in (None, 0.5):
        groups = family.parameter_groups(model, 0.1, layer_decay)
        found = [parameter for group in groups for parameter in group["params"]]
        assert sorted(map(id, found)) == sorted(id(parameter) for parameter in model.parameters())
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    classifier = next(family.classifier(model).parameters())
    assert scales[id(classifier)] == 1 > scales[id(next(family.stem(model).parameters()))]
    assert len(classifier) == 5


@twins
def test_the_stem_gives_patches(build):
    model = build()
    site, seen = mhprobe.attach(model).layout.sites[0], []
    if site.line:
        return
    family_of(model).stem(model).register_forward_hook(lambda _, args, out: seen.append(out))
    model(images_for(model, 2))
    assert family_of(model).patches(seen[0]).flatten(1, -2).shape[:2] == (
        2,
        site.token_grid[0] * site.token_grid[1],
    )


@twins
def test_removing_heads_is_masking_them_or_is_refused_with_the_reason(build):
    model = loud(build)
    family, images, gates = family_of(model), images_for(model, 2), mhprobe.attach(model)
    mask = gates.layout.mask([0, gates.layout.num_heads - 1])
    if (reason := family.unprunable(model)) is not None:
        with pytest.raises(mhprobe.UserError, match=family.title.split()[0]):
            mhprobe.prune_heads(model, mask)
        assert reason.endswith(".")
        return
    with torch.no_grad(), gates.masked(mask):
        expected = run(model, images)
    pruned = mhprobe.prune_heads(model, mask)
    # products of other sizes add in another order
    torch.testing.assert_close(pruned(images), expected, rtol=1e-4, atol=1e-5)
    assert layout_of(pruned).num_heads == gates.layout.num_heads - 2
    emptied = gates.layout.mask(list(range(gates.layout.num_heads))[gates.layout.span(0)])
    with torch.no_grad(), gates.masked(emptied):
        torch.testing.assert_close(
            mhprobe.prune_heads(model, emptied)(images), run(model, images), rtol=1e-4, atol=1e-5
        )


def test_a_model_whose_heads_share_keys_is_probed_and_not_pruned():
    model = loud(tiny_grouped)
    images, gates = images_for(model, 2), mhprobe.attach(model)
    plain = model(images)
    with gates.masked(gates.layout.mask([1])):
        assert not torch.allclose(model(images), plain)
    with pytest.raises(
        mhprobe.UserError, match=r"share keys and values.*can still be gated"
    ) as error:
        mhprobe.prune_heads(model, [1])
    assert "\n" not in str(error.value)
    batch = mhprobe.record(model, images, needs={"attn", "weights"})
    assert all(
        len(weights.value) == site.num_heads
        for weights, site in zip(batch.weights, gates.layout.sites, strict=True)
    )


def test_heads_that_share_keys_and_values_are_said_to_have_those_that_they_use():
    """Four heads, two of keys and of values: which head uses which is seen by changing one of them."""
    model = loud(tiny_grouped)
    images, (site, *_) = images_for(model, 2), mhprobe.attach(model).layout.sites
    weights, attention = family_of(model).head_weights(model, site), model.get_submodule(site.name)
    before = mhprobe.record(model, images, needs={"attn"})
    for half in range(2):
        rows = slice(half * site.head_dim, (half + 1) * site.head_dim)
        for name, layer in (("key", attention.k_proj), ("value", attention.v_proj)):
            shared = layer.weight[rows].detach().clone()
            with torch.no_grad():
                layer.weight[rows] *= 2
            after = mhprobe.record(model, images, needs={"attn"})
            with torch.no_grad():
                layer.weight[rows] = shared
            seen = [
                (a.attn[0].transpose(0, 2) if name == "key" else a.z[0].transpose(0, 2))
                for a in (before, after)
            ]
            users = [head for head in range(4) if not torch.equal(seen[0][head], seen[1][head])]
            assert users == [
                head for head in range(4) if torch.equal(getattr(weights, name)[head], shared)
            ]
            assert len(users) == 2, (name, half)


def test_every_backbone_yaml_belongs_to_a_family_and_has_a_tiny_twin():
    ours = {family for family in families() if family.__module__.startswith("mhprobe.")}
    ours -= {family for family in ours if isinstance(family, Located)}  # theirs: test_located.py
    assert NAMES and {yaml_of(family) for family in ours} >= NAMES
    assert ours <= {family_of(build()) for build in TWINS.values()}
    for path in CONF.glob("*.yaml"):
        name = OmegaConf.load(path).name
        assert timm.is_model(name) or any(family.builds(name) for family in families())
