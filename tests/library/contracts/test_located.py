"""timm's families whose attention is found by class keep the promises of test_backbones.py, on a few heads each.

What such a family does not show, it says: no residual stream, no relevance, no removal, and some no
attention weights.
"""

from __future__ import annotations

import copy
import functools

import pytest
import timm
import torch
from torch import nn

import mhprobe
from located import LOCATED, multi_query
from mhprobe.backbones import build, channels_of, families, family_of, input_spec, layout_of
from mhprobe.backbones.located import FACTORISED
from mhprobe.backbones.parts.located import CHANNELS, Located, grid_of
from mhprobe.errors import UserError
from mhprobe.heads import Patching
from mhprobe.measures.activation_patching import ActivationPatching
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.replay import Replay
from models import images_for, make_loud, needs_timm

# one of each form in every run: windows, channels first, between channels, coarser keys
QUICK = {"maxvit", "maxvit_first", "davit", "xcit", "pvt_v2", "sam"}
located = pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LOCATED],
)


@functools.cache
def pair(name: str) -> tuple[nn.Module, nn.Module]:
    """A model, and a copy with gates on it, to be copied: its heads are found by a trial run."""
    bare = LOCATED[name]()
    gated = copy.deepcopy(bare)
    mhprobe.attach(gated)
    return bare, gated


@functools.cache
def loud(name: str) -> nn.Module:
    """Gated, and with weights so that each head matters; tests of one model come one after the other."""
    model = copied(pair(name)[1])
    make_loud(model, 0.3)
    # many factors of 0.3 would leave nothing of the image; NextViT is wide enough to blow up
    # without them
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and name != "nextvit":
            nn.init.ones_(module.weight)
    return model


def copied(model):
    # timm puts biases of positions by, as results, which cannot be copied; this drops them
    model.train().eval()
    return copy.deepcopy(model)


def run(model, images):
    return logits_of(model(images))


def some_heads(model) -> list:
    """(flat, site number, head, site) of the last head of each kind of attention, and of the first head."""
    layout = mhprobe.attach(model).layout
    chosen = {}
    for flat, (number, head, site) in enumerate(layout):
        chosen[type(model.get_submodule(site.name)), site.windows is None] = (
            flat,
            number,
            head,
            site,
        )
    _, head, site = next(iter(layout))
    return [(0, 0, head, site), *chosen.values()]


def columns(head, site) -> slice:
    return slice(head * site.head_dim, (head + 1) * site.head_dim)


def spread(values) -> float:
    """How far the images are from the first, on average."""
    return float((values - values[:1]).abs().mean())


def no_bias(model, site) -> None:
    """Without weights of its own a head's output may still be its bias, which some attention mixes by the image."""
    written = family_of(model).seam(model, site).output
    for module in model.get_submodule(site.name).modules():
        bias = getattr(module, "bias", None)
        if module is not written and isinstance(bias, nn.Parameter):
            bias.detach().zero_()


@located
def test_gates_are_exact_and_own_their_heads(name):
    bare, gated = pair(name)
    images = images_for(bare, 2)
    with torch.no_grad():
        assert torch.equal(run(bare, images), run(gated, images))
    assert list(bare.state_dict()) == list(gated.state_dict())
    twin = copy.deepcopy(gated)  # prepared modules are copied and found again
    assert mhprobe.attach(twin).layout == mhprobe.attach(gated).layout == layout_of(bare)

    model = loud(name)
    family, gates, passed, handles = family_of(model), mhprobe.attach(model), {}, []
    heads = some_heads(model)
    for number, site in enumerate(gates.layout.sites):
        point = family.seam(model, site).point
        keep = lambda _, args, number=number: passed.__setitem__(number, args[0])  # noqa: E731
        handles.append(point.register_forward_pre_hook(keep))
    gates.values.requires_grad_(True)
    plain = run(model, images)
    for handle in handles:
        handle.remove()
    noise = torch.Generator().manual_seed(0)
    for _, number, head, site in heads:
        mine = passed[number][..., columns(head, site)]
        (slope,) = torch.autograd.grad(
            (mine * torch.randn(mine.shape, generator=noise)).sum(), gates.values, retain_graph=True
        )
        inside = slope[gates.layout.span(number)]
        assert inside.nonzero().flatten().tolist() == [head], (site.name, head)
    gates.values.requires_grad_(False)
    for flat, _, head, site in heads:
        cut = copied(model)
        with torch.no_grad():
            family.seam(cut, site).output.weight[:, columns(head, site)] = 0
            with gates.masked(gates.layout.mask([flat])):
                torch.testing.assert_close(
                    run(model, images), run(cut, images), rtol=1e-4, atol=1e-4
                )
        assert not torch.allclose(run(cut, images), plain, atol=1e-5), (site.name, head)


@located
def test_a_head_speaks_through_its_own_weights_and_no_other_hears(name):
    model = loud(name)
    images = images_for(model, 2)
    family = family_of(model)
    for _, number, head, site in some_heads(model):
        silent = family.seam(model, site).weights is None
        cut = copied(model)
        before_model = copied(model) if silent else model
        if silent:
            # attention between channels, pooled queries that are added: only without all three
            # there is nothing left
            for each in (before_model, cut):
                no_bias(each, site)
        attention = cut.get_submodule(site.name)
        query, key, value = family.kind(attention).parts(attention, site.num_heads)
        shares = site.num_heads > 1 and value.stride(0) == 0
        if shares:  # the values of all heads: its own is its query
            query[head].zero_()
        else:
            if silent:
                query[head].zero_(), key[head].zero_()
                if hasattr(
                    attention, "attn"
                ):  # outlook attention has one layer in the place of both
                    attention.attn.weight.detach().unflatten(0, (site.num_heads, -1))[head].zero_()
            value[head].zero_()
        before = mhprobe.record(before_model, images, needs=()).z[number]
        after = mhprobe.record(cut, images, needs=()).z[number]
        others = [other for other in range(site.num_heads) if other != head]
        assert torch.equal(after[:, :, others], before[:, :, others]), (site.name, head)
        if shares:
            assert not torch.allclose(after[:, :, head], before[:, :, head], rtol=1e-2)
            continue
        # what the bias leaves is the same for both images, up to rounding
        assert spread(after[:, :, head]) < 1e-2 * spread(before[:, :, head]), (site.name, head)


@pytest.mark.parametrize(
    "name, factors",
    [
        ("mobilenetv5", "layer_scale.gamma"),
        ("fastvit", "layer_scale_1.gamma"),
        ("edgenext", "gamma_xca"),
    ],
)
def test_a_head_writes_what_its_block_lets_through(name, factors):
    model = copied(loud(name))
    family, site = family_of(model), layout_of(model).sites[0]
    written = family.head_weights(model, site).output
    model.get_submodule(site.name.rpartition(".")[0]).get_parameter(factors).detach().mul_(2)
    assert torch.equal(family.head_weights(model, site).output, 2 * written)


@located
def test_weights_are_those_that_mix_the_values_or_the_reason_is_said(name):
    model = loud(name)
    family, layout, images, rows = (
        family_of(model),
        mhprobe.attach(model).layout,
        images_for(model, 2),
        {},
    )
    handles = [
        model.get_submodule(site.name).register_forward_pre_hook(
            lambda _, args, name=site.name: rows.__setitem__(name, args[0].detach())
        )
        for site in layout.sites
    ]
    z = mhprobe.record(model, images, needs=()).z  # with fused attention, where there is any
    for site, mixed in zip(layout.sites, z, strict=True):
        seam, seen = family.seam(model, site), []
        if seam.weights is None:
            with (
                pytest.raises(UserError, match="no attention weights to look at") as error,
                seam.watched(print),
            ):
                pass
            assert "\n" not in str(error.value)
            continue
        with torch.no_grad(), seam.watched(lambda _, args, seen=seen: seen.append(args[0])):
            run(model, images)
        (attn,) = seen
        attn = attn.unflatten(0, (2, -1))
        torch.testing.assert_close(attn.sum(-1), torch.ones(attn.shape[:-1]))
        x, value = rows[site.name], family.head_weights(model, site).value
        x = x if x.shape[-1] == value.shape[-1] else x.flatten(2).mT  # channels first
        x = x.reshape(2, attn.shape[1], -1, x.shape[-1])
        got = torch.einsum("bwhqk,bwkc,hdc->bwqhd", attn, x, value).flatten(1, 2)
        if site.windows is not None:
            got = got[:, site.windows.rows()]
        rest = mixed - got
        if not normed_values(model, site):
            # weights add up to one: the bias is left, the same for all tokens
            assert spread(rest.flatten(0, 1)) < 1e-2 * spread(got.flatten(0, 1)), site.name
        real = site.places() >= 0
        outside = ~site.support() & real[:, :, None] & real[:, None, :]
        assert not outside.any() or attn.amax((0, 2))[outside].max() < 1e-6
    for handle in handles:
        handle.remove()


@located
def test_what_a_head_gives_is_linear_in_what_is_called_its_values(name):
    """Attention between channels hangs on queries and keys by a softmax or a norm: twice those is not twice the output.

    Where weights are seen, the test above holds their product with the values.
    """
    model = loud(name)
    family, images = family_of(model), images_for(model, 2)
    for _, number, head, site in some_heads(model):
        kind = family.kind(model.get_submodule(site.name))
        if kind.hidden not in (CHANNELS, FACTORISED):
            continue
        plain = copied(model)
        no_bias(plain, site)
        attention = plain.get_submodule(site.name)
        once = mhprobe.record(plain, images, needs=()).z[number][:, :, head]
        query, _, value = kind.parts(attention, site.num_heads)
        value[head] *= 2
        twice = mhprobe.record(plain, images, needs=()).z[number][:, :, head]
        torch.testing.assert_close(twice, 2 * once, rtol=1e-4, atol=1e-4 * float(once.abs().max()))
        value[head] /= 2
        query[head] *= 2
        other = mhprobe.record(plain, images, needs=()).z[number][:, :, head]
        assert kind.hidden == FACTORISED or not torch.allclose(other, 2 * once, rtol=1e-2), (
            site.name
        )


def normed_values(model, site) -> bool:
    return hasattr(model.get_submodule(site.name), "v_norm")


@located
def test_masks_replay_and_measures_run(name):
    model = loud(name)
    gates, images = mhprobe.attach(model), images_for(model, 2)
    masks = torch.stack([gates.layout.mask([flat]) for flat, *_ in some_heads(model)])
    expected = []
    with torch.no_grad():
        for mask in masks:
            with gates.masked(mask):
                expected.append(run(model, images))
    torch.testing.assert_close(
        Replay(model, masks)(images), torch.stack(expected), rtol=1e-4, atol=1e-4
    )
    batch = mhprobe.record(model, images, needs={"grad", "weights"}, of="norm")
    for site, z, slope, weights in zip(
        gates.layout.sites, batch.z, batch.grad, batch.weights, strict=True
    ):
        assert z.shape == slope.shape and z.shape[2:] == (site.num_heads, site.head_dim)
        assert z.shape[1] == site.prefix_tokens + site.token_grid[0] * site.token_grid[1]
        assert weights.output.shape[:2] == (site.num_heads, site.head_dim)


def with_slopes(name: str) -> nn.Module:
    """A copy of ``loud``, or NextViT as it is initialised: its loud logits are beyond 1e15, where no slope holds."""
    if name != "nextvit":
        return copied(loud(name))
    return copied(pair(name)[1])


@located
def test_attribution_is_patching_where_the_twin_hardly_differs(name):
    model = with_slopes(name).double()
    need = Patching("noise", metric="log_likelihood", estimates=("exact", "atp"), noise=1e-4)
    images = images_for(model, 2, dtype=torch.float64)
    effect = mhprobe.record(model, images, torch.tensor([0, 1]), needs={need}).patched[need].effect
    largest = float(effect["exact"].abs().max())
    assert largest > 0
    torch.testing.assert_close(effect["atp"], effect["exact"], rtol=0.05, atol=0.05 * largest)


@located
@pytest.mark.filterwarnings(
    "ignore::mhprobe.measures.activation_patching.NothingToRestore"
)  # two images
def test_where_blocks_are_not_known_graddrop_is_no_number(name):
    model, labels = with_slopes(name), torch.tensor([0, 1])
    measure = ActivationPatching(mhprobe.attach(model).layout, estimates=["atp", "graddrop"])
    measure.update(mhprobe.record(model, images_for(model, 2), labels, needs=measure.needs))
    assert measure.columns()["graddrop"].isnan().all() == (len(measure.layout.blocks) < 2)


@located
def test_what_is_not_there_is_refused_in_a_line(name):
    model = loud(name)
    family, images = family_of(model), images_for(model, 2)
    with pytest.raises(UserError, match="can still be gated"):
        mhprobe.prune_heads(model, [0])
    with pytest.raises(UserError, match="residual stream"):
        mhprobe.record(model, images, needs={"stream"})
    with pytest.raises(UserError, match="relevance"):
        family.stem(model)


def test_attention_that_runs_twice_is_refused_for_that_and_not_for_the_size_of_the_images():
    model = LOCATED["naflexvit"]()
    model.blocks[1].attn = model.blocks[0].attn
    with pytest.raises(
        UserError, match=r"^blocks\.0\.attn runs more than once per image, .* several heads\.$"
    ):
        mhprobe.attach(model)


@pytest.mark.slow
def test_every_such_family_has_a_twin_or_is_one_that_has_under_another_models_name():
    ours = {family for family in families() if isinstance(family, Located) and family.kinds}
    twins = {family_of(LOCATED[name]()) for name in LOCATED}
    assert twins <= ours
    for kind in map(type, ours - twins):
        own = {name for name in vars(kind) if not name.startswith("_")}
        assert own == {"title", "model"} and kind.__base__ in map(type, twins), kind


def test_an_encoder_that_gives_a_map_is_recorded_inside_a_module_that_pools_it():
    encoder = multi_query("mobilenetv5.MobileNetV5Encoder", msfa_output_resolution=4).eval()
    whole = nn.Sequential(encoder, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layout, images = mhprobe.attach(whole).layout, torch.randn(2, 3, 32, 32)
    batch = mhprobe.record(whole, images, needs=set())
    assert [z.shape[2:] for z in batch.z] == [
        (site.num_heads, site.head_dim) for site in layout.sites
    ]
    assert torch.equal(batch.logits, whole(images))
    with pytest.raises(UserError, match=r"\(2, 2048, 4, 4\).*Wrap it"):
        mhprobe.record(encoder, images, needs=set())


@pytest.mark.parametrize(
    ("entered", "prefix", "image", "first", "grid"),
    [
        ((1, 17, 8), 1, (32, 32), False, (4, 4)),
        ((1, 18, 8), 0, (32, 64), False, (3, 6)),
        ((1, 3, 6, 8), 0, (32, 64), False, (3, 6)),
        ((1, 8, 3, 6), 0, (32, 64), True, (3, 6)),
        ((1, 17, 8), 0, (32, 32), False, None),
    ],
)
def test_grids_are_read_off_shapes(entered, prefix, image, first, grid):
    assert grid_of(entered, prefix, image, first) == grid


def test_attention_that_nobody_has_looked_at_is_named():
    model = LOCATED["pit"]()

    class OtherAttention(nn.Identity):
        num_heads = 2

    model.transformers[0].blocks[0].mlp.act = OtherAttention()
    with pytest.raises(
        UserError, match=r"mlp\.act is a OtherAttention: mhprobe does not know where its heads are"
    ):
        layout_of(model)


def test_a_head_between_tokens_is_looked_at_though_others_of_its_network_are_between_channels():
    model, seen = loud("davit_channels_v2"), []
    site = mhprobe.attach(model).layout.sites[0]
    images = images_for(model, 2)
    model.get_submodule(site.name).fused_attn = False  # so that its softmax is called
    with model.get_submodule(f"{site.name}.softmax.0").register_forward_hook(
        lambda *args: seen.append(args[2])
    ):
        model(images)
    # of windows side by side, 2 x 2 of 4 x 4 tokens; every patch is a query
    windows = seen[0].unflatten(0, (2, 2, 2)).mean(-2).unflatten(-1, (4, 4)) / 4
    expected = windows.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    torch.testing.assert_close(mhprobe.attention(model, images, head=[(0, 0), (0, 1)]), expected)
    between_channels = mhprobe.attach(model).layout.offsets[1]
    with pytest.raises(UserError, match="no attention weights to look at"):
        mhprobe.attention(model, images, head=between_channels)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("convformer_s18", "no attention modules"),
        ("cait_xxs24_224", "its heads talk"),
        ("efficientvit_m0", "its heads are a cascade"),
    ],
)
def test_models_without_heads_of_their_own_are_refused(path, reason):
    import timm

    with torch.device("meta"):
        model = timm.create_model(path)
    with pytest.raises(UserError, match=reason):
        layout_of(model)


@pytest.mark.parametrize(
    ("name", "size", "grid"),
    [
        ("coatnet_nano_rw_224", 64, 4),  # its first attention is in the third stage
        ("maxvit_rmlp_pico_rw_256", 64, 16),
        ("crossvit_tiny_240", 120, 10),  # timm's own patches fit few sizes
        ("coat_lite_tiny", 64, 16),
        ("tnt_s_legacy_patch16_224", 64, 16),
        ("visformer_tiny", 64, 4),
        ("twins_svt_small", 64, 16),
    ],
)
def test_a_model_is_tried_at_the_size_that_it_was_built_for(name, size, grid):
    import timm

    if name.startswith(("coatnet", "maxvit")):
        needs_timm("1.0.31", "a MaxxVit that knows the size it was built for")
    with torch.device("meta"):
        model = timm.create_model(name, img_size=size)
    layout = layout_of(model)
    assert input_spec(model)["size"] == (size, size)
    assert layout.sites[0].grid == (grid, grid) and layout.sites[0].pixels == (
        size / grid,
        size / grid,
    )


def test_a_model_that_keeps_no_note_of_its_size_is_told_by_who_built_it_or_asked_for():
    import timm

    with torch.device("meta"):
        model = timm.create_model("levit_128s", img_size=64)
        with pytest.raises(
            UserError, match=r"trial run on images of 224 x 224 fails .*pretrained_cfg"
        ) as error:
            layout_of(model)
        assert "\n" not in str(error.value)
        model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 64, 64)}
        assert layout_of(model).sites[0].grid == (4, 4)
        built = build("levit_128s", img_size=64)
    assert input_spec(built)["size"] == (64, 64) and layout_of(built) == layout_of(model)


def test_a_grid_of_far_tokens_is_cut_as_maxvit_cuts_it():
    from timm.models.maxxvit import grid_partition

    from mhprobe.heads import Windows

    raster = torch.arange(4 * 6).view(1, 4, 6, 1)
    cut = grid_partition(raster, [2, 3]).flatten(1)
    windows = Windows(grid=(4, 6), size=(2, 3), shift=(0, 0), strided=True)
    assert torch.equal(windows.places(), cut)
    assert torch.equal(cut.flatten()[windows.rows()], torch.arange(24))


@functools.cache
def counted_in_colours(name: str):
    return mhprobe.attach(timm.create_model(name, num_classes=5).eval()).layout.counted


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
@pytest.mark.parametrize("name", ["xcit_nano_12_p16_224", "levit_128"])
def test_networks_of_other_channel_counts_are_tried_with_their_own(name, channels):
    model = timm.create_model(name, in_chans=channels, num_classes=5).eval()
    gates = mhprobe.attach(model)
    assert gates.layout.counted == counted_in_colours(name) and channels_of(model) == channels
    images = torch.randn(1, channels, 224, 224)
    with torch.no_grad():
        whole = model(images)
        with gates.masked([*range(gates.layout.num_heads)]):
            assert not torch.equal(model(images), whole)
