"""What a head brings from one run into another, against hooks that patch one head at a time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import Donors, Patching
from mhprobe.measures.parts.hashing import image_numbers
from mhprobe.recording.patching import _Past, twin_images
from mhprobe.recording.replay import Replay
from mhprobe.recording.taps import Taps
from models import BUILDERS, images_for, labels_for, make_loud

COUNT = 6
EVERY = ("exact", "atp", "graddrop")


@pytest.fixture(params=BUILDERS, scope="module")
def model(request) -> nn.Module:
    """In float64, with heads that matter; its gates are closed, fractional and more than one."""
    model = BUILDERS[request.param]().double()
    make_loud(model, 0.2)
    values = mhprobe.attach(model).values
    with torch.no_grad():
        values.copy_(torch.linspace(0, 1.5, len(values)))
    return model


def images(model: nn.Module) -> Tensor:
    return images_for(model, COUNT, dtype=torch.float64)


def sites(model: nn.Module) -> list[tuple[str, int]]:
    return [(site.name, site.num_heads) for site in mhprobe.attach(model).layout.sites]


def taken(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad(), Taps(model, mhprobe.attach(model).layout, ()) as taps:
        model(x)
    return taps.heads


@pytest.mark.parametrize("widest", [1, 4, None])
def test_patched_logits_are_those_of_hooks(model, widest):
    x = images(model)
    theirs = taken(model, x.flip(0))
    masks = torch.eye(len(mhprobe.attach(model).values), dtype=torch.bool)
    found = Replay(model, torch.cat([masks, masks[:1]]), instead=theirs)(x, widest)
    assert torch.equal(found[0], found[-1])
    number = 0
    for (name, heads), heads_there in zip(sites(model), theirs, strict=True):
        for head in range(
            heads
        ):  # a hook that is added later stands behind the gate: patch in front of it
            expected = in_front_of_the_gate(model, x, name, heads, head, heads_there)
            torch.testing.assert_close(found[number], expected, rtol=1e-10, atol=1e-12)
            number += 1


@torch.no_grad()
def in_front_of_the_gate(
    model: nn.Module, x: Tensor, name: str, heads: int, head: int, theirs: Tensor
) -> Tensor:
    def swap(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        z = args[0].clone()
        part = slice(head * z.shape[-1] // heads, (head + 1) * z.shape[-1] // heads)
        z[..., part] = theirs[..., part]
        return (z,)

    handle = model.get_submodule(name).proj.register_forward_pre_hook(swap, prepend=True)
    logits = model(x)
    handle.remove()
    return logits


def test_several_heads_at_once_and_their_own_outputs(model):
    x = images(model)
    own = taken(model, x)
    masks = (
        torch.rand(5, len(mhprobe.attach(model).values), generator=torch.Generator().manual_seed(0))
        < 0.5
    )
    with torch.no_grad():
        whole = model(x)
    found = Replay(model, masks, instead=own)(x)
    torch.testing.assert_close(found, whole.expand_as(found), rtol=1e-10, atol=1e-12)
    there = Replay(model, torch.ones_like(masks[:1]), instead=taken(model, x.flip(0)))(x)
    assert not torch.allclose(there[0], whole, rtol=1e-3)


def patched(model: nn.Module, **options):
    need = Patching(estimates=EVERY, **options)
    x, labels = images(model), labels_for(COUNT)
    return mhprobe.record(model, x, labels, {need}).patched[need], twin_images(
        x, labels, None, need
    )


@pytest.mark.parametrize("metric", ["logit_difference", "log_likelihood"])
@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_exact_effects_go_from_one_run_towards_the_other(model, direction, metric):
    found, made = patched(model, corrupt="noise", direction=direction, metric=metric)
    x, labels = images(model), labels_for(COUNT)
    base, source = (made.images, x) if direction == "denoising" else (x, made.images)
    with torch.no_grad():
        logits = {"clean": model(x), "corrupt": model(made.images)}

    rival = logits["corrupt"].scatter(1, labels[:, None], -torch.inf).argmax(1)

    def score(logits: Tensor) -> Tensor:
        rows = torch.arange(COUNT)
        if metric == "log_likelihood":
            return logits.log_softmax(1)[rows, labels]
        return logits[rows, labels] - logits[rows, rival]

    torch.testing.assert_close(found.clean, score(logits["clean"]))
    torch.testing.assert_close(found.corrupt, score(logits["corrupt"]))
    before = found.corrupt if direction == "denoising" else found.clean
    sign = 1 if direction == "denoising" else -1
    number = 0
    for (name, heads), theirs in zip(sites(model), taken(model, source), strict=True):
        for head in range(heads):
            after = score(in_front_of_the_gate(model, base, name, heads, head, theirs))
            torch.testing.assert_close(
                found.effect["exact"][:, number], sign * (after - before), rtol=1e-8, atol=1e-10
            )
            number += 1


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_the_label_is_held_against_the_class_of_the_donor(model, direction):
    found, made = patched(model, corrupt="class", direction=direction)
    x, labels, rows = images(model), labels_for(COUNT), torch.arange(COUNT)
    with torch.no_grad():
        clean, corrupt = model(x), model(made.images)
    assert made.paired.all()
    for logits, metric in ((clean, found.clean), (corrupt, found.corrupt)):
        torch.testing.assert_close(metric, logits[rows, labels] - logits[rows, made.label])
    rival = corrupt.scatter(1, labels[:, None], -torch.inf).argmax(1)
    assert (rival != made.label).any()  # the largest other class would be another number


def test_a_closed_head_brings_nothing(model):
    found, _ = patched(model, corrupt="noise")
    assert mhprobe.attach(model).effective()[0] == 0
    for name in EVERY:
        assert found.effect[name][:, 0].abs().max() < 1e-12, name
        assert found.effect[name][:, 1:].abs().min() > 0, name


def test_atp_is_the_slope_of_exact_patching(model):
    """Where the runs hardly differ, the first-order term is all there is."""
    near, _ = patched(model, corrupt="noise", noise=1e-5)
    torch.testing.assert_close(near.effect["atp"], near.effect["exact"], rtol=1e-2, atol=1e-12)
    far, _ = patched(model, corrupt="noise", noise=1.0)
    assert not torch.allclose(far.effect["atp"], far.effect["exact"], rtol=1e-2)


@pytest.mark.parametrize("corrupt", ["class", "noise"])
def test_inside_inference_mode_it_is_the_same(model, corrupt):
    expected, _ = patched(model, corrupt=corrupt)
    with torch.inference_mode():
        found, _ = patched(model, corrupt=corrupt)
    for name in EVERY:
        assert torch.equal(found.effect[name], expected.effect[name])


def test_graddrop_averages_sizes_of_slopes_with_one_block_held_at_a_time(model):
    found, made = patched(model, corrupt="noise")
    x, labels = images(model), labels_for(COUNT)
    layout, gates = mhprobe.attach(model).layout, mhprobe.attach(model).effective()
    clean, corrupt = taken(model, x), taken(model, made.images)
    with torch.no_grad():
        rival = model(made.images).scatter(1, labels[:, None], -torch.inf).argmax(1)
    sizes = []
    for block in layout.blocks:
        held = model.get_submodule(block.name)
        handle = held.register_forward_hook(
            lambda _m, args, out: args[0] + (out - args[0]).detach()
        )
        with Taps(model, layout, {"grad"}) as taps:
            logits = model(made.images)
            rows = torch.arange(COUNT)
            slopes, _ = taps.slopes((logits[rows, labels] - logits[rows, rival]).sum())
        handle.remove()
        parts = []
        for number, site in enumerate(layout.sites):
            change = (clean[number] - corrupt[number]) * slopes[number]
            per_head = change.reshape(COUNT, -1, site.num_heads, site.head_dim).sum((1, 3))
            parts.append(per_head * gates[layout.span(number)])
        sizes.append(torch.cat(parts, 1).abs())
    expected = torch.stack(sizes).sum(0) / (len(layout.blocks) - 1)
    torch.testing.assert_close(found.effect["graddrop"], expected, rtol=1e-8, atol=1e-12)


def test_a_slope_that_a_block_cancels_is_seen_past_the_block():
    """What is read is written back with the opposite sign: no slope is left, but there is one past the block."""
    x, held = torch.zeros(1, requires_grad=True), SimpleNamespace(block=None)
    after = _Past.apply(x, x + (-x), 1, held)
    slopes = []
    for held.block in (None, 0, 1):
        slopes.append(torch.autograd.grad(after.sum(), x, retain_graph=True)[0].item())
    assert slopes == [0, 0, 1]


# pairs


def test_twins_hang_on_the_image_alone():
    x, labels = (
        torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(0)),
        torch.arange(9) % 3,
    )
    donors = Donors(x.flip(0), labels.flip(0), image_numbers(x.flip(0)))
    for corrupt in ("class", "noise"):
        need = Patching(corrupt=corrupt, donors=donors)
        whole = twin_images(x, labels, None, need).images
        alone = torch.cat(
            [twin_images(x[i : i + 1], labels[i : i + 1], None, need).images for i in range(9)]
        )
        assert torch.equal(whole, alone)
        assert not torch.equal(
            whole,
            twin_images(x, labels, None, Patching(corrupt=corrupt, donors=donors, seed=1)).images,
        )


def test_a_donor_is_of_another_class_and_without_one_there_is_no_pair():
    x, labels = torch.randn(9, 3, 8, 8), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    made = twin_images(x, labels, None, Patching())
    assert (made.label != labels).all() and made.paired.all()
    for image, label in zip(made.images, made.label, strict=True):
        assert labels[(x == image).flatten(1).all(1)] == label
    made = twin_images(x, torch.zeros(9, dtype=torch.long), None, Patching())
    assert not made.paired.any() and torch.equal(made.images, x)


def test_noise_has_the_size_that_was_asked_for():
    x = 3 * torch.randn(4, 3, 32, 32)
    made = twin_images(x, labels_for(4), None, Patching(corrupt="noise", noise=0.5))
    ratio = (made.images - x).flatten(1).std(1) / x.flatten(1).std(1)
    assert (ratio - 0.5).abs().max() < 0.05  # of 3,072 draws


def test_an_object_is_painted_in_the_ground_around_it():
    x = torch.randn(3, 3, 4, 4)
    objects = torch.zeros(3, 4, 4, dtype=torch.long)
    objects[0, :2] = 1
    objects[2] = 2
    made = twin_images(x, labels_for(3), objects, Patching(corrupt="object"))
    assert made.paired.tolist() == [True, False, False]  # nothing to remove, nothing left
    assert torch.equal(made.images[0, :, 2:], x[0, :, 2:]) and torch.equal(made.images[1], x[1])
    expected = x[0, :, 2:].mean((1, 2))[:, None, None].expand(3, 2, 4)
    torch.testing.assert_close(made.images[0, :, :2], expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"corrupt": "objects"}, "corrupt"),
        ({"corrupt": "object"}, "needs object masks"),
        ({"direction": "back"}, "direction"),
        ({"metric": "accuracy"}, "metric"),
        ({"estimates": ("all",)}, "estimates"),
    ],
)
def test_what_cannot_be_done_is_refused(options, words):
    model = BUILDERS["vit"]()
    mhprobe.attach(model)
    with pytest.raises(UserError, match=words):
        mhprobe.record(model, images_for(model, 2), labels_for(2), {Patching(**options)})
    with pytest.raises(UserError, match="needs labels"):
        mhprobe.record(model, images_for(model, 2), None, {Patching()})


def test_a_wrapper_that_runs_its_backbone_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = BUILDERS["vit"]()

        def forward(self, x: Tensor) -> Tensor:
            return self.backbone(x) + self.backbone(x.flip(-1))

    model = Twice()
    mhprobe.attach(model.backbone)
    with pytest.raises(UserError, match="runs its backbone twice or more"):
        mhprobe.record(
            model, images_for(model.backbone, 2), labels_for(2), {Patching(corrupt="noise")}
        )
