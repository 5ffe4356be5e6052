"""Every measure on an encoder of text: it gives numbers, or says in one line what a line of tokens has not got.

Held for each file of mhprobe.measures: a new one is tested by being there.
"""

from __future__ import annotations

import re

import hydra
import pytest
import torch
from torch import nn

import mhprobe
from attention import batch_of, run
from mhprobe.errors import UserError
from mhprobe.framework.run.members import members
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures import JSDistance
from models import huggingface, labels_for, make_loud
from oracles import js_distance

IMAGES = 17
LACKS = "expected tokens in a grid|does not know the direct path"

pytestmark = [
    pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages"),
    pytest.mark.filterwarnings("ignore::mhprobe.measures.base.MeasureWarning"),
]


@pytest.fixture(scope="module")
def bert():
    """A classifier of 7 tokens of 11 words."""
    model = huggingface("BertForSequenceClassification", max_position_embeddings=16, num_labels=5)
    make_loud(model, 0.3)
    return model


@pytest.mark.parametrize("name", members("measure"))
def test_a_text_gives_numbers_or_a_line_that_says_what_it_lacks(bert, name):
    words = torch.randint(2, 11, (IMAGES, 7), generator=torch.Generator().manual_seed(0))
    loader = [(words, labels_for(IMAGES))]
    make = hydra.utils.instantiate(members("measure")[name])
    try:
        (values,) = mhprobe.measure(bert, loader, [make], select_loader=loader).values()
    except UserError as error:
        said = str(error)
        assert "\n" not in said and said.endswith("."), said
        assert re.search(LACKS, said), said
        assert make.func.needs & {"attn", "stream", "direct"}, (
            "heads' outputs, slopes and weights are there for a text"
        )
    else:
        assert values.isfinite().any()


class Padded(nn.Module):
    """An encoder that takes words alone, 0 being padding; masked: whether it keeps its words from looking at that."""

    def __init__(self, model, masked=True):
        super().__init__()
        self.model, self.masked = model, masked

    def forward(self, words):
        return self.model(words, attention_mask=(words != 0).long() if self.masked else None)


@pytest.mark.parametrize(
    "measure", ["Entropy", "Confidence", "Sinks", "JSDistance", "WriteNorm", "ActivationNorm"]
)
def test_padding_is_neither_query_nor_key(bert, measure):
    texts, filled = texts_and_filled()
    make = getattr(mhprobe.measures, measure)

    def columns(model, loader):
        (values,) = mhprobe.measure(model, loader, [make]).values()
        return {name: torch.as_tensor(column) for name, column in values.columns.items()}

    alone, together = columns(Padded(bert), texts), columns(Padded(bert), [filled[:3], filled[3:]])
    for name, expected in alone.items():  # float32 sums of 7 keys instead of fewer
        torch.testing.assert_close(together[name], expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    # negative control: words that look at the padding, and a padding that looks
    unmasked = columns(Padded(bert, masked=False), [filled])["value"]
    assert not torch.allclose(unmasked, alone["value"], rtol=1e-2, equal_nan=True)


def texts_and_filled():
    """Texts of unequal length, each (1, words), and all of them in one batch, filled up with zeros."""
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(2, 11, (1, length), generator=draw) for length in (7, 3, 5, 6, 2)]
    filled = torch.zeros(len(texts), 7, dtype=torch.long)
    for row, text in zip(filled, texts, strict=True):
        row[: text.shape[1]] = text[0]
    return texts, filled


def test_js_distance_and_its_null_of_texts_agree_with_scipy_on_each_text_alone(bert):
    texts, filled = texts_and_filled()
    layout = mhprobe.attach(bert).layout
    alone = [
        [attn[0, 0] for attn in mhprobe.record(bert, text, needs={"attn"}).attn] for text in texts
    ]
    value, null = js_distance.of_texts(alone)
    for batches in (
        [filled],
        [filled[:2, :], filled[2:, :6]],
    ):  # the second batch is filled up less
        measure = JSDistance(layout)
        for words in batches:
            measure.update(mhprobe.record(Padded(bert), words, needs={"attn"}))
        got = measure.columns()
        # float32 softmax over filled up rows
        torch.testing.assert_close(got["value"], value, rtol=1e-4, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(got["null"], null, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert (null - value)[
        :2, :2
    ].abs().max() > 1e-2  # negative control: other texts are another number


def test_padding_in_front_of_a_text_is_padding_too():
    """By hand, since a model counts positions from the padding."""
    layout = HeadLayout((HeadSite("attn", 0, 0, 3, 1, line=True),))
    draw = torch.Generator().manual_seed(0)
    texts = [
        torch.rand(1, 1, 3, n, n, generator=draw, dtype=torch.float64).softmax(-1)
        for n in (4, 2, 3)
    ]

    def filled(front):
        whole = torch.zeros(3, 1, 3, 4, 4, dtype=torch.float64)
        for row, text in zip(whole, texts, strict=True):
            n = text.shape[-1]
            first = 4 - n if front else 0
            row[:, :, first : first + n, first : first + n] = text[0]
        return whole

    def columns(*attn):
        return run(JSDistance(layout), *(batch_of(each) for each in attn))

    expected, behind, before = (
        columns(*texts),
        columns(filled(front=False)),
        columns(filled(front=True)),
    )
    for name in ("value", "null"):
        torch.testing.assert_close(behind[name], expected[name], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(before[name], expected[name], rtol=1e-12, atol=1e-14)
