"""make models: what the page says about a name is what attaching says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from survey import page, survey

from mhprobe.backbones.huggingface import REFUSED

DOCS = Path(__file__).parents[3] / "docs" / "models.md"
NAMES = [
    *(
        "vit_tiny_patch16_224",
        "vit_base_patch16_224",
        "vit_small_patch16_rope_224",
        "beit_base_patch16_224",
    ),
    *(
        "eva02_base_patch16_clip_224",
        "mobilenetv5_300m",
        "mobilenetv5_base",
        "resnet18",
        "resnet26",
        "fastvit_t8",
        "cait_xxs24_224",
    ),
]


@pytest.fixture(scope="module")
def found():
    return survey(NAMES)


def test_every_name_with_heads_is_counted_once_under_its_class(found):
    assert sum(entry.names for entry in found.values()) == len(NAMES) - 3
    assert found["FastVit"].names == found["ResNet"].names == 0 and found["Cait"].mixed == 1
    assert (found["VisionTransformer"].attached, found["VisionTransformer"].prunable) == (2, 2)
    assert (found["Beit"].attached, found["Beit"].prunable) == (1, 1)
    assert (found["Eva"].attached, found["Eva"].prunable, found["Eva"].names) == (1, 1, 2)
    (reason,) = found["Eva"].refused
    assert "mixes heads" in reason
    assert (found["MobileNetV5"].attached, found["MobileNetV5"].prunable) == (2, 0)


def test_the_page_counts_names_with_heads_alone(found):
    text = page(found)
    assert "has 8 model names" in text and "mask the heads of 6, and remove heads from 4." in text
    assert (
        "2 of the others mix their heads" in text
        and "without those, 100% of the names work" in text
    )
    rows = (
        "VisionTransformer 2, Beit 1 | all | all",
        "MobileNetV5 2 | all | none",
        "Eva 2 | 1 | 1",
        "Cait 1 | none | none",
    )
    for row in rows:
        assert f"\n| {row} |\n" in text
    assert "\n| Cait 1 (e.g. cait_xxs24_224) | its heads talk: " in text
    assert (
        "| Eva 1 (e.g. eva02_base_patch16_clip_224) | a block.attn.norm is a LayerNorm between"
        in text
    )
    assert "ResNet" not in text and "FastVit" not in text


def test_the_page_in_docs_was_made_with_these_families(found):
    text = DOCS.read_text()
    attached = [name for name, entry in found.items() if entry.attached]
    assert len(attached) == 4
    assert all(re.search(rf"[|,] {name} \d", text) for name in attached)
    assert "ResNet" not in text


def test_every_refused_tower_stands_on_the_page_with_its_reason(found):
    for text in (page(found), DOCS.read_text()):
        for name, reason in REFUSED.items():
            assert f"| {name} | refused: {reason} |" in text
        assert "LlavaForConditionalGeneration" in text and "TimmWrapperModel" in text
