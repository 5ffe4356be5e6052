"""Hard-concrete and L1 gates: what is drawn, what it costs, what is trained, and what is left in evaluation."""

from __future__ import annotations

import copy
import math
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import mhprobe
from library.weights.test_weights import BACKBONE, DESCRIPTION
from mhprobe.backbones import attach
from mhprobe.gates import HeadGates, find_gates, gates_of
from mhprobe.gates.hard_concrete import HardConcrete, HardConcreteGates
from mhprobe.gates.target import Target
from mhprobe.gates.weighted import Weighted
from mhprobe.weights.checkpoint import load_weights, save_weights
from models import BUILDERS, images_for, labels_for, tiny_vit
from oracles import hard_concrete as oracle

families = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
LOG_ALPHAS = [-3.0, -0.791, 0.0, 1.0, 2.5]


def with_gates(model: torch.nn.Module, **options) -> HardConcreteGates:
    gates = attach(model, make=lambda model, layout: HardConcreteGates(model, layout, **options))
    assert isinstance(gates, HardConcreteGates)
    return gates


def set_log_alpha(gates: HardConcreteGates, values: list[float]) -> None:
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor(values))


# the distribution


@pytest.mark.parametrize("beta", [0.33, 2 / 3])
@pytest.mark.parametrize("log_alpha", LOG_ALPHAS)
def test_the_closed_form_of_p_open_is_how_often_gates_are_open(log_alpha, beta):
    closed = HardConcrete(beta=beta).p_open(torch.tensor(log_alpha)).item()
    counted, _ = oracle.shares(log_alpha, beta, -0.1, 1.1)
    assert (
        abs(closed - counted) < 0.015
    )  # four standard deviations of 20,000 draws: 4 * 0.5 / sqrt(20,000)


def test_draws_are_those_of_the_definition():
    u = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    got = HardConcrete().sample(torch.full_like(u, 0.7), u.logit())
    expected = [oracle.gate(x, 0.7, 0.33, -0.1, 1.1) for x in u.tolist()]
    torch.testing.assert_close(
        got, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )
    assert got.min() == 0 and got.max() == 1


def test_with_zeta_one_gates_never_reach_one():
    """Negative control: a port that had zeta = 1 saw every gate drift to 0."""
    for zeta, reached in ((1.1, True), (1.0, False)):
        assert (oracle.shares(2.5, 0.33, -0.1, zeta)[1] > 0.5) is reached
        assert (HardConcrete(zeta=zeta).evaluated(torch.tensor(2.5)).item() == 1) is reached
    # and the closed form with the wrong zeta is off by more than sampling
    assert (
        abs(
            HardConcrete(zeta=1.0).p_open(torch.tensor(0.0))
            - oracle.shares(0.0, 0.33, -0.1, 1.1)[0]
        )
        < 0.03
    )
    with pytest.raises(mhprobe.UserError, match="zeta"):
        with_gates(tiny_vit(), zeta=1.0)


def test_gradients_are_those_of_finite_differences_under_the_same_noise():
    model = tiny_vit().double()
    gates = with_gates(model, start=2.4)
    for tensor in (
        gates.values,
        gates.log_alpha,
        gates.noise,
    ):  # they stay float32 in whatever model
        tensor.data = tensor.data.double()
    set_log_alpha(gates, [-1.0, 0.0, 0.5, 1.0, -0.5, 0.2])
    images, labels = images_for(model, 4, dtype=torch.float64), labels_for(4)
    noise = torch.tensor([0.1, -0.2, 0.05, -1.0, 0.3, 0.0], dtype=torch.float64)
    model.train()
    gates.draw = lambda: gates.noise.copy_(noise)  # the same draw every time

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(images), labels) + gates.amount().sum()

    (slope,) = torch.autograd.grad(loss(), [gates.log_alpha])
    step, found = 1e-5, []
    with torch.no_grad():
        for head in range(6):
            ends = []
            for sign in (1, -1):
                gates.log_alpha[head] += sign * step
                ends.append(loss().item())
                gates.log_alpha[head] -= sign * step
            found.append((ends[0] - ends[1]) / (2 * step))
    # central differences in float64: error of order step^2
    torch.testing.assert_close(
        slope, torch.tensor(found, dtype=torch.float64), rtol=1e-5, atol=1e-8
    )
    assert (slope.abs() > 1e-3).sum() >= 4


# in a model


@families
def test_evaluation_is_deterministic_and_the_open_start_leaves_every_bit(build):
    model = build()
    images = images_for(model, 2)
    before = model(images)
    gates = with_gates(model)
    assert torch.equal(model(images), before) and torch.equal(model(images), before)
    assert torch.equal(gates.effective(), torch.ones(gates.layout.num_heads))


@families
def test_one_draw_gates_all_images_and_all_sites_of_a_forward(build):
    model = build()
    image = images_for(model, 1)
    gates = with_gates(model)
    set_log_alpha(gates, [0.0] * gates.layout.num_heads)
    model.train()
    for module in model.modules():
        if type(module).__name__ == "DropPath":  # draws per image
            module.eval()
    logits = model(image.expand(5, -1, -1, -1))
    torch.testing.assert_close(
        logits, logits[:1].expand(5, -1), rtol=1e-4, atol=1e-5
    )  # float32 in another order
    # the whole model under this draw is the model with these gates
    drawn = gates.distribution.sample(gates.log_alpha, gates.noise).detach()
    model.eval()
    with gates.fixed(drawn), torch.no_grad():
        torch.testing.assert_close(model(image), logits[:1].detach(), rtol=1e-4, atol=1e-5)
    model.train()
    assert not torch.equal(model(image), logits[:1])  # the next forward has a draw of its own


def test_draws_follow_the_seed_of_the_step():
    model = tiny_vit()
    gates, images = with_gates(model), images_for(tiny_vit(), 2)
    model.train()
    noises = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model(images)
        noises.append(gates.noise.clone())
    assert torch.equal(noises[0], noises[1]) and not torch.equal(noises[0], noises[2])


def test_two_ranks_draw_apart_and_agree_on_log_alpha():
    """Averaged gradients of two draws give both copies the same step, as DDP does."""
    images, labels = images_for(tiny_vit(), 4), labels_for(4)
    ranks = []
    for rank in range(2):
        model = tiny_vit()
        gates = with_gates(model, start=2.5)
        model.train()
        torch.manual_seed(rank)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        ranks.append((gates, gates.noise.clone()))
    (a, first), (b, second) = ranks
    assert not torch.equal(first, second)
    mean = (a.log_alpha.grad + b.log_alpha.grad) / 2
    for gates, _ in ranks:
        gates.log_alpha.grad = mean.clone()
        torch.optim.AdamW([gates.log_alpha], lr=0.1).step()
    assert torch.equal(a.log_alpha, b.log_alpha)


@families
def test_a_masked_head_is_off_also_in_training_and_learns_nothing(build):
    model = build()
    gates, images, labels = with_gates(model), images_for(model, 2), labels_for(2)
    mask = torch.zeros(gates.layout.num_heads, dtype=torch.bool)
    mask[1] = True
    gates.close(mask)
    model.train()
    (torch.nn.functional.cross_entropy(model(images), labels) + gates.amount().sum()).backward()
    assert gates.log_alpha.grad[1] == 0 and gates.effective()[1] == 0 and gates.amount()[1] == 0
    assert gates.log_alpha.grad.count_nonzero() > 1


@families
def test_copies_and_pickles_carry_their_own(build):
    model = build()
    gates, images = with_gates(model), images_for(model, 2)
    before = model(images)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        theirs = gates_of(other)
        assert isinstance(theirs, HardConcreteGates) and theirs is not gates
        set_log_alpha(theirs, [-5.0] * gates.layout.num_heads)
        assert not torch.equal(other(images), before)
        assert torch.equal(model(images), before)


def test_a_compiled_model_obeys_new_gates_and_draws_without_a_new_compilation():
    torch._dynamo.reset()
    model = tiny_vit()
    gates, images = with_gates(model), images_for(tiny_vit(), 2)
    model.compile(backend="eager")
    stats = torch._dynamo.utils.counters["stats"]
    for mode in (True, False):
        model.train(mode)
        first = model(images)
        graphs = stats["unique_graphs"]
        set_log_alpha(gates, [-2.0, 0.5, -1.0, 2.0, 0.0, 1.0])
        second = model(images)
        noise = gates.noise.clone()
        assert not torch.equal(first, second)
        model(images)
        assert torch.equal(noise, gates.noise) is not mode  # draws go on in training only
        assert stats["unique_graphs"] == graphs > 0
        set_log_alpha(gates, [3.0] * 6)


def test_other_gates_replace_those_that_are_there_and_keep_heads_off():
    model = tiny_vit()
    plain = mhprobe.attach(model)
    plain.values[2] = 0
    images = images_for(model, 2)
    expected = model(images)
    gates = with_gates(model)
    assert find_gates(model) is gates and gates.values.tolist() == [1, 1, 0, 1, 1, 1]
    assert torch.equal(model(images), expected)
    assert sum(len(m._forward_pre_hooks) for m in model.modules()) == 3  # two sites and the draw


def test_state_dicts_come_back_and_other_settings_are_refused():
    gates, other = with_gates(tiny_vit()), with_gates(tiny_vit())
    set_log_alpha(gates, [*LOG_ALPHAS, 0.3])
    other.load_state_dict(gates.state_dict())
    assert torch.equal(other.effective(), gates.effective())
    with pytest.raises(mhprobe.UserError, match=r"0\.33.*0\.5"):
        with_gates(tiny_vit(), beta=0.5).load_state_dict(gates.state_dict())


def test_saved_weights_hold_what_the_gates_come_to(tmp_path):
    torch.manual_seed(0)
    model = mhprobe.backbones.build(**BACKBONE, num_classes=4).eval()
    gates, images = with_gates(model), images_for(model, 3)
    set_log_alpha(gates, [-5.0, -1.0, 0.0, 1.0, 5.0, -2.0])
    save_weights(model, tmp_path / "m.safetensors", DESCRIPTION)
    loaded, description = load_weights(tmp_path / "m.safetensors")
    plain = find_gates(loaded)
    assert type(plain) is HeadGates and torch.equal(plain.values, gates.effective())
    assert description["gates"][0] == 0 and description["gates"][4] == 1
    assert torch.equal(loaded(images), model(images))


def test_start_is_normal_and_clamped_as_in_cofi():
    gates = with_gates(
        tiny_vit(), beta=2 / 3, start=10, start_std=0.01, low=math.log(0.01), high=math.log(100)
    )
    torch.testing.assert_close(gates.log_alpha.detach(), torch.full((6,), math.log(100)))
    free = with_gates(tiny_vit(), start=10, start_std=0.5)
    assert 0 < free.log_alpha.std() < 2
    set_log_alpha(gates, [-100.0] * 6)
    gates.project()
    torch.testing.assert_close(gates.log_alpha.detach(), torch.full((6,), math.log(0.01)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": 0}, "beta.*above 0"),
        ({"beta": -1}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"gamma": 0.0}, "gamma.*below 0"),
        ({"zeta": 1.0}, "zeta.*above 1"),
        ({"start": 0.0}, r"start.*2\.40 or more, .* got 0"),
        ({"high": 1.0}, r"start.*got 1\.0"),
        ({"start": math.nan}, "start"),
        ({"low": 2.0, "high": 1.0, "start": 3.0}, "start|low"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, words):
    with pytest.raises(mhprobe.UserError, match=words):
        with_gates(tiny_vit(), **options)


# what open heads cost


def test_the_weighted_penalty_is_lambda_times_the_sum_and_comes_in_as_told():
    amount = torch.tensor([0.5, 1.0, 0.25])
    penalty = Weighted(0.1, begin=0.2, rise=0.5)
    got = [penalty(amount, progress).item() for progress in (0.0, 0.19, 0.45, 0.7, 1.0)]
    assert got == pytest.approx([0, 0, 0.0875, 0.175, 0.175])
    assert Weighted(0.1)(amount, 0.0).item() == pytest.approx(0.175)
    gates = with_gates(tiny_vit())
    expected = sum(1 / (1 + math.exp(-(3 - 0.33 * math.log(0.1 / 1.1)))) for _ in range(6))
    assert gates.amount().sum().item() == pytest.approx(expected, rel=1e-6)


def test_l1_gates_arrive_at_exactly_zero_and_stay():
    model = tiny_vit()
    gates = attach(
        model, make=lambda m, layout: HeadGates(m, layout, learnable=True, low=0.0, high=1.0)
    )
    worth = torch.tensor([1.0, 0.01, 1.0, 0.01, 0.01, 1.0])  # what opening each head saves
    penalty, optimizer = Weighted(0.1), torch.optim.AdamW([gates.values], lr=0.05, weight_decay=0)
    for step in range(60):
        optimizer.zero_grad()
        (penalty(gates.amount(), step / 60) - (worth * gates.values).sum()).backward()
        optimizer.step()
        gates.project()
    assert gates.values.tolist() == [1, 0, 1, 0, 0, 1]
    assert gates.kept().tolist() == [True, False, True, False, False, True]


@pytest.mark.parametrize("heads", [1, 3, 5])
def test_the_lagrangian_reaches_its_number_of_heads(heads):
    gates = with_gates(tiny_vit(), low=-4.6, high=4.6)
    worth = torch.tensor([0.06, 0.01, 0.05, 0.02, 0.03, 0.04])
    target = Target(heads, rise=0.3, lr=0.05)
    optimizer = torch.optim.AdamW(
        [
            {"params": [gates.log_alpha], "lr": 0.05, "weight_decay": 0.0},
            {
                "params": list(target.parameters()),
                "lr": target.lr,
                "weight_decay": 0.0,
                "maximize": True,
            },
        ]
    )
    torch.manual_seed(0)
    for step in range(1000):
        optimizer.zero_grad()
        gates.draw()
        drawn = gates.factors(slice(None), training=True)
        (target(gates.amount(), step / 1000) - (worth * drawn).sum()).backward()
        optimizer.step()
        gates.project()
    assert gates.amount().sum().item() == pytest.approx(heads, abs=0.35)
    assert (
        gates.kept(keep=heads).tolist()
        == (worth >= worth.sort(descending=True).values[heads - 1]).tolist()
    )


def test_the_lagrangian_without_multipliers_that_rise_stays_open():
    """Negative control of the one above: minimising the multipliers too would not bind anything."""
    target = Target(2)
    amount = torch.full((6,), 0.9)
    assert target(amount, 1.0) == 0  # both begin at 0
    with torch.no_grad():
        target.linear.fill_(2.0), target.square.fill_(3.0)
    excess = 0.9 - 2 / 6
    assert target(amount, 1.0).item() == pytest.approx(2 * excess + 3 * excess**2)
    assert target(amount, 0.0).item() == pytest.approx(
        2 * -0.1 + 3 * 0.01
    )  # at the start the target is all heads


# the binary decision


@pytest.mark.parametrize("ends", [(-0.1, 1.1), (-0.3, 1.05)])
def test_voitas_rule_keeps_gates_that_are_likelier_one_than_zero(ends):
    """Counted in draws of the distribution itself, on both sides of the place where the two are even."""
    law = HardConcrete(gamma=ends[0], zeta=ends[1])
    generator = torch.Generator().manual_seed(0)
    noise = (
        torch.empty(200_000, dtype=torch.float64)
        .uniform_(1e-6, 1 - 1e-6, generator=generator)
        .logit()
    )
    for log_alpha in (-0.6, -0.2, 0.2, 0.6):
        drawn = law.sample(torch.tensor(log_alpha, dtype=torch.float64), noise)
        ones, zeros = (drawn == 1).double().mean().item(), (drawn == 0).double().mean().item()
        assert abs(ones - zeros) > 0.01  # far above the noise of so many draws
        assert (law.p_open(torch.tensor(log_alpha)).item() > law.even) == (ones > zeros)
        assert law.binned(torch.tensor([log_alpha]), bins=1)[0, -1].item() == pytest.approx(
            ones, abs=0.005
        )
    assert HardConcrete().even == pytest.approx(0.688, abs=1e-3)


def test_kept_is_by_threshold_or_by_number_with_ties_to_the_lower_index():
    gates = with_gates(tiny_vit())
    set_log_alpha(gates, [1.0, -3.0, 1.0, 0.0, -2.0, 1.0])
    assert gates.kept().tolist() == [
        True,
        False,
        True,
        True,
        False,
        True,
    ]  # P > 0.5 from log_alpha > -0.79
    assert gates.kept(keep=2).tolist() == [True, False, True, False, False, False]
    assert gates.kept(threshold=0.8).tolist() == [True, False, True, False, False, True]
    with gates.fixed(gates.kept().float()):
        assert gates.effective().tolist() == [1, 0, 1, 1, 0, 1]
    assert gates.effective().tolist() != [1, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(("keep", "nearest"), [(7, 6), (100, 6), (0, 1), (-2, 1)])
def test_a_number_that_cannot_be_kept_names_the_nearest(keep, nearest):
    gates = with_gates(tiny_vit())
    with pytest.raises(
        mhprobe.UserError, match=rf"1 to 6 heads.*got {keep}.*nearest is {nearest}\."
    ):
        gates.kept(keep=keep)
    with pytest.raises(mhprobe.UserError, match=rf"nearest is {nearest}\."):
        Target(keep)(gates.amount(), 0.0)


def test_gates_that_are_no_number_name_their_head():
    gates = with_gates(tiny_vit())
    set_log_alpha(gates, [1, 1, 1, 1, math.nan, 1])
    with pytest.raises(mhprobe.UserError, match=r"head 1 of blocks\.1\.attn"):
        gates.kept()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Weighted(-1),
        lambda: Weighted(math.nan),
        lambda: Weighted(1, 0.7, 0.6),
        lambda: Target(2, begin=-0.1),
        lambda: Target(2, lr=0),
    ],
)
def test_penalties_that_cannot_work_are_refused(make):
    with pytest.raises(mhprobe.UserError, match=r"^(weight|begin|lr): "):
        make()


def test_masking_a_head_leaves_the_learned_gates_of_the_others_as_they_are():
    model = tiny_vit()
    gates = mhprobe.attach(model, make=HardConcreteGates)
    with torch.no_grad():
        gates.log_alpha.copy_(torch.linspace(-1, 1, gates.layout.num_heads))
    learned, mask = gates.effective().detach().clone(), gates.layout.mask([1])
    with gates.masked(mask):
        torch.testing.assert_close(gates.effective(), learned.masked_fill(mask, 0), rtol=0, atol=0)
    assert torch.equal(gates.effective(), learned)
    assert ((learned > 0) & (learned < 1)).sum() > 1  # gates that would show it


@pytest.mark.parametrize("units", [{"head", "neuron"}, {"head"}])
def test_learned_gates_go_on_learning_when_neurons_join_or_a_projection_is_replaced(units):
    """They once became fixed ones without a word: an optimizer made afterwards trained no gate."""
    model = tiny_vit()
    gates, images = (
        with_gates(model, beta=2 / 3, start=10, low=-4.0, high=4.6),
        images_for(model, 2),
    )
    set_log_alpha(gates, [*LOG_ALPHAS, 0.3])
    gates.close(gates.layout.mask([4]))
    expected = model(images)
    if units == {"head"}:
        model.blocks[0].attn.proj = copy.deepcopy(model.blocks[0].attn.proj)
        model.blocks[0].attn.proj._forward_pre_hooks.clear()
    joined = mhprobe.attach(model, units=units)
    assert type(joined) is HardConcreteGates and joined is find_gates(model) is not gates
    assert joined.log_alpha.requires_grad and not joined.values.requires_grad
    assert joined.log_alpha[:6].tolist() == gates.log_alpha.tolist()
    assert all(value == torch.tensor(4.6) for value in joined.log_alpha[6:])
    assert (joined.distribution, joined.low, joined.high) == (
        gates.distribution,
        gates.low,
        gates.high,
    )
    assert joined.effective()[:6].equal(gates.effective()) and (joined.effective()[6:] == 1).all()
    if units != {"head"}:
        assert torch.equal(model(images), expected)
    model.train()(images).sum().backward()
    assert (joined.log_alpha.grad != 0).any() and joined.noise.any()
    assert len(model._forward_pre_hooks) == 1  # one draw


def test_learnable_false_stops_what_hard_concrete_gates_learn():
    """It once froze the gates' values, which they never learn, and left log_alpha to the optimizer."""
    model = tiny_vit()
    gates = attach(model, make=HardConcreteGates)
    fixed = gates.values.requires_grad
    mhprobe.attach(model, learnable=False)
    assert not any(parameter.requires_grad for parameter in gates.parameters())
    joined = mhprobe.attach(model, units={"head", "neuron"})
    assert not any(parameter.requires_grad for parameter in joined.parameters())  # as they were
    mhprobe.attach(model, learnable=True)
    assert joined.log_alpha.requires_grad and joined.values.requires_grad == fixed
    assert not mhprobe.attach(model, learnable=False, units={"head"}).log_alpha.requires_grad


def test_plain_learnable_gates_keep_their_limits_when_neurons_join():
    model = tiny_vit()
    attach(model, make=lambda m, layout: HeadGates(m, layout, learnable=True, low=0.0, high=1.0))
    joined = mhprobe.attach(model, units={"head", "neuron"})
    assert joined.values.requires_grad and (joined.low, joined.high) == (0.0, 1.0)
    assert not mhprobe.attach(model, learnable=False, units={"head"}).values.requires_grad


def test_a_thread_that_fixes_learned_gates_waits_for_another_and_leaves_them_learned():
    gates, begun = with_gates(tiny_vit()), threading.Event()
    learned = gates.effective()

    def other():
        begun.set()
        with gates.fixed(torch.full((6,), 0.25)):
            return gates.effective()

    with ThreadPoolExecutor(1) as pool:
        with gates.fixed(torch.zeros(6)):
            waiting = pool.submit(other)
            begun.wait()
            time.sleep(0.2)
            assert not waiting.done()
        assert waiting.result().eq(0.25).all()
    set_log_alpha(gates, [0.0] * 6)
    assert gates.relaxed.all() and (gates.effective() < learned).all()


def test_gates_of_a_class_of_ones_own_stay_in_force_when_neurons_join():
    class Doubled(HeadGates):
        def factors(self, heads, training):
            return 2 * super().factors(heads, training)

    model = tiny_vit()
    attach(model, make=Doubled)
    expected = model(images_for(model, 2))
    assert mhprobe.attach(model, units={"head", "neuron"}).effective()[:6].tolist() == [2] * 6
    assert torch.equal(model(images_for(model, 2)), expected)
