from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from timm.layers import QuickGELU, RmsNorm, SwiGLU
from timm.models.vision_transformer import ParallelThingsBlock, ResPostBlock
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import Relevance
from mhprobe.measures.lrp_relevance import LRPRelevance
from mhprobe.recording.lrp import _Rules, patch_relevances, relevances
from models import images_for, tiny_registers, tiny_swin, tiny_vit
from oracles import intervals
from oracles.lrp_relevance import Books

EXACT = {
    "rtol": 1e-8,
    "atol": 1e-10,
}  # float64, thousands of terms, denominators down to 1e-6 of their terms


def prepare(build, std=0.3, **kwargs):
    """A bare float64 model with weights that make heads speak up, a gated copy, and two images."""
    bare = build(**kwargs).double()
    torch.manual_seed(3)
    for parameter in bare.parameters():
        nn.init.normal_(parameter, std=std)
    gated = copy.deepcopy(bare)
    layout = mhprobe.attach(gated).layout
    return bare, gated, layout, images_for(bare, 2, dtype=torch.float64)


@pytest.fixture(
    scope="module", params=[tiny_vit, tiny_registers, tiny_swin], ids=lambda build: build.__name__
)
def prepared(request):
    return prepare(request.param)


@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_every_neuron_gets_what_messages_written_out_give_it(prepared, gamma):
    bare, gated, _, images = prepared
    rule = Relevance(gamma=gamma, epsilon=1e-15)
    found = relevances(gated, images, None, rule)
    _, patches = patch_relevances(gated, images, None, rule)
    for n, image in enumerate(images):
        books = Books(bare, image, gamma)
        torch.testing.assert_close(found.explained[n], books.logit, **EXACT)
        for number, (z, beside, kept) in enumerate(books.cuts):
            rows = found.heads[number].view(len(images), *z.shape)
            torch.testing.assert_close(rows[n], z, **EXACT)
            torch.testing.assert_close(found.skipped[n, number], beside, **EXACT)
            # the books balance: nothing appears and nothing vanishes
            crossing = rows[n].sum() + found.skipped[n, number]
            torch.testing.assert_close(crossing + kept, books.logit, **EXACT)
        torch.testing.assert_close(patches[n], books.patches.flatten(), **EXACT)


def without_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_without_biases_the_last_block_conserves_exactly(build, gamma):
    _, gated, _, images = prepare(build)

    def error(model):
        found = relevances(model, images, None, Relevance(gamma=gamma, epsilon=1e-15))
        crossing = found.heads[-1].view(len(images), -1).sum(1) + found.skipped[:, -1]
        return ((crossing - found.explained) / found.explained).abs().max()

    assert error(gated) > 1e-3  # biases keep their share
    without_biases(gated)
    assert error(gated) < 1e-10


VARIANTS = {
    "parallel": {"block_fn": ParallelThingsBlock},  # two attentions side by side
    "post-norm": {"block_fn": ResPostBlock},
    "SwiGLU": {"mlp_layer": SwiGLU},
    "quick GELU": {"act_layer": QuickGELU},
    "RMS norm": {"norm_layer": RmsNorm},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_parts_of_vits_conserve_exactly_too(variant):
    _, gated, layout, images = prepare(tiny_vit, **VARIANTS[variant])
    without_biases(gated)
    found = relevances(gated, images, None, Relevance(epsilon=1e-15))
    last = [
        rows.view(len(images), -1).sum(1)
        for rows, site in zip(found.heads, layout.sites, strict=True)
        if site.block == layout.sites[-1].block
    ]
    torch.testing.assert_close(sum(last) + found.skipped[:, -1], found.explained, **EXACT)


def test_a_linear_model_is_shared_out_by_contribution():
    """Attention with constant weights and no MLP is linear: the epsilon rule must give activation times weight."""
    bare, gated, _, images = prepare(tiny_vit, depth=1)
    for model in (bare, gated):
        without_biases(model)
        with torch.no_grad():
            model.blocks[0].mlp.fc2.weight.zero_()
    model = gated
    found = relevances(model, images, None, Relevance(gamma=0.0, epsilon=1e-15))
    z = mhprobe.record(model, images, needs=()).z[0]
    wrote = [
        z[:, 0, h] @ model.blocks[0].attn.proj.weight[:, h * 8 : h * 8 + 8].T for h in range(3)
    ]
    stream = dict.fromkeys("x")
    handle = model.norm.register_forward_pre_hook(lambda _, args: stream.update(x=args[0][:, 0]))
    logits = model(images)
    handle.remove()
    deviation = (stream["x"].var(-1, correction=0, keepdim=True) + model.norm.eps).sqrt()
    for h, write in enumerate(wrote):
        logit = model.head((write - write.mean(-1, keepdim=True)) / deviation * model.norm.weight)
        best = logit.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
        got = found.heads[0].view(2, -1, 3, 8).sum((1, 3))[:, h]
        torch.testing.assert_close(got, best, **EXACT)


def test_gamma_tames_what_epsilon_lets_explode():
    _, gated, layout, images = prepare(tiny_vit, depth=6)
    mass = {}
    for gamma in (0.0, 0.25):
        measure = LRPRelevance(layout, gamma=gamma)
        measure.update(mhprobe.record(gated, images, needs=measure.needs))
        mass[gamma] = measure.columns()["mass"][0]
    assert mass[0.25] < 0.7 * mass[0.0]


def test_heads_of_a_layer_share_all_of_it_and_a_masked_head_gets_nothing(prepared):
    _, gated, layout, images = prepared
    measure = LRPRelevance(layout)
    mask = layout.mask([1])
    with mhprobe.attach(gated).masked(mask):
        measure.update(mhprobe.record(gated, images, needs=measure.needs))
    columns = measure.columns()
    for shares in layout.split(columns["value"]):
        torch.testing.assert_close(shares.sum(), torch.tensor(1.0, dtype=torch.float64))
    for sums in layout.split(columns["voita"]):
        torch.testing.assert_close(sums.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert columns["value"][1] == columns["signed"][1] == 0
    assert columns["value"][0] > 0
    assert (columns["signed"].abs() <= columns["value"] + 1e-12).all()


def test_the_label_is_another_logit_than_the_largest(prepared):
    _, gated, _, images = prepared
    logits = gated(images).detach()
    worst, best = logits.argmin(1), logits.argmax(1)
    rule = Relevance(target="label")
    torch.testing.assert_close(relevances(gated, images, worst, rule).explained, logits.amin(1))
    as_label, top = (
        relevances(gated, images, best, rule),
        relevances(gated, images, None, Relevance()),
    )
    assert all(torch.equal(a, b) for a, b in zip(as_label.heads, top.heads, strict=True))
    assert not torch.allclose(relevances(gated, images, worst, rule).heads[0], top.heads[0])


def test_the_length_of_features_is_shared_out_along_the_features():
    _, gated, _, images = prepare(tiny_vit, num_classes=0)
    with pytest.raises(
        UserError, match=r"relevance: .* gives features, no logits, so its top1 means nothing"
    ):
        relevances(gated, images, None, Relevance("top1"))
    found = relevances(gated, images, None, Relevance("norm", gamma=0.0))
    features = gated(images).detach()
    torch.testing.assert_close(found.explained, features.norm(dim=1))
    # a classifier of one row, an image's own direction, shares out the same
    for n, unit in enumerate(nn.functional.normalize(features, dim=1)):
        head = nn.Linear(len(unit), 1, bias=False, dtype=torch.float64)
        head.weight.data[0] = unit
        beside = relevances(
            nn.Sequential(gated, head).eval(), images, None, Relevance("top1", gamma=0.0)
        )
        for one, other in zip(found.heads, beside.heads, strict=True):
            torch.testing.assert_close(one[n], other[n], rtol=1e-6, atol=1e-9)


def test_the_model_is_left_as_it_was(prepared):
    _, gated, _, images = prepared
    gated.train()
    before = {name: (p.requires_grad, p.grad) for name, p in gated.named_parameters()}
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in gated.modules())
    relevances(gated, images, None, Relevance())
    assert gated.training and before == {
        name: (p.requires_grad, p.grad) for name, p in gated.named_parameters()
    }
    assert hooks == sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in gated.modules())
    gated.eval()


def test_learnable_gates_are_weights_and_no_activations(prepared):
    _, gated, _, images = prepared
    fixed = relevances(gated, images, None, Relevance())
    learnable = copy.deepcopy(gated)
    mhprobe.attach(learnable, learnable=True)
    with torch.inference_mode():  # where Lightning evaluates
        again = relevances(learnable, images.clone(), None, Relevance())
    assert all(torch.equal(a, b) for a, b in zip(fixed.heads, again.heads, strict=True))


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_record_with_relevance_costs_six_forwards_at_most(build):
    model = build()
    layout = mhprobe.attach(model).layout
    images, labels = images_for(model, 2), torch.zeros(2, dtype=torch.long)

    def flops(call):
        with FlopCounterMode(display=False) as counter:
            call()
        return counter.get_total_flops()

    forward = flops(lambda: model(images))
    needs = {"grad", *LRPRelevance(layout).needs}
    assert flops(lambda: mhprobe.record(model, images, labels, needs)) <= 6 * forward


def test_columns_follow_from_one_image_at_a_time(prepared):
    bare, gated, layout, images = prepared
    measure = LRPRelevance(layout, epsilon=1e-15)
    measure.update(mhprobe.record(gated, images, needs=measure.needs))
    got = measure.columns()
    sums, attention, residual, error = [], [], [], []
    for image in images:
        books = Books(bare, image, 0.25)
        for (z, beside, _), site in zip(books.cuts, layout.sites, strict=True):
            heads = z.sum((0, 1, 3)) if z.ndim == 4 else z
            sums.append((site, heads))
            attention.append((heads.sum() / books.logit).expand(len(heads)))
            residual.append((beside / books.logit).expand(len(heads)))
            error.append(
                ((heads.sum() + beside - books.logit) / books.logit).abs().expand(len(heads))
            )
    half = len(layout.sites)
    for name, parts in (
        ("attention", attention),
        ("residual", residual),
        ("conservation_error", error),
    ):
        expected = (torch.cat(parts[:half]) + torch.cat(parts[half:])) / 2
        torch.testing.assert_close(got[name], expected, **EXACT)
    signed = [torch.cat([h / h.abs().sum() for _, h in sums[i : i + half]]) for i in (0, half)]
    voita = [torch.cat([h / h.sum() for _, h in sums[i : i + half]]) for i in (0, half)]
    torch.testing.assert_close(got["signed"], sum(signed) / 2, **EXACT)
    torch.testing.assert_close(got["voita"], sum(voita) / 2, **EXACT)
    shares = torch.stack([s.abs() for s in signed])
    for head, error in enumerate((shares.std(0) / 2**0.5).tolist()):
        low, high = intervals.around(float(shares.mean(0)[head]), error, 1, (0.0, 1.0))
        assert (float(got["low"][head]), float(got["high"][head])) == pytest.approx(
            (low, high), rel=1e-4
        )


def test_a_layer_without_relevance_scores_zero(prepared):
    _, gated, layout, images = prepared
    measure = LRPRelevance(layout)
    batch = mhprobe.record(gated, images, needs=measure.needs)
    found = batch.relevance[measure.rule]
    silent = found._replace(heads=tuple(torch.zeros_like(r) for r in found.heads))
    measure.update(dataclasses.replace(batch, relevance={measure.rule: silent}))
    assert (measure.columns()["value"] == 0).all() and (measure.columns()["voita"] == 0).all()


def test_wrong_options_are_refused_in_one_line(prepared):
    _, gated, layout, images = prepared
    with pytest.raises(UserError, match="target is one of top1, label, norm, got 'best'"):
        LRPRelevance(layout, target="best")
    with pytest.raises(UserError, match="gamma >= 0 and epsilon > 0"):
        LRPRelevance(layout, epsilon=0)
    with pytest.raises(UserError, match="needs labels"):
        mhprobe.record(gated, images, needs={Relevance(target="label")})
    with pytest.raises(UserError, match="no relevance"):
        LRPRelevance(layout).update(mhprobe.record(gated, images, needs=()))


def relevance_of_inputs(net: nn.Module, x: torch.Tensor, gamma: float) -> torch.Tensor:
    """(N, inputs) relevance of output 1 under our rules."""
    frozen, leaf = copy.deepcopy(net).requires_grad_(False), x.clone().requires_grad_()
    with _Rules(Relevance(gamma=gamma, epsilon=1e-12)):
        out = frozen(leaf)[:, 1].sum()
    return leaf.detach() * torch.autograd.grad(out, leaf)[0]


def mlp(bias: bool) -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    sizes = [(6, 16), (16, 16), (16, 3)]
    layers = [layer for size in sizes for layer in (nn.Linear(*size, bias=bias), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).double(), torch.randn(4, 6, dtype=torch.float64)


@pytest.mark.peer
def test_epsilon_rule_agrees_with_captum():
    rules = pytest.importorskip("captum.attr._utils.lrp_rules")
    from captum.attr import LRP

    net, x = mlp(bias=True)
    for module in net:
        if isinstance(module, nn.Linear):
            module.rule = rules.EpsilonRule()
    theirs = LRP(net).attribute(x.clone().requires_grad_(), target=1)
    # captum's epsilon is 1e-9 where denominators are about 0.1
    torch.testing.assert_close(
        relevance_of_inputs(net, x, gamma=0.0), theirs.detach(), rtol=1e-6, atol=1e-8
    )


@pytest.mark.peer
def test_gamma_rule_agrees_with_zennit():
    """zennit's generalised gamma favours contributions of the output's own sign too.

    Its bias is favoured by sign as ours is; without one the comparison does not depend on it.
    """
    rules = pytest.importorskip("zennit.rules")
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite

    net, x = mlp(bias=False)
    composite = LayerMapComposite(
        [(nn.ReLU, rules.Pass()), (nn.Linear, rules.Gamma(0.25, stabilizer=1e-12))]
    )
    with Gradient(model=net, composite=composite) as attributor:
        _, theirs = attributor(
            x, lambda out: torch.zeros_like(out).index_copy(1, torch.tensor([1]), out[:, 1:2])
        )
    torch.testing.assert_close(
        relevance_of_inputs(net, x, gamma=0.25), theirs, rtol=1e-7, atol=1e-10
    )
    assert not torch.allclose(relevance_of_inputs(net, x, gamma=0.0), theirs)
