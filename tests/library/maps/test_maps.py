from __future__ import annotations

import copy
import math

import hydra
import pytest
import torch
from torch import nn

import mhprobe
import mhprobe.maps
from located import LOCATED
from mhprobe.errors import UserError
from mhprobe.framework.run.members import members
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.maps.attention import Attention
from mhprobe.maps.attention_patch import AttentionPatch
from mhprobe.maps.gradient_rollout import GradientRollout
from mhprobe.maps.head_rollout import HeadRollout
from mhprobe.maps.relevance_map import RelevanceMap
from mhprobe.maps.rollout import Rollout, carried, chain, drop_lowest, product, transition
from models import images_for, make_loud, tiny_registers, tiny_swin, tiny_vit
from oracles import maps as oracle
from oracles.lrp_relevance import Books

EXACT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(
    scope="module", params=[tiny_vit, tiny_registers, tiny_swin], ids=lambda build: build.__name__
)
def prepared(request):
    bare = request.param().double()
    torch.manual_seed(3)
    for parameter in bare.parameters():
        nn.init.normal_(parameter, std=0.4)
    gated = copy.deepcopy(bare)
    mhprobe.attach(gated)
    return bare, gated, images_for(bare, 2, dtype=torch.float64)


def fused(heads, fusion):
    return {"mean": heads.mean(0), "max": heads.amax(0), "min": heads.amin(0)}[fusion]


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_rollout_is_the_product_of_whole_matrices(prepared, fusion):
    bare, gated, images = prepared
    got = Rollout(fusion)(gated, images)["rollout"]
    for n, image in enumerate(images):
        attn, _ = oracle.weights(bare, image)
        expected = oracle.read(bare, oracle.rollout(bare, [fused(a, fusion) for a in attn]))
        torch.testing.assert_close(got[n].flatten(), expected, **EXACT)
    assert not torch.allclose(got[0], got[1])


KINDS = {
    "attention": Attention,
    "patch": AttentionPatch,
    "rollout": Rollout,
    "gradient": GradientRollout,
}
KINDS |= {"head": HeadRollout, "relevance": RelevanceMap}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_plain_model_is_given_gates_and_gates_that_are_there_stay_as_they_are(kind, prepared):
    bare, gated, images = prepared
    plain = copy.deepcopy(bare)
    expected = kind()(gated, images)
    assert all(torch.equal(kind()(plain, images)[name], expected[name]) for name in expected)
    learned = copy.deepcopy(bare)
    gates = mhprobe.attach(learned, learnable=True)
    kind()(learned, images)
    assert gates.values.requires_grad


@pytest.mark.parametrize("fusion", ["mean", "max"])
def test_gradient_rollout_is_the_product_of_whole_matrices(prepared, fusion):
    bare, gated, images = prepared
    got = GradientRollout(fusion)(gated, images)["gradient rollout"]
    for n, image in enumerate(images):
        attn, slopes = oracle.weights(bare, image)
        positive = [fused((a * s).clamp(min=0), fusion) for a, s in zip(attn, slopes, strict=True)]
        expected = oracle.read(bare, oracle.rollout(bare, positive))
        torch.testing.assert_close(got[n].flatten(), expected, **EXACT)


@pytest.mark.parametrize("kind", [Rollout, GradientRollout, HeadRollout])
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_closed_heads_are_left_out_as_removed_ones_are(kind, fusion):
    model = tiny_vit(depth=3)
    make_loud(model, 0.2)
    gates, images = mhprobe.attach(model), images_for(model, 2)
    options = {"block": 2} if kind is HeadRollout else {}
    plain = kind(fusion=fusion, **options)(model, images)
    gates.close(gates.layout.mask([0, 3, 4, 5]))  # a head, and a whole block
    removed = mhprobe.prune_heads(model, gates.layout.mask([0, 3, 4, 5]))
    expected = kind(fusion=fusion, **options)(removed, images)
    for name, got in kind(fusion=fusion, **options)(model, images).items():
        torch.testing.assert_close(got, expected[name], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(got, plain[name], rtol=1e-3)


def site(tokens=(3, 3), prefix=1, block=0) -> HeadSite:
    return HeadSite(
        "a.attn", 0, block, 2, 4, prefix_tokens=prefix, grid=tokens, class_token=prefix > 0
    )


def test_rollout_of_identity_is_identity_and_of_uniform_attention_is_uniform():
    layout = HeadLayout((site(), site(block=1), site(block=2)))
    eye = torch.eye(10, dtype=torch.float64).expand(1, 1, 10, 10)
    even = torch.full((1, 1, 10, 10), 0.1, dtype=torch.float64)
    rows = [transition(eye, s) for s in layout.sites]
    torch.testing.assert_close(chain(layout, rows), eye[0], **EXACT)
    rows = [transition(even, s) for s in layout.sites]
    # three blocks of half attention, half residual: 1/8 has never left its token
    torch.testing.assert_close(chain(layout, rows), 0.125 * eye[0] + 0.875 * even[0], **EXACT)


def test_uniform_attention_stays_uniform_through_windows_and_merging():
    model = tiny_swin()
    layout = mhprobe.attach(model).layout
    rows = []
    for s in layout.sites:
        support = s.support().double()
        rows.append(transition((support / support.sum(-1, keepdim=True).clamp(min=1))[None], s))
    chained = chain(layout, rows)
    assert chained.shape == (1, 25, 81)
    torch.testing.assert_close(
        chained.sum(-1), torch.ones(1, 25, dtype=torch.float64), **EXACT
    )  # nothing gets lost


def test_merging_averages_the_children_that_there_are():
    before, after = (
        HeadSite("a", stage, stage, 1, 1, grid=grid) for stage, grid in enumerate([(3, 3), (2, 2)])
    )
    merged = carried(torch.eye(9, dtype=torch.float64)[None], before, after)[0]
    torch.testing.assert_close(merged, oracle.merging((3, 3)), **EXACT)
    assert merged[0].count_nonzero() == 4 and merged[3].count_nonzero() == 1


@pytest.mark.parametrize("name", ["pit", "crossvit", "convit", "tnt"])
@pytest.mark.parametrize("kind", [Rollout, HeadRollout, GradientRollout])
def test_attention_among_other_tokens_is_not_chained(name, kind):
    """Pooled beside a class token, of two branches, of a class token that comes late, of pixels inside patches."""
    model = LOCATED[name]()
    with pytest.raises(UserError, match="cannot be chained"):
        kind()(model, images_for(model, 1))


def test_discarding_is_per_image_and_never_the_class_token_on_itself():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 1, 10, 10, generator=generator, dtype=torch.float64) + 0.1
    maps[:, 0, 0, 0] = 0.01  # the lowest of all
    got = drop_lowest(maps, site(), 0.3)
    for n in (0, 1):
        assert got[n, 0, 0, 0] == 0.01
        zeros = got[n] == 0
        assert zeros.sum() == 29  # the class token's was one of the 30 lowest, and stays
        others = maps[n].flatten()[1:].sort().values
        assert maps[n][zeros].max() == others[28]
    assert not torch.equal(got[0] == 0, got[1] == 0)
    plain = drop_lowest(maps, site(prefix=0, tokens=(5, 2)), 0.3)
    assert (plain[:, 0, 0, 0] == 0).all()


@pytest.mark.parametrize("own", [0.01, 5.0])
def test_discarding_is_that_of_vit_explain(own):
    """Its lines, for one image: among the k lowest the class token's own weight is passed over, not replaced."""
    fused = (
        torch.rand(1, 1, 10, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        + 0.1
    )
    fused[:, :, 0, 0] = own
    flat = fused[0].reshape(1, -1).clone()
    _, indices = flat.topk(int(flat.size(-1) * 0.37), -1, False)
    indices = indices[indices != 0]
    flat[0, indices] = 0
    assert torch.equal(drop_lowest(fused, site(), 0.37).flatten(), flat.flatten())
    assert (flat == 0).sum() == (36 if own < 0.1 else 37)


def test_maps_of_a_pooled_model_do_not_move_with_a_query_that_is_not_read():
    """The class token's query of the last block: no logit hangs on it where the grid is pooled."""
    model = tiny_vit(global_pool="avg").double()
    torch.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    mhprobe.attach(model)
    images = images_for(model, 2, dtype=torch.float64)
    kinds = (Attention(), Rollout(), GradientRollout(), HeadRollout())
    before, logits = [kind(model, images) for kind in kinds], model(images)

    def disturb(_module, args):  # the class token's row only
        attn = args[0].clone()
        attn[:, :, 0] = attn[:, :, 0].roll(1, -1)
        return (attn,)

    model.blocks[-1].attn.fused_attn = False
    model.blocks[-1].attn.attn_drop.register_forward_pre_hook(disturb)
    torch.testing.assert_close(model(images), logits, **EXACT)
    for kind, maps in zip(kinds, before, strict=True):
        for name, values in kind(model, images).items():
            torch.testing.assert_close(values, maps[name], **EXACT)


def test_discarding_counts_only_pairs_that_may_attend(prepared):
    _, gated, images = prepared
    layout = mhprobe.attach(gated).layout
    attn = mhprobe.record(gated, images, needs={"attn"}).attn
    last = layout.sites[-1]
    got = drop_lowest(attn[-1].mean(2), last, 0.25)
    support = last.support()
    dropped = ((got == 0) & (attn[-1].mean(2) > 0))[:, support].sum(1)
    # the class token's own weight may be among them, and stays
    assert (int(0.25 * support.sum()) - dropped <= int(last.class_token)).all()


def test_rollouts_of_heads_average_to_the_rollout():
    gated = tiny_vit().double()
    torch.manual_seed(3)
    for parameter in gated.parameters():
        nn.init.normal_(parameter, std=0.4)
    mhprobe.attach(gated)
    images = images_for(gated, 2, dtype=torch.float64)
    whole = Rollout()(gated, images)["rollout"]
    for block in (0, 1):
        heads = torch.stack(list(HeadRollout(block)(gated, images).values()))
        torch.testing.assert_close(heads.mean(0), whole, **EXACT)
        assert not torch.allclose(heads[0], heads[1])


def test_rollout_of_a_head_keeps_the_other_blocks_fused(prepared):
    bare, gated, images = prepared
    layout = mhprobe.attach(gated).layout
    for block in (0, -1):
        got = HeadRollout(block)(gated, images)
        number = block % len(layout.sites)
        for n, image in enumerate(images):
            attn, _ = oracle.weights(bare, image)
            for head, name in enumerate(got):
                assert name == f"block {number} head {head}"
                matrices = [a[head] if i == number else a.mean(0) for i, a in enumerate(attn)]
                expected = oracle.read(bare, oracle.rollout(bare, matrices))
                torch.testing.assert_close(got[name][n].flatten(), expected, **EXACT)


@pytest.mark.parametrize("block", [0, 1])
def test_written_weights_queries_by_what_the_head_writes(prepared, block):
    bare, gated, images = prepared
    if not bare.__class__.__name__.startswith("Vision"):
        pytest.skip("written out for one window")
    last = bare.blocks[block]
    inputs = {}
    handle = last.attn.proj.register_forward_pre_hook(
        lambda _, args: inputs.update(z=args[0].detach())
    )
    bare(images)
    handle.remove()
    heads = last.attn.num_heads
    scale = last.ls1.gamma if hasattr(last.ls1, "gamma") else 1.0
    rows = last.attn.proj.weight.T.unflatten(0, (heads, -1)) * scale
    norms = torch.stack(
        [
            (z @ w).norm(dim=-1)
            for z, w in zip(inputs["z"].unflatten(-1, (heads, -1)).unbind(2), rows, strict=True)
        ],
        2,
    )
    norms = norms / norms.mean((1, 2), keepdim=True)
    got, plain = (
        HeadRollout(block, weight=weight)(gated, images) for weight in ("written", "none")
    )
    for n, image in enumerate(images):
        attn, _ = oracle.weights(bare, image)
        for head, values in enumerate(got.values()):
            eye = torch.eye(attn[0].shape[-1]).double()
            steps = [0.5 * a.mean(0) + 0.5 * eye for a in attn]
            steps[block] = norms[n, :, head, None] * (0.5 * attn[block][head] + 0.5 * eye)
            expected = oracle.read(bare, steps[1] @ steps[0])
            torch.testing.assert_close(values[n].flatten(), expected, **EXACT)
    # only in the last block, read at one row, is it the same map times a number
    ratios = [got[name] / plain[name] for name in got]
    one_number = all((ratio - ratio[:, :1, :1]).abs().max() < 1e-9 for ratio in ratios)
    assert one_number == (block == 1 and bare.global_pool == "token")


def test_attention_of_a_head_is_its_class_token_s_row_or_its_mean_over_queries(prepared):
    bare, gated, images = prepared
    layout = mhprobe.attach(gated).layout
    got = Attention(blocks=(0, -1))(gated, images)
    assert len(got) == layout.sites[0].num_heads + layout.sites[-1].num_heads
    for n, image in enumerate(images):
        attn, _ = oracle.weights(bare, image)
        for number in (0, len(attn) - 1):
            for head in range(attn[number].shape[0]):
                values = got[f"block {number} head {head}"][n]
                torch.testing.assert_close(
                    values.flatten(), oracle.read(bare, attn[number][head]), **EXACT
                )


def test_relevance_is_that_of_the_patch_embeddings(prepared):
    bare, gated, images = prepared
    got = RelevanceMap(epsilon=1e-15)(gated, images)["relevance"]
    for n, image in enumerate(images):
        torch.testing.assert_close(
            got[n].flatten(), Books(bare, image, 0.25).patches.flatten(), rtol=1e-7, atol=1e-9
        )


def test_a_model_without_attention_weights_is_named(prepared):
    _, gated, images = prepared
    mute = copy.deepcopy(gated)
    name = mhprobe.attach(mute).layout.sites[1].name
    del mute.get_submodule(name).attn_drop  # the module that attention weights enter
    for kind in (Attention([1]), Rollout(), GradientRollout(), HeadRollout()):
        with pytest.raises(UserError, match=rf"{name} \(\w+\) has no attention weights"):
            kind(mute, images)


def test_wrong_options_are_refused_in_one_line(prepared):
    _, gated, images = prepared
    with pytest.raises(UserError, match="rollout: fusion is one of mean, max, min, got 'sum'"):
        Rollout("sum")
    with pytest.raises(UserError, match="discard is a share"):
        GradientRollout(discard=1.0)
    with pytest.raises(UserError, match="has blocks 0 to"):
        HeadRollout(99)(gated, images)
    with pytest.raises(UserError, match="weight is none or written"):
        HeadRollout(weight="norm")
    with pytest.raises(UserError, match="needs labels"):
        GradientRollout(target="label")(gated, images)
    misfits = [
        (RelevanceMap, "gamma", math.nan),
        (HeadRollout, "block", True),
        (Attention, "blocks", 1.5),
    ]
    for kind, option, value in misfits:
        with pytest.raises(UserError, match=rf"^\w+\.{option}: expected .*got {value}"):
            kind(**{option: value})


def test_the_attention_of_all_patches_adds_up_to_what_is_received(prepared):
    """Of a model that pools its grid: there `attention` is the mean over the patches that ask."""
    _, gated, images = prepared
    site = mhprobe.attach(gated).layout.sites[-1]
    height, width = site.token_grid
    each = [
        AttentionPatch(query=(row, column))(gated, images)
        for row in range(height)
        for column in range(width)
    ]
    center = AttentionPatch()(gated, images)
    for name, values in center.items():
        torch.testing.assert_close(values, each[height // 2 * width + width // 2][name])
        if not site.class_token:
            mean = sum(maps[name] for maps in each) / len(each)
            torch.testing.assert_close(mean, Attention()(gated, images)[name], **EXACT)
        elif not site.pooled:
            torch.testing.assert_close(
                AttentionPatch(query="class")(gated, images)[name],
                Attention()(gated, images)[name],
                **EXACT,
            )
    assert any(
        (each[0][name] - values).abs().max() > 1e-6 for name, values in center.items()
    )  # queries differ


def test_a_query_that_is_not_there_is_refused(prepared):
    _, gated, images = prepared
    with pytest.raises(
        UserError, match=r"attention_patch\.query: expected mean.* in a grid of \d+ x \d+"
    ):
        AttentionPatch(query=(99, 0))(gated, images)
    site = mhprobe.attach(gated).layout.sites[-1]
    if not site.class_token:
        with pytest.raises(UserError, match=r"expected mean(, register, registers)? or"):
            AttentionPatch(query="class")(gated, images)
    if site.prefix_tokens > site.class_token:
        first, every = (
            AttentionPatch(query=name)(gated, images) for name in ("register", "registers")
        )
        assert first.keys() == every.keys()
        if site.prefix_tokens - site.class_token == 1:
            assert all(torch.equal(first[name], every[name]) for name in first)


def test_heads_are_named_by_block_and_head_in_the_order_asked_for(prepared):
    _, gated, images = prepared
    layout = mhprobe.attach(gated).layout
    first, last = layout.sites[0], layout.sites[-1]
    if sum(site.block == last.block for site in layout.sites) > 1:
        last_name, calls = f"{last.name}/1", f"{last.name} head 1"
    else:
        last_name, calls = f"{last.block}/1", f"block {last.block} head 1"
    for kind in (Attention, AttentionPatch):
        asked = kind(heads=[last_name, f"{first.name}/0"])
        maps = asked(gated, images)
        everything = kind(blocks=range(1 + last.block))(gated, images)
        assert (
            next(iter(maps)) == calls and len(maps) == 2 and not asked.per_head and kind().per_head
        )
        for name, values in maps.items():
            torch.testing.assert_close(values, everything[name], **EXACT)
    for wrong in ("99/0", f"{last.name}/99", "0", f"{last.name}/-1", f"{last.name}/x"):
        with pytest.raises(UserError, match=r"attention: heads: expected <block>/<head> .* got"):
            Attention(heads=[wrong])(gated, images)


@pytest.mark.parametrize("name", members("maps"))
def test_every_kind_gives_one_finite_map_per_image_and_name(prepared, name):
    _, gated, images = prepared
    kind = hydra.utils.instantiate(members("maps")[name], _convert_="all")
    assert type(kind).__module__ == f"mhprobe.maps.{name}"
    maps = kind(gated, images)
    assert (len(maps) > 1) == kind.per_head
    for values in maps.values():
        assert (
            values.ndim == 3
            and len(values) == len(images)
            and values.isfinite().all()
            and values.std() > 0
        )
        assert not values.requires_grad


def test_kinds_are_found_by_the_names_of_their_files():
    assert mhprobe.maps.rollout.Rollout is Rollout
    with pytest.raises(AttributeError, match="no map kind 'nothing'"):
        _ = mhprobe.maps.nothing


def test_rollout_says_what_its_product_needs_and_refuses_what_does_not_fit(monkeypatch):
    model = tiny_vit()
    layout, images = mhprobe.attach(model).layout.of("head"), images_for(model, 1)
    tokens = layout.sites[0].prefix_tokens + math.prod(layout.sites[0].token_grid)
    by_rows, whole = Rollout(), Rollout(discard=0.5)
    assert product(layout) == 4 * (len(layout.sites) + 2) * tokens**2
    assert whole.held(layout) > product(layout) and Attention().held(layout) == 0
    assert by_rows.held(layout) > 0
    monkeypatch.setattr("mhprobe.maps.rollout.free_memory", lambda: product(layout) - 1)
    by_rows(model, images)  # a row at a time needs no product
    for kind in (whole, HeadRollout()):
        with pytest.raises(UserError, match=r"tokens x tokens takes .* img_size=\d+ would fit"):
            kind(model, images)
