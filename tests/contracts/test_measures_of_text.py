"""Every measure on an encoder of text: it gives numbers, or says in one line what a line of tokens has not got.

Held for each yaml in conf/measure: a new one is tested by being there.
"""

from __future__ import annotations

import re
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

import mhprobe
from mhprobe.errors import UserError
from models import huggingface, labels_for

YAMLS = sorted((Path(__file__).parents[2] / "conf" / "measure").glob("*.yaml"))
IMAGES = 17
LACKS = "stand in a line|does not know the direct path"

pytestmark = [
    pytest.mark.filterwarnings("ignore::mhprobe.measures.pairs.FewImages"),
    pytest.mark.filterwarnings("ignore::mhprobe.measures.base.MeasureWarning"),
]


@pytest.fixture(scope="module")
def bert():
    """A classifier of 7 tokens of 11 words."""
    model = huggingface("BertForSequenceClassification", max_position_embeddings=16, num_labels=5)
    for number, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(number))
    return model


@pytest.mark.parametrize("yaml", YAMLS, ids=lambda path: path.stem)
def test_a_text_gives_numbers_or_a_line_that_says_what_it_lacks(bert, yaml):
    words = torch.randint(2, 11, (IMAGES, 7), generator=torch.Generator().manual_seed(0))
    loader = [(words, labels_for(IMAGES))]
    make = hydra.utils.instantiate(OmegaConf.load(yaml))
    try:
        (values,) = mhprobe.measure(bert, loader, [make], select_loader=loader).values()
    except UserError as error:
        said = str(error)
        assert "\n" not in said and said.endswith("."), said
        assert re.search(LACKS, said), said
        assert make.func.needs & {"attn", "stream", "direct"}, "heads' outputs, slopes and weights are there for a text"
    else:
        assert values.isfinite().any()


class Padded(nn.Module):
    """An encoder that takes words alone, 0 being padding; masked: whether it keeps its words from looking at that."""

    def __init__(self, model, masked=True):
        super().__init__()
        self.model, self.masked = model, masked

    def forward(self, words):
        return self.model(words, attention_mask=(words != 0).long() if self.masked else None)


@pytest.mark.parametrize("measure", ["Entropy", "Confidence", "Sinks"])
def test_padding_is_neither_query_nor_key(bert, measure):
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(2, 11, (1, length), generator=draw) for length in (7, 3, 5, 6, 2)]
    filled = torch.zeros(len(texts), 7, dtype=torch.long)
    for row, text in zip(filled, texts, strict=True):
        row[: text.shape[1]] = text[0]
    make = getattr(mhprobe.measures, measure)

    def columns(model, loader):
        (values,) = mhprobe.measure(model, loader, [make]).values()
        return {name: torch.as_tensor(column) for name, column in values.columns.items()}

    alone, together = columns(Padded(bert), texts), columns(Padded(bert), [filled[:3], filled[3:]])
    for name, expected in alone.items():  # float32 sums of 7 keys instead of fewer
        torch.testing.assert_close(together[name], expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    # negative control: words that look at the padding, and a padding that looks
    assert not torch.allclose(columns(Padded(bert, masked=False), [filled])["value"], alone["value"], rtol=1e-2)
