"""Models that give back several tensors: which one is taken for the logits, and that it is said."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.recording.outputs import logits_of, taking
from models import images_for, labels_for, make_loud, tiny_vit

COUNT = 12
Named = collections.namedtuple("Named", ["embedding", "scores"])


class Several(nn.Module):
    """A backbone without a classifier and a layer of 5 classes; ``give`` makes the output of both."""

    def __init__(self, give):
        super().__init__()
        self.net, self.fc, self.give = tiny_vit(num_classes=0), nn.Linear(24, 5), give
        make_loud(self, 0.3)

    def forward(self, x):
        tokens = self.net.forward_features(x)
        features = self.net.forward_head(tokens)
        return self.give(tokens, features, self.fc(features))


def curve(give, **options):
    model = Several(give).eval()
    images = images_for(model.net, COUNT)
    return mhprobe.masking_curve(
        model, [(images, labels_for(COUNT))], units="layer", steps=1, **options
    )


def importance(give, **options):
    model = Several(give).eval()
    loader = [(images_for(model.net, COUNT), labels_for(COUNT))]
    return mhprobe.measure(model, loader, [mhprobe.measures.GateImportance], **options)[
        "gate_importance"
    ]


FORMS = {
    "pair": lambda t, f, y: (f, y),
    "tokens": lambda t, f, y: (t, y),
    "list": lambda t, f, y: [f, t, y],
    "named": lambda t, f, y: Named(f, y),
    "dict": lambda t, f, y: {"embedding": f, "scores": y},
    "nested": lambda t, f, y: (f, {"tokens": t, "classes": y}),
}


@pytest.mark.parametrize("give", FORMS.values(), ids=FORMS)
def test_the_output_as_wide_as_the_classifier_is_taken_wherever_it_stands(give, caplog):
    alone = lambda t, f, y: y  # noqa: E731
    assert curve(give)[0]["loss"] == curve(alone)[0]["loss"]
    assert torch.equal(importance(give), importance(alone))
    said = [record.message for record in caplog.records if "taken for the logits" in record.message]
    assert len(said) == 2 and "(B, 5)" in said[0]  # once for each of the two models with several


def test_one_tensor_and_an_output_of_a_known_name_need_no_word(caplog):
    for give in (lambda t, f, y: y, lambda t, f, y: {"x": f, "logits": y}):
        curve(give)
    assert not caplog.records


def test_outputs_that_could_each_be_the_logits_are_refused_until_one_is_named():
    twice = lambda t, f, y: (y, 2 * y)  # noqa: E731
    for call in (curve, importance):
        with pytest.raises(
            mhprobe.UserError, match=r"several outputs: 0 \(12, 5\), 1 .* output=1 of mhprobe"
        ):
            call(twice)
    alone, double = curve(lambda t, f, y: y)[0], curve(lambda t, f, y: 2 * y)[0]
    assert alone["loss"] != double["loss"]
    assert curve(twice, output=0)[0]["loss"] == alone["loss"]
    assert curve(twice, output=1)[0]["loss"] == double["loss"]
    assert curve(twice, output=-1)[0]["loss"] == double["loss"]
    assert torch.equal(importance(twice, output=1), importance(lambda t, f, y: 2 * y))


def test_record_takes_the_output_that_is_named():
    model = Several(FORMS["named"]).eval()
    mhprobe.attach(model)
    images, labels = images_for(model.net, 3), labels_for(3)
    for output, columns in (("scores", 5), (1, 5), ("embedding", 24), (None, 5)):
        assert mhprobe.record(model, images, labels, output=output).logits.shape == (3, columns)


@pytest.mark.parametrize("output", [2, -3, "logit", True, 1.0, [1]])
def test_an_output_that_is_not_there_is_refused_with_those_that_are(output):
    with pytest.raises(mhprobe.UserError, match=r"^output: expected the index or the key"):
        curve(FORMS["pair"], output=output)


def test_a_name_for_the_only_output_is_refused():
    with pytest.raises(mhprobe.UserError, match=r"one tensor .* nothing to choose"):
        curve(lambda t, f, y: y, output=0)


def test_a_choice_holds_inside_its_block_alone():
    pair = (torch.zeros(2, 3), torch.ones(2, 3))
    with taking(1):
        with taking(None):
            assert logits_of(pair) is pair[1]
        with taking(0):
            assert logits_of(pair) is pair[0]
        assert logits_of(pair) is pair[1]
    with pytest.raises(mhprobe.UserError, match="several outputs"):
        logits_of(pair)
