"""Heads whose part is known are found: needed, idle, harmful; and the model is left as it was."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

import mhprobe
import mhprobe.studies.causal
import runs
from mhprobe.data.batch import Batch
from mhprobe.framework.run import image_data
from mhprobe.lab.papers.causal_gates import ROLES, Fit, causal_gates, causal_roles, roles_by_gates
from models import BUILDERS, images_for, labels_for, tiny_vit


class Toy(torch.nn.Module):
    """A ViT whose two logits depend on its gates alone, head by head, as told."""

    def __init__(self, worth: list[float]) -> None:
        super().__init__()
        self.vit = tiny_vit()
        self.gates = [mhprobe.attach(self.vit)]  # in a list: no child
        self.worth = torch.tensor(worth)

    def forward(self, images):
        margin = (self.gates[0].values * self.worth).sum().expand(len(images))
        return torch.stack([margin, torch.zeros_like(margin)], 1)


def test_known_parts_are_found():
    toy = Toy([0.6, 0.0, -0.6, 0.6, 0.0, -0.6])
    images, labels = images_for(toy.vit, 4), torch.zeros(4, dtype=torch.long)
    found = causal_gates(
        toy, lambda epoch: [(images, labels)], Fit(weight=0.01, steps=120, start_steps=20)
    )
    assert [ROLES[i] for i in found["role"]] == ["necessary", "irrelevant", "interfering"] * 2
    assert torch.equal(found["facilitation"], found["plus"])
    torch.testing.assert_close(found["interference"], 1 - found["minus"])
    torch.testing.assert_close(found["irrelevance"], found["minus"] * (1 - found["plus"]))


def test_without_a_price_nothing_is_told_apart():
    """Negative control: an idle head stays where it began, so the penalty is what moves it."""
    toy = Toy([0.6, 0.0, -0.6, 0.6, 0.0, -0.6])
    images, labels = images_for(toy.vit, 4), torch.zeros(4, dtype=torch.long)
    found = causal_gates(
        toy, lambda epoch: [(images, labels)], Fit(weight=1e-12, steps=60, start_steps=20)
    )
    torch.testing.assert_close(found["plus"], found["minus"], atol=0.02, rtol=0)
    assert found["plus"][1] > 0.8


def test_heads_that_are_off_stay_off_and_learned_factors_stay():
    toy = Toy([0.6, 0.6, 0.6, 0.6, 0.0, -0.6])
    factors = torch.tensor([0.0, 0.5, 1.0, 1.0, 1.0, 1.0])
    with torch.no_grad():
        toy.gates[0].values.copy_(factors)
    seen = []

    class Watched(Toy):
        def forward(self, images):
            seen.append(self.gates[0].values.detach().clone())
            return super().forward(images)

    toy.__class__ = Watched
    images, labels = images_for(toy.vit, 4), torch.zeros(4, dtype=torch.long)
    found = causal_gates(
        toy, lambda epoch: [(images, labels)], Fit(weight=0.01, steps=120, start_steps=20)
    )
    most = torch.stack(seen).amax(0)
    assert most[0] == 0 and most[1] <= 0.5 and most[2] > 0.9
    assert ROLES[found["role"][0]] == "closed" and found["facilitation"][0].isnan()
    assert [ROLES[i] for i in found["role"][2:]] == [
        "necessary",
        "necessary",
        "irrelevant",
        "interfering",
    ]
    assert torch.equal(toy.gates[0].values, factors)


def material_of(toy: Toy, train: Batch, test: Batch, at_once: int) -> SimpleNamespace:
    """What ``causal_roles`` looks at; data give so many images at once."""

    def batches(split, device, images):
        whole = {"train": train, "test": test}[split]
        for part in images.split(at_once):
            yield Batch(whole.images[part], whole.labels[part], part, whole.valid[part])

    toy.device = torch.device("cpu")
    sizes = {"train": len(train.images), "test": len(test.images)}
    data = SimpleNamespace(sizes=sizes, batches=batches, eval_batch_size=len(train.images))
    kept = dict(walk=lambda: lambda: [test], kept=lambda about, find: find(), seed=0, first=False)
    return SimpleNamespace(model=toy, data=data, **kept)


def test_roles_are_of_training_images_and_accuracies_without_the_other_heads():
    """Padding says the opposite of every image, and would leave no head with a role."""
    toy = Toy([0.6, 0.0, -0.6, 0.6, 0.0, -0.6])
    images, index, wrong = images_for(toy.vit, 8), torch.arange(8), torch.arange(8) % 2
    train = Batch(images, wrong, index, wrong == 0)
    test = Batch(
        images[:4], torch.zeros(4, dtype=torch.long), index[:4], torch.ones(4, dtype=torch.bool)
    )
    options = dict(weight=0.01, steps=120, start_steps=20, lr=0.2, threshold=0.5)
    found = causal_roles(material_of(toy, train, test, 8), **options)["causal"]
    assert [row["role"] for row in found.table.dicts()] == [
        "necessary",
        "irrelevant",
        "interfering",
    ] * 2
    assert (
        found.metrics["causal/accuracy_necessary"]
        == found.metrics["causal/accuracy_not_interfering"]
        == 1
    )


def test_a_step_sees_its_images_however_many_of_them_data_give_at_once():
    images, index, on = (
        images_for(Toy([0.6] * 6).vit, 12),
        torch.arange(12),
        torch.ones(12, dtype=torch.bool),
    )
    batch = Batch(images, index % 2, index, on)

    def gates(batch_size: int, at_once: int) -> list:
        toy = Toy([0.6, 0.0, -0.6, 0.6, 0.0, -0.6])
        options = dict(
            batch_size=batch_size, steps=5, start_steps=2, weight=0.01, lr=0.2, threshold=0.5
        )
        rows = causal_roles(material_of(toy, batch, batch, at_once), **options)[
            "causal"
        ].table.dicts()
        return [row["start"] for row in rows]

    assert (
        gates(8, 8) == gates(8, 3) != gates(4, 3)
    )  # the control: steps of other images have other gates
    with pytest.raises(
        mhprobe.UserError, match=r"^batch_size: expected a whole number of at least 1, got 0"
    ):
        gates(0, 3)


def test_a_step_of_many_images_takes_the_memory_of_a_few_and_has_the_slope_of_all():
    images, labels, most = images_for(tiny_vit(), 8), torch.arange(8) % 2, []

    class Counting(Toy):
        def forward(self, images):
            most.append(len(images))
            return super().forward(images)

    def starts(labels, **more) -> torch.Tensor:
        most.clear()
        options = Fit(weight=0.01, steps=5, start_steps=2)
        return causal_gates(
            Counting([0.6, 0.0, -0.6] * 2), lambda epoch: [(images, labels)], options, **more
        )["start"]

    whole = starts(labels)
    assert max(most) == 8
    torch.testing.assert_close(
        starts(labels, at_once=3), whole, rtol=0, atol=1e-6
    )  # float32 sums in another order
    assert max(most) == 3
    uneven = torch.tensor(
        [0, 0, 0, 0, 0, 0, 1, 1]
    )  # its last part weighs less: a mean of means would tell
    torch.testing.assert_close(starts(uneven, at_once=6), starts(uneven), rtol=0, atol=1e-6)
    assert (starts(uneven, at_once=6) - whole).abs().max() > 1e-3


def test_roles_from_the_two_gates():
    plus, minus = torch.tensor([0.9, 0.1, 0.1, 0.9]), torch.tensor([0.9, 0.9, 0.1, 0.1])
    assert roles_by_gates(plus, minus).tolist() == [0, 1, 2, 3]
    assert roles_by_gates(plus, minus, threshold=0.95).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_the_model_is_left_as_it_was_and_the_answer_repeats(build):
    model = build()
    gates = mhprobe.attach(model)
    with torch.no_grad():
        gates.values[1] = 0.5
    model.train()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    values = gates.values.clone()
    batch = (images_for(model, 4), labels_for(4))
    options = dict(weight=0.01, steps=4, start_steps=2)
    with torch.inference_mode():  # as Lightning tests
        found = [causal_gates(model, lambda epoch: [batch], Fit(**options)) for _ in range(2)]
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    assert torch.equal(gates.values, values) and not gates.values.requires_grad and model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in model.parameters()
    )


@pytest.mark.parametrize(
    "options",
    [
        {"weight": 0},
        {"weight": math.nan},
        {"lr": -1},
        {"steps": 0},
        {"start_steps": -1},
        {"threshold": 1.0},
    ],
)
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(mhprobe.UserError, match=rf"^{next(iter(options))}: "):
        causal_gates(Toy([0.0] * 6).vit, lambda epoch: [], Fit(**options))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("weight=0.0", "a number above 0"),
        ("threshold=1.0", "a number above 0 and below 1"),
        ("steps=0", "a whole number of at least 1"),
        ("batch_size=0", "a whole number of at least 1"),
    ],
)
def test_the_command_refuses_the_same_before_images_are_read(
    option, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(image_data, "build_images", lambda *_: pytest.fail("images were read"))
    name, value = option.split("=")
    with pytest.raises(
        mhprobe.UserError, match=rf"^causal\.{name}: expected {expected}, got {value}\.$"
    ):
        mhprobe.studies.causal.run(
            runs.config("studies.causal", tmp_path, f"causal.{option}"), tmp_path / "run"
        )


def test_no_images_are_refused():
    with pytest.raises(mhprobe.UserError, match="no images"):
        causal_gates(Toy([0.0] * 6).vit, lambda epoch: [])


def test_the_learning_rate_falls_to_nothing(monkeypatch):
    """A line from lr before the first step to 0 behind the last, as the docstring says."""
    rates = []

    class Noting(torch.optim.Adam):
        def step(self, *args, **kwargs):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "Adam", Noting)
    model = tiny_vit()
    mhprobe.attach(model)
    batch = (images_for(model, 4), labels_for(4))
    causal_gates(model, lambda epoch: [batch], Fit(weight=0.01, steps=4, start_steps=0, lr=0.2))
    assert rates == pytest.approx([0.2, 0.15, 0.1, 0.05] * 2)
