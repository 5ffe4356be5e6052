"""Attention that a run keeps for its report: of every head, in a few images, from whoever can look."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

import mhprobe
from located import LOCATED
from mhprobe.backbones import input_spec
from mhprobe.data.base import InputSpec
from mhprobe.data.batch import Batch
from mhprobe.pages.beside import IMAGES, keep_attention
from models import images_for, tiny_swin, tiny_vit

CHOSEN = [0, 2, 4]  # evenly from five


def data_of(model, count=5):
    """A data set of normalised images that are also its pictures."""
    images = images_for(model, count)
    stored = (images.sigmoid() * 255).to(torch.uint8)

    def of_store(split, positions):
        index = torch.tensor(positions)
        return Batch(stored[index], index % 3, index, torch.ones(len(index), dtype=torch.bool))

    def some(split, number, device):
        assert number == IMAGES
        return of_store(split, CHOSEN)._replace(images=images[CHOSEN])

    names = tuple("abcdefghij")
    return SimpleNamespace(
        sizes={"test": count},
        stored=of_store,
        some=some,
        class_names=names,
        input_spec=InputSpec(**input_spec(model)),
    ), images


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_every_head_is_kept_as_attention_says(build, tmp_path):
    torch.manual_seed(0)
    model = build().eval()
    layout = mhprobe.attach(model).layout
    data, images = data_of(model)
    with safe_open(keep_attention(tmp_path, model, data), "pt") as kept:
        titles = json.loads(kept.metadata()["titles"])
        found = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
    assert len(titles) == IMAGES and titles[1].startswith("image 2: c, taken for ")
    assert found.pop("pictures").shape[:2] == (IMAGES, 3)
    mean = "the class token" if layout.sites[0].class_token else "all patches (mean)"
    assert {name.partition("/")[0] for name in found} >= {mean, "the patch in the middle"}
    for number, site in enumerate(layout.sites):
        heads = list(range(layout.num_heads))[layout.span(number)]
        query = "class" if site.class_token else "mean"
        expected = mhprobe.attention(model, images[CHOSEN], head=heads, query=query)
        expected = 63 * expected / expected.amax((2, 3), keepdim=True)
        torch.testing.assert_close(
            found[f"{mean}/{site.name}"].float(), expected, rtol=0, atol=0.501
        )


def test_heads_without_attention_weights_are_counted_and_the_others_are_kept(tmp_path):
    model = LOCATED["davit_channels_v2"]().eval()
    layout = mhprobe.attach(model).layout
    with safe_open(keep_attention(tmp_path, model, data_of(model)[0]), "pt") as kept:
        sites = {name.partition("/")[2] for name in kept.keys() if "/" in name}  # noqa: SIM118
        hidden = kept.metadata()["hidden"]
    assert sites == {site.name for site in layout.sites if site.windows}
    count = sum(site.num_heads for site in layout.sites if not site.windows)
    assert 0 < count < layout.num_heads and hidden.startswith(
        f"{count} of {layout.num_heads} heads are not shown: "
    )


def test_a_model_without_attention_weights_does_not_fail_the_run(tmp_path, caplog):
    assert keep_attention(tmp_path, torch.nn.Linear(2, 2), data_of(tiny_vit())[0]) is None
    assert "without attention maps" in caplog.text and not list(tmp_path.iterdir())
