from __future__ import annotations

import copy
import functools
import math

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.fisher import Fisher
from mhprobe.measures.gate_importance import GateImportance
from oracles import gate_importance as oracle
from oracles import intervals

RAGGED = HeadLayout((HeadSite("a", 0, 0, 2, 3), HeadSite("b", 1, 1, 4, 3)))


def tiny_vit() -> nn.Module:
    import timm

    options = {
        "patch_size": 8,
        "embed_dim": 32,
        "num_heads": 4,
        "depth": 2,
        "num_classes": 5,
        "img_size": 16,
    }
    return timm.create_model("vit_tiny_patch16_224", **options)


def tiny_swin() -> nn.Module:
    import timm

    # a 9 x 9 grid and windows of 4: padded, and shifted in the second block
    options = {
        "patch_size": 4,
        "window_size": 4,
        "embed_dim": 16,
        "num_heads": (2, 4),
        "depths": (2, 1),
    }
    return timm.create_model("swin_tiny_patch4_window7_224", img_size=36, num_classes=5, **options)


@pytest.fixture(scope="module", params=[tiny_vit, tiny_swin])
def recorded(request):
    """A bare float64 model, its sites, images, labels, and what a gated copy recorded on them."""
    torch.manual_seed(0)
    bare = request.param().double().eval()
    for parameter in bare.parameters():
        nn.init.normal_(parameter, std=0.3)
    gated = copy.deepcopy(bare)
    layout = mhprobe.attach(gated).layout
    size = bare.patch_embed.img_size
    images, labels = torch.randn(7, 3, *size, dtype=torch.float64), torch.arange(7) % 5
    sites = [(name, m.num_heads) for name, m in bare.named_modules() if name.endswith(".attn")]
    return bare, sites, images, labels, layout, mhprobe.record(gated, images, labels)


def columns(layout, *batches, **options):
    measure = GateImportance(layout, **options)
    for batch in batches:
        measure.update(batch)
    return measure.columns()


def fake(layout=RAGGED, images=6, seed=0) -> HeadBatch:
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return tuple(
            torch.randn(
                images, 5, s.num_heads, s.head_dim, generator=generator, dtype=torch.float64
            )
            for s in layout.sites
        )

    return HeadBatch(
        z=draw(),
        grad=draw(),
        logits=torch.zeros(images, 2),
        valid=torch.ones(images, dtype=torch.bool),
    )


def test_columns_follow_from_the_slopes_of_one_image_at_a_time(recorded):
    *arguments, layout, batch = recorded
    bare, sites, images, labels = arguments
    slopes = oracle.slopes(bare, images, labels, sites)
    got = columns(layout, batch)
    mean = slopes.abs().mean(0)
    exact = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(got["value"], mean, **exact)
    torch.testing.assert_close(got["signed"], slopes.mean(0), **exact)
    for head in range(len(mean)):
        expected = intervals.of_skewed(slopes[:, head].abs().tolist(), (0.0, math.inf))
        assert (float(got["low"][head]), float(got["high"][head])) == pytest.approx(
            expected, rel=1e-4
        )
    assert int(got["images"]) == len(images)
    # images disagree about the sign: taking it away per image or not is a difference
    assert (got["value"] > 1.05 * got["signed"].abs()).any()


def test_slope_of_a_gate_is_that_of_its_columns_of_the_projection(recorded):
    """dL/dxi_h = sum(W_O[:, h] * dL/dW_O[:, h])."""
    bare, sites, images, labels, layout, batch = recorded
    weights = [bare.get_submodule(name).proj.weight for name, _ in sites]
    loss = nn.functional.cross_entropy(bare(images), labels)
    grads = torch.autograd.grad(loss, weights)
    expected = torch.cat(
        [
            (w * g).sum(0).unflatten(0, (heads, -1)).sum(1)
            for w, g, (_, heads) in zip(weights, grads, sites, strict=True)
        ]
    )
    torch.testing.assert_close(
        columns(layout, batch)["signed"], expected.detach(), rtol=1e-9, atol=1e-12
    )
    assert expected.abs().min() > 1e-6


def test_abs_per_token_matches_token_gates(recorded):
    bare, sites, images, labels, layout, batch = recorded
    expected = oracle.token_sizes(bare, images, labels, sites).mean(0)
    torch.testing.assert_close(
        columns(layout, batch, abs_at="token")["value"], expected, rtol=1e-9, atol=1e-12
    )


def test_the_earlier_the_abs_the_larger_the_score():
    batch, image, token = (
        columns(RAGGED, fake(), abs_at=at)["value"] for at in ("batch", "image", "token")
    )
    assert (batch < image).all()
    assert (image < token).all()


def test_abs_per_batch_is_that_of_the_summed_slope_and_depends_on_the_batches():
    one = columns(RAGGED, fake(), abs_at="batch")
    torch.testing.assert_close(one["value"], one["signed"].abs())
    assert one["low"].isnan().all()  # a single batch says nothing about its spread
    two = columns(RAGGED, fake(seed=0), fake(seed=1), abs_at="batch")
    parts = [columns(RAGGED, fake(seed=seed), abs_at="batch")["value"] for seed in (0, 1)]
    torch.testing.assert_close(two["value"], (parts[0] + parts[1]) / 2)
    error = torch.stack(parts).std(0) / 2**0.5
    torch.testing.assert_close(two["standard_error"], error)
    ends = intervals.of_skewed([float(part[0]) for part in parts], (0.0, math.inf))  # of two
    assert (float(two["low"][0]), float(two["high"][0])) == pytest.approx(ends, rel=1e-3)


def test_layer_norms_divide_layers_by_their_length_with_and_without_the_number_of_heads():
    plain, l2, l2_sqrt = (
        columns(RAGGED, fake(), normalize=n) for n in ("none", "layer_l2", "layer_l2_sqrtH")
    )
    for site, heads in ((slice(0, 2), 2), (slice(2, 6), 4)):
        norm = plain["value"][site].norm()
        for name in ("value", "signed"):
            torch.testing.assert_close(l2[name][site], plain[name][site] / norm)
            torch.testing.assert_close(l2_sqrt[name][site], plain[name][site] / norm * heads**0.5)
    assert (
        "nats" in GateImportance(RAGGED).label
        and "nats" not in GateImportance(RAGGED, normalize="layer_l2").label
    )


def test_equal_heads_score_one_in_every_layer_only_with_sqrtH():
    ones = fake()
    z = tuple(torch.ones_like(z) for z in ones.z)
    batch = HeadBatch(z=z, grad=z, logits=ones.logits, valid=ones.valid)
    torch.testing.assert_close(
        columns(RAGGED, batch, normalize="layer_l2_sqrtH")["value"],
        torch.ones(6, dtype=torch.float64),
    )
    biased = columns(RAGGED, batch, normalize="layer_l2")["value"]
    torch.testing.assert_close(biased[2] / biased[0], torch.tensor(0.5**0.5, dtype=torch.float64))


def of_slopes(slopes_NH: torch.Tensor) -> HeadBatch:
    """A batch of one layer with these slopes along its gates."""
    z = slopes_NH[:, None, :, None]
    return HeadBatch(
        z=(z,),
        grad=(torch.ones_like(z),),
        logits=z[:, 0, :1, 0],
        valid=torch.ones(len(z), dtype=bool),
    )


def test_a_layers_norm_varies_too_so_a_normalised_score_is_no_multiple_of_a_mean():
    """Its interval once was that of a mean: of a head alone in its layer, which always scores 1, it was .71 to 1.40."""

    def draw(seed, heads):
        return torch.randn(60, heads, generator=torch.Generator().manual_seed(seed)).double().exp()

    alone = HeadLayout((HeadSite("a", 0, 0, 1, 1),))
    got = columns(alone, of_slopes(draw(0, 1)), normalize="layer_l2")
    assert [got[name].item() for name in ("value", "low", "high")] == pytest.approx([1, 1, 1])
    pair = HeadLayout((HeadSite("a", 0, 0, 2, 1),))
    got = columns(pair, of_slopes(draw(0, 1).expand(-1, 2)), normalize="layer_l2_sqrtH")
    torch.testing.assert_close(got["low"], got["high"])  # equal heads always score 1
    truth, inside, sets = 3 / (3**2 + math.exp(0.5) ** 2) ** 0.5, 0, 200
    for seed in range(
        sets
    ):  # a head that is the same in every image, beside one that is not: only the norm varies
        slopes = torch.cat([torch.full((60, 1), 3.0, dtype=torch.float64), draw(seed, 1)], 1)
        got = columns(pair, of_slopes(slopes), normalize="layer_l2")
        assert got["low"][0] < got["high"][0] and got["standard_error"].isnan().all()
        inside += bool(got["low"][0] <= truth <= got["high"][0])
    assert inside / sets > 0.95 - 4 * (0.05 * 0.95 / sets) ** 0.5  # it was 0
    assert (
        columns(pair, of_slopes(slopes), abs_at="batch", normalize="layer_l2")["low"].isnan().all()
    )


def test_a_layer_without_slopes_scores_zero():
    batch = fake()
    silent = HeadBatch(
        z=batch.z,
        grad=(torch.zeros_like(batch.grad[0]), batch.grad[1]),
        logits=batch.logits,
        valid=batch.valid,
    )
    value = columns(RAGGED, silent, normalize="layer_l2")["value"]
    assert (value[:2] == 0).all()
    assert (value[2:] > 0).all()


def test_one_image_has_a_score_and_no_interval():
    got = columns(RAGGED, fake(images=1))
    assert got["value"].isfinite().all()
    assert got["low"].isnan().all()
    assert got["high"].isnan().all()


def test_narrow_features_are_multiplied_in_float32():
    batch = fake()
    narrow = HeadBatch(
        z=tuple(z.bfloat16() for z in batch.z),
        grad=tuple(g.bfloat16() for g in batch.grad),
        logits=batch.logits,
        valid=batch.valid,
    )
    widened = HeadBatch(
        z=tuple(z.double() for z in narrow.z),
        grad=tuple(g.double() for g in narrow.grad),
        logits=batch.logits,
        valid=batch.valid,
    )
    # products of two bfloat16 (8 bits each) are exact in float32; in bfloat16 they would be wrong
    # by 4e-3
    torch.testing.assert_close(
        columns(RAGGED, narrow)["value"], columns(RAGGED, widened)["value"], rtol=1e-12, atol=0
    )


def test_wrong_options_and_missing_gradients_are_refused_in_one_line():
    with pytest.raises(UserError, match="abs_at is one of image, token, batch, got 'example'"):
        GateImportance(RAGGED, abs_at="example")
    with pytest.raises(
        UserError, match="normalize is one of none, layer_l2, layer_l2_sqrtH, got 'l2'"
    ):
        GateImportance(RAGGED, normalize="l2")
    batch = fake()
    with pytest.raises(UserError, match="no gradients"):
        GateImportance(RAGGED).update(HeadBatch(z=batch.z, logits=batch.logits, valid=batch.valid))


@pytest.mark.parametrize("normalize", ["none", "layer_l2", "layer_l2_sqrtH"])
@pytest.mark.parametrize(
    "make", [GateImportance, functools.partial(GateImportance, power=2), Fisher]
)
def test_the_label_says_whether_slopes_are_squared_and_what_a_layer_is_divided_by(make, normalize):
    measure = make(RAGGED, normalize=normalize)
    squared, divided = (
        make is not GateImportance,
        {"layer_l2": "l2 norm", "layer_l2_sqrtH": "root mean square"},
    )
    assert ("(dL/dξ)²" in measure.label) == squared and ("|dL/dξ|" in measure.label) != squared
    assert measure.label.endswith(f", over the layer's {divided.get(normalize)}") == (
        normalize != "none"
    )
    assert measure.unit == ("" if normalize != "none" else "nats²" if squared else "nats")
