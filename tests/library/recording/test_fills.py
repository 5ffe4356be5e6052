"""What stands in a head's place is what it says, and masks give with it what a forward with plain hooks gives."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import mhprobe
from gated import closed, fractional, learned
from mhprobe.data.batch import Batch
from mhprobe.gates.fill import Fill
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.parts.curve import known_orders
from mhprobe.measures.parts.hashing import DONORS, image_numbers, mixed
from mhprobe.recording import fills
from mhprobe.recording.fills import find_fill
from mhprobe.recording.replay import Replay
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs
from models import BUILDERS, images_for, labels_for, make_loud, tiny_vit
from oracles import fill as oracle

N = 12
FILLS = ("mean", "mean_per_position", "resample", "optimal")


def loud(build=tiny_vit) -> nn.Module:
    model = build()
    make_loud(model, 0.2)
    return model


def walk(model, size=5, count=N, shuffled=False):
    images, labels = images_for(model, count), labels_for(count)
    order = (
        torch.randperm(count, generator=torch.Generator().manual_seed(3))
        if shuffled
        else torch.arange(count)
    )
    for index in order.split(size):
        index = torch.cat([index, index[:1]])  # the last only pads
        yield Batch(images[index], labels[index], index, torch.arange(len(index)) < len(index) - 1)


def found(model, name, **options) -> Fill:
    return find_fill(model, name, lambda: walk(model, **options))


def sites_of(model):
    return [(site.name, site.num_heads) for site in mhprobe.attach(model).layout.sites]


@pytest.fixture(params=BUILDERS)
def model(request):
    model = loud(BUILDERS[request.param])
    mhprobe.attach(model)
    return model


@pytest.mark.parametrize(
    "gate", [mhprobe.attach, closed, fractional, learned], ids=lambda gate: gate.__name__
)
@pytest.mark.parametrize("name", FILLS)
def test_masks_give_what_plain_hooks_give(model, name, gate, monkeypatch):
    monkeypatch.setattr(fills, "STEPS", 2)
    gate(model)
    gates, images = mhprobe.attach(model), images_for(model, 4, seed=5)
    fill, share = found(model, name), gates.effective().detach()
    masks = torch.zeros(6, gates.layout.num_heads, dtype=torch.bool)
    masks[1, 0] = masks[2, [0, 3]] = masks[3, -1] = masks[4, gates.layout.span(1)] = masks[5] = True
    got = Replay(model, masks, fill=fill)(images)
    instead = [
        site
        * share[gates.layout.span(number)].repeat_interleave(gates.layout.sites[number].head_dim)
        for number, site in enumerate(fill.for_images(images).sites)
    ]
    for mask, logits in zip(masks, got, strict=True):
        expected = oracle.logits(
            model, sites_of(model), set(mask.nonzero().flatten().tolist()), instead, images
        )
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    nothing = Replay(model, masks)(images)
    assert torch.equal(nothing[0], got[0]) and not torch.allclose(nothing[5], got[5], atol=1e-3)


@pytest.mark.parametrize("name", FILLS)
def test_what_was_found_by_position_is_refused_for_images_of_another_form(name, monkeypatch):
    monkeypatch.setattr(fills, "STEPS", 1)
    model = tiny_vit(dynamic_img_size=True)
    layout = mhprobe.attach(model).layout
    fill, replayed = (
        found(model, name),
        torch.randn(2, 3, 8, 32),
    )  # of 16 patches, too, but 2 x 8 of them
    mask = layout.mask([0])[None]
    if name in ("mean", "optimal"):  # everywhere the same
        assert Replay(model, mask, fill=fill)(replayed).isfinite().all()
        return
    with pytest.raises(
        mhprobe.UserError,
        match=r"by position .* \(3, 16, 16\), expected the same, got \(3, 8, 32\)",
    ):
        Replay(model, mask, fill=fill)(replayed)


def test_means_are_means(model):
    outputs = oracle.outputs(model, [name for name, _ in sites_of(model)], images_for(model, N))
    places, everywhere = found(model, "mean_per_position"), found(model, "mean")
    for site, seen, at, even in zip(
        mhprobe.attach(model).layout.sites, outputs, places.sites, everywhere.sites, strict=True
    ):
        torch.testing.assert_close(at, seen.mean(0, keepdim=True), rtol=1e-4, atol=1e-5)
        rows = seen.flatten(1, 2)
        rows = rows if site.windows is None else rows[:, site.windows.rows()]
        torch.testing.assert_close(even.flatten(), rows.mean((0, 1)), rtol=1e-4, atol=1e-5)


def test_the_mean_of_one_image_is_itself(model):
    fill, image = found(model, "mean_per_position", count=1), images_for(model, 1)
    everything = torch.ones(1, mhprobe.attach(model).layout.num_heads, dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(Replay(model, everything, fill=fill)(image)[0], model(image))


def test_the_optimal_constant_costs_no_more_than_the_mean_where_it_was_fitted(model):
    images, labels = images_for(model, N), labels_for(N)
    heads = torch.eye(mhprobe.attach(model).layout.num_heads, dtype=torch.bool)

    def loss(name):
        logits = Replay(model, heads, fill=found(model, name))(images)
        return torch.stack([nn.functional.cross_entropy(each, labels) for each in logits])

    best, mean = loss("optimal"), loss("mean")
    assert (best <= mean + 1e-6).all() and (mean - best).mean() > 1e-3


def test_the_best_constant_of_all_steps_is_kept_not_the_last(monkeypatch):
    """With steps far too large, some heads are worse off with the last one than with one before."""
    model = loud()
    mhprobe.attach(model)
    images, labels = images_for(model, N), labels_for(N)
    heads = torch.eye(mhprobe.attach(model).layout.num_heads, dtype=torch.bool)
    losses_A, descend = [], fills._descend

    def watched(*args):
        losses_A.append(descend(*args))
        return losses_A[-1]

    monkeypatch.setattr(fills, "RATE", 30.0)
    monkeypatch.setattr(fills, "STEPS", 4)
    monkeypatch.setattr(fills, "_descend", watched)
    logits = Replay(model, heads, fill=found(model, "optimal"))(images)
    loss_A = torch.stack([nn.functional.cross_entropy(each, labels) for each in logits]).double()
    steps_SA = torch.stack(losses_A)
    torch.testing.assert_close(loss_A, steps_SA.amin(0), rtol=1e-4, atol=1e-5)
    assert (steps_SA[-1] > steps_SA.amin(0) + 5e-4).any()  # three times what is forgiven above


@pytest.mark.parametrize("name", FILLS)
def test_batches_and_their_order_change_nothing(model, name):
    one, other = found(model, name), found(model, name, size=3, shuffled=True)
    images = images_for(model, 6)
    for a, b in zip(one.for_images(images).sites, other.for_images(images).sites, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    alone = torch.cat([one.for_images(image[None]).sites[0] for image in images])
    assert torch.equal(
        alone.expand_as(together := one.for_images(images).sites[0].expand_as(alone)), together
    )


def test_what_is_drawn_is_another_images_output():
    model = loud()
    mhprobe.attach(model)
    images = images_for(model, N)
    own = oracle.outputs(model, ["blocks.0.attn"], images)[0]
    drawn = found(model, "resample").for_images(images).sites[0]
    match = torch.cdist(drawn.flatten(1), own.flatten(1)).argmin(1)
    torch.testing.assert_close(drawn, own[match], rtol=1e-4, atol=1e-5)
    assert (match != torch.arange(N)).all() and len(set(match.tolist())) > 2
    with pytest.raises(mhprobe.UserError, match="takes another image's output, got 1"):
        found(model, "resample", count=1)


def test_images_whose_numbers_agree_have_one_donor():
    """Errors of measures are clustered by these numbers, so they have to be those of the donors."""
    model = loud()
    mhprobe.attach(model)
    images = images_for(model, 200, seed=7)  # none of them is a donor
    drawn = found(model, "resample").for_images(images).sites[0].flatten(1)
    number = mixed(image_numbers(images)) % DONORS
    first = {int(n): drawn[at] for at, n in reversed([*enumerate(number)])}
    assert (
        all(torch.equal(drawn[at], first[int(n)]) for at, n in enumerate(number))
        and len(first) == DONORS
    )


def test_heads_that_all_masks_have_off_stay_in_the_model_with_what_stands_there():
    model = loud()
    mhprobe.attach(model)
    masks, images, fill = (
        torch.zeros(2, 6, dtype=torch.bool),
        images_for(model, 3),
        found(model, "mean"),
    )
    masks[:, [0, 3]] = masks[1, 4] = True
    small = Replay(model, masks, smaller=True, fill=fill)(images)
    torch.testing.assert_close(small, Replay(model, masks, fill=fill)(images))
    with pytest.raises(mhprobe.UserError, match="rescale=false or fill=zero"):
        Replay(model, masks, rescale=True, fill=fill)


@pytest.mark.parametrize("name", FILLS)
def test_slopes_are_along_the_way_from_a_head_to_what_stands_there(model, name, monkeypatch):
    monkeypatch.setattr(fills, "STEPS", 2)
    model = model.double()
    fractional(model)
    gates, images, labels = mhprobe.attach(model), images_for(model, N).double(), labels_for(N)
    batch = Batch(images, labels, torch.arange(N), torch.ones(N, dtype=torch.bool))
    fill = find_fill(model, name, lambda: [batch])
    mask = gates.layout.mask([2])
    evaluate = Evaluator(model, lambda: [batch], N, masked=MaskedAs(fill))
    mean, square = evaluate.slopes(mask)
    present = gates.effective().detach().double()

    def loss(values):
        with gates.side_by_side(values[None], fill=fill.for_images(images)), torch.no_grad():
            return float(nn.functional.cross_entropy(model(images), labels))

    here = present.masked_fill(mask, 0)
    for head in (0, 1, 4):
        nearer = here.clone()
        nearer[head] *= 1 - 1e-3
        farther = here.clone()
        farther[head] *= 1 + 1e-3
        assert float(mean[head]) == pytest.approx(
            (loss(farther) - loss(nearer)) / 2e-3, rel=1e-2, abs=1e-5
        )
    assert mean[2] == square[2] == 0


@pytest.mark.parametrize("name", FILLS)
def test_a_head_is_worth_what_it_costs_to_put_that_in_its_place(name, monkeypatch):
    monkeypatch.setattr(fills, "STEPS", 2)
    model = loud()
    layout = mhprobe.attach(model).layout
    images, labels = images_for(model, 8, seed=9), labels_for(8)
    chosen = [(images_for(model, N), labels_for(N))]
    delta = functools.partial(mhprobe.measures.AblationDelta, fill=name)
    got = mhprobe.measure(model, [(images, labels)], [delta], select_loader=chosen)[
        "ablation_delta"
    ]
    instead = found(model, name).for_images(images).sites
    losses = [
        nn.functional.cross_entropy(
            oracle.logits(model, sites_of(model), off, instead, images), labels
        )
        for off in [set(), *({head} for head in range(layout.num_heads))]
    ]
    expected = torch.stack(losses[1:]) - losses[0]
    torch.testing.assert_close(got.float(), expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(mhprobe.UserError, match="fill is one of zero, mean"):
        mhprobe.measures.AblationDelta(layout, fill="median")


@pytest.mark.parametrize("gate", [closed, fractional, learned], ids=lambda gate: gate.__name__)
@pytest.mark.parametrize("order", known_orders())
def test_every_order_draws_its_curve(order, gate):
    model = loud()
    gate(model)
    gates, loader = mhprobe.attach(model), [(images_for(model, N), labels_for(N))]
    scored = issubclass(known_orders()[order], ByScore)
    options = (
        {"measure": mhprobe.measures.AblationDelta}
        if scored
        else {"random": {"repeats": 1}}.get(order, {})
    )
    rows = mhprobe.masking_curve(model, loader, "head", order, fill="mean", **options)
    share, fill = gates.effective().detach(), found(model, "mean")
    instead = [
        s * share[gates.layout.span(i)].repeat_interleave(8) for i, s in enumerate(fill.sites)
    ]
    for row in rows:
        if row["seed"] != "mean":
            off = {int(head) for head in str(row["masked"]).split()}
            logits = oracle.logits(model, sites_of(model), off, instead, loader[0][0])
            assert row["loss"] == pytest.approx(
                float(nn.functional.cross_entropy(logits, loader[0][1])), rel=1e-4
            )
            assert row["fill"] == "mean"


def test_scores_of_a_masked_model_are_refused():
    model = loud()
    with pytest.raises(mhprobe.UserError, match="rescore_every=null with a fill"):
        mhprobe.masking_curve(
            model,
            [(images_for(model, N), labels_for(N))],
            "head",
            "by_score",
            fill="mean",
            measure=mhprobe.measures.GateImportance,
            rescore_every=1,
        )
