"""Plain mistakes in a notebook: a line that says what was expected, and a model as it was before."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import mhprobe
from mhprobe.gates import find_gates
from mhprobe.measures import AblationDelta, GateImportance
from mhprobe.recording.outputs import say_probabilities

SIZES = dict(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **SIZES).eval()


def batch(count: int = 6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 16, 16, generator=generator), torch.arange(count) % 4


MISTAKES = {
    "attach learnable": (lambda model: mhprobe.attach(model, learnable=3), r"attach: learnable"),
    "attach make": (
        lambda model: mhprobe.attach(model, make=dict),
        r"attach: make: expected a function",
    ),
    "attach make of nothing": (
        lambda model: mhprobe.attach(model, make=7),
        r"attach: make: expected",
    ),
    "measure batch": (
        lambda model: mhprobe.measure(model, [batch()], [GateImportance], batch=None),
        r"measure: batch: expected a function",
    ),
    "measure no model": (
        lambda model: mhprobe.measure(None, [batch()], [GateImportance]),
        r"measure: expected a model",
    ),
    "curve no model": (
        lambda model: mhprobe.masking_curve("vit", [batch()]),
        r"masking_curve: expected a model",
    ),
    "push nothing": (
        lambda model: mhprobe.push_to_hub(None, "a/b"),
        r"push_to_hub: expected a run's folder",
    ),
    "load a long name": (lambda model: mhprobe.load("x" * 5000), r"load: path: expected"),
    "load a name that is too long for a file": (
        lambda model: mhprobe.load("x" * 300),
        r"cannot be read",
    ),
    "plot nothing": (lambda model: mhprobe.plot.heads(None), r"plot.heads: values: expected"),
    "plot maps of nothing": (
        lambda model: mhprobe.plot.maps(None, torch.rand(1, 1, 2, 2)),
        r"plot.maps: images",
    ),
    "look at three": (lambda model: mhprobe.look(model, 3), r"look: folder: expected a folder"),
    "look at bytes": (
        lambda model: mhprobe.look(model, b"photos"),
        r"look: folder: expected a folder",
    ),
    "look at a list": (
        lambda model: mhprobe.look(model, ["photos"]),
        r"look: folder: expected a folder",
    ),
    "look first": (
        lambda model: mhprobe.look(model, ".", first=None),
        r"look: first: expected a function",
    ),
    "look untrained": (lambda model: mhprobe.look(model, ".", untrained=3), r"untrained is one of"),
    "record index": (
        lambda model: (
            mhprobe.attach(model),
            mhprobe.record(model, *batch(), index=torch.arange(3)),
        ),
        r"record: index: expected one for each of 6 images",
    ),
    "record valid": (
        lambda model: (
            mhprobe.attach(model),
            mhprobe.record(model, *batch(), valid=torch.ones(3, dtype=torch.bool)),
        ),
        r"record: valid: expected one for each of 6 images",
    ),
    "sparse images": (
        lambda model: mhprobe.measure(
            model, [(batch()[0].to_sparse(), batch()[1])], [GateImportance]
        ),
        r"expected a dense tensor",
    ),
    "live labels": (
        lambda model: live(model, torch.full((2,), 99)),
        r"live: labels: expected 0 to 3",
    ),
    "live negative labels": (
        lambda model: live(model, torch.tensor([0, -1])),
        r"live: labels: expected 0 to 3",
    ),
    "live float labels": (
        lambda model: live(model, torch.zeros(2)),
        r"live: labels: expected one for each",
    ),
    "live column": (
        lambda model: live(model, torch.zeros(2, 1, dtype=torch.long)),
        r"live: labels: expected one for each",
    ),
    "live list": (lambda model: live(model, [0, 1]), r"live: labels: expected one for each"),
    "live no images": (
        lambda model: mhprobe.live(
            model, torch.zeros(0, 3, 16, 16, dtype=torch.uint8), torch.zeros(0).long()
        ),
        r"at least one",
    ),
    "a list of models": (
        lambda model: mhprobe.measure(nn.ModuleList([model]), [batch()], [GateImportance]),
        r"ModuleList",
    ),
}


def test_a_curve_of_a_model_without_gradients_says_what_a_measure_says():
    with torch.inference_mode():
        model = timm.create_model("vit_tiny_patch16_224", **SIZES).eval()
    for call in (
        lambda: mhprobe.masking_curve(model, [batch()], units="layer"),
        lambda: mhprobe.measure(model, [batch()], [GateImportance]),
    ):
        with pytest.raises(mhprobe.UserError, match=r"was made inside torch\.inference_mode"):
            call()


def live(model, labels):
    return mhprobe.live(model, torch.zeros(2, 3, 16, 16, dtype=torch.uint8), labels)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_was_expected(model, mistake):
    call, says = MISTAKES[mistake]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(mhprobe.UserError, match=says) as error:
        call(model)
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_one_block_at_two_places_is_refused_by_everything(model):
    model.blocks[1] = model.blocks[0]
    for call in (
        lambda: mhprobe.attach(model),
        lambda: mhprobe.measure(model, [batch()], [GateImportance]),
        lambda: mhprobe.masking_curve(model, [batch()], units="layer"),
    ):
        with pytest.raises(
            mhprobe.UserError, match=r"blocks\.1\.attn is the same module as blocks\.0"
        ):
            call()
    assert find_gates(model) is None


class Replaces:
    """A hook that hands on something else than the heads gave."""

    def __call__(self, module, args):
        return (torch.ones_like(args[0]),)


@pytest.mark.parametrize("first", [True, False])
def test_a_hook_that_replaces_what_the_heads_give_is_refused_by_name(model, first):
    """Importance once said .0074 of heads whose masking changed no output."""
    gates = mhprobe.attach(model)
    handle = model.blocks[0].attn.proj.register_forward_pre_hook(Replaces(), prepend=first)
    with pytest.raises(mhprobe.UserError, match=r"blocks\.0\.attn: the forward pre-hook Replaces"):
        mhprobe.measure(model, [batch()], [GateImportance])
    with pytest.raises(mhprobe.UserError, match=r"blocks\.0\.attn: the forward pre-hook Replaces"):
        mhprobe.masking_curve(model, [batch()], units="layer")
    handle.remove()
    expected = mhprobe.measure(model, [batch()], [GateImportance, AblationDelta])
    # one that only looks changes nothing
    seen: list[torch.Size] = []
    model.blocks[0].attn.proj.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    found = mhprobe.measure(model, [batch()], [GateImportance, AblationDelta])
    assert seen and all(torch.equal(found[name], values) for name, values in expected.items())
    assert mhprobe.masking_curve(model, [batch()], units="layer")
    assert mhprobe.attach(model) is gates


class Softmax(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images):
        return self.net(images).softmax(1)


@pytest.mark.parametrize("wrapped", [True, False])
def test_probabilities_in_the_place_of_logits_are_told_once(model, wrapped, caplog):
    net = Softmax(model) if wrapped else model
    for _ in range(2):
        mhprobe.measure(net, [batch(), batch()], [GateImportance])
    told = [text for text in caplog.messages if "as probabilities (a guess)" in text]
    assert len(told) == wrapped


def test_outputs_of_a_sigmoid_are_told_and_few_numbers_are_not():
    logits = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    assert "as after a sigmoid (a guess)" in say_probabilities(logits.sigmoid())
    assert "sum to 1" in say_probabilities(logits.softmax(1))
    assert not say_probabilities(logits) and not say_probabilities(logits[:2].sigmoid())


@pytest.mark.parametrize("path", [None, 3, ["a"]])
def test_what_is_no_path_of_a_pruned_model_is_answered_in_a_line(path):
    with pytest.raises(mhprobe.UserError, match="load_pruned: path: expected a file"):
        mhprobe.load_pruned(path)


@pytest.mark.parametrize(
    ("scale", "says"),
    [
        (lambda x: x, None),  # normalised, as they should be
        (lambda x: x.sigmoid(), "pixels from 0 to 1 that were not normalised"),
        (lambda x: (255 * x.sigmoid()).round(), "pixels from 0 to 255 or more"),
        (lambda x: (4095 * x.sigmoid()).round(), "pixels from 0 to 255 or more"),
    ],
)
def test_images_that_were_not_normalised_are_told_once_for_a_call(model, scale, says, caplog):
    images, labels = batch()
    loader = [(scale(images), labels), (scale(images), labels)]
    mhprobe.measure(model, loader, [GateImportance])
    assert len([text for text in caplog.messages if says and says in text]) == (says is not None)
    mhprobe.masking_curve(model, loader, units="layer")
    assert len([text for text in caplog.messages if says and says in text]) == 2 * (
        says is not None
    )
    assert says is not None or not [text for text in caplog.messages if "normalised" in text]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
def test_maps_over_images_of_any_channels_are_drawn_and_say_what_is_shown(channels):
    figure = mhprobe.plot.maps(torch.randn(1, channels, 16, 16), torch.rand(1, 1, 4, 4))
    title = {2: "mean of 2 channels, grey", 4: "channels 1 to 3 of 4", 13: "channels 1 to 3 of 13"}
    texts = " ".join(
        text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))
    )
    assert title.get(channels, "image") in texts
    assert ("channels" in texts) == (channels in title)


@pytest.mark.parametrize("learned", [True, False])
def test_gates_follow_a_network_that_was_given_another_input_size(model, learned):
    gates = mhprobe.attach(model, learnable=learned)
    with torch.no_grad():
        gates.values[1] = 0.5
    model.set_input_size((16, 32))
    images = torch.randn(2, 3, 16, 32)
    with pytest.raises(mhprobe.UserError, match=r"input size was changed after attach\(\)"):
        mhprobe.record(model, images, torch.tensor([0, 1]))
    seen = mhprobe.attention(model, images)
    assert seen.shape[2:] == (2, 4)
    new = mhprobe.attach(model)
    assert new.values[1] == 0.5 and new.values.requires_grad == learned
    assert mhprobe.attach(model) is new and new.layout.sites[0].token_grid == (2, 4)
    found = mhprobe.measure(model, [(images, torch.tensor([0, 1]))], [GateImportance])
    assert found["gate_importance"].shape == (6,)


def test_one_projection_of_two_blocks_is_refused_for_that(model):
    """It was called a backbone that runs twice."""
    model.blocks[1].attn.proj = model.blocks[0].attn.proj
    for call in (
        lambda: mhprobe.attach(model),
        lambda: mhprobe.measure(model, [batch()], [GateImportance]),
    ):
        with pytest.raises(mhprobe.UserError, match=r"blocks\.1\.attn has the same output proj"):
            call()
    assert find_gates(model) is None


def test_blocks_that_share_what_comes_before_the_heads_are_measured(model):
    """Negative control."""
    model.blocks[1].attn.qkv = model.blocks[0].attn.qkv
    assert len(mhprobe.attach(model).values) == 6


@pytest.mark.parametrize(("part", "named"), [("blocks.1", r"blocks\.1\.norm1"), ("head", "head")])
def test_weights_of_two_types_are_named(model, part, named):
    model.get_submodule(part).half()
    for call in (
        lambda: mhprobe.measure(model, [batch()], [GateImportance]),
        lambda: mhprobe.masking_curve(model, [batch()], units="layer"),
    ):
        with pytest.raises(
            mhprobe.UserError, match=rf"cls_token is float32, {named} is float16.*model\.float\(\)"
        ):
            call()


def test_weights_of_two_types_that_fit_together_are_measured(model):
    """Negative control: a network that casts by itself runs, and nothing is said."""
    model.head.double()
    model.head.register_forward_pre_hook(lambda module, args: (args[0].double(),))
    assert mhprobe.masking_curve(model, [batch()], units="layer")
