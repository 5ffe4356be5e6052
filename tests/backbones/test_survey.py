"""python -m mhprobe.models: what it says about a name is what attaching says."""

from __future__ import annotations

from pathlib import Path

from mhprobe.backbones.survey import page, survey

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
NAMES = [
    *("vit_tiny_patch16_224", "vit_base_patch16_224", "vit_small_patch16_rope_224", "beit_base_patch16_224"),
    *("eva02_base_patch16_clip_224", "nest_tiny", "nest_small", "resnet18", "resnet26"),
]


def test_every_name_is_counted_once_under_its_class():
    found = survey(NAMES)
    assert sum(entry.names for entry in found.values()) == len(NAMES)
    assert (found["VisionTransformer"].attached, found["VisionTransformer"].prunable) == (2, 2)
    assert (found["Beit"].attached, found["Beit"].prunable) == (1, 0)
    assert (found["Eva"].attached, found["Eva"].prunable, found["Eva"].names) == (1, 1, 2)
    (reason,) = found["Eva"].refused
    assert "mixes heads" in reason
    assert found["Nest"].names == 2 and not found["Nest"].attached and found["Nest"].attention
    assert found["ResNet"].names == 2 and not found["ResNet"].attention


def test_the_page_counts_names_with_heads_alone():
    text = page(survey(NAMES))
    assert "4 of the 7 names" in text and "of 3 heads can be removed" in text
    assert "| Nest | 2 | 0 | 0 | 2 (e.g. nest_tiny): no family" in text
    assert "ResNet" not in text


def test_the_page_in_docs_was_made_with_these_families():
    text, found = DOCS.read_text(), survey(NAMES)
    attached = [name for name, entry in found.items() if entry.attached]
    assert len(attached) == 3 and all(f"\n| {name} | " in text for name in attached)
    assert "ResNet" not in text
