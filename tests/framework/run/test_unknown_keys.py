"""The answer to an unknown key: who has it, and ``+key`` only where the target takes it."""

from __future__ import annotations

import sys

import pytest
from hydra.errors import ConfigCompositionException

import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import cli, composing

TAKEN = [  # the words before, the key; by the signatures of ImageData, Lightning's Trainer, timm's classes
    ("train", (), "trainer.max_steps"),
    ("train", ("backbone=vit",), "backbone.qk_norm"),
    ("train", ("backbone=swin",), "backbone.proj_drop_rate"),
]
UNTAKEN = [
    ("train", ("data=cifar10",), "data.stored_size"),
    ("train", (), "data.stored_size"),
    ("probe", ("weights=random", "data=pets"), "data.levels"),
    ("train", (), "data.source.severity"),
    ("train", (), "data.augment.mixin"),
    ("train", (), "optim.lrr"),
    ("train", (), "trainer.max_stepz"),
    ("train", ("backbone=swin",), "backbone.qk_norm"),
    ("train", ("backbone=vit",), "backbone.window_size"),
    ("mask", ("weights=random",), "search.single.width"),
    ("train", ("gates=l1",), "gates.penalty.heads"),
    ("probe", ("weights=random", "measure=[entropy]"), "measure.entropy.layers"),
]


def answered(monkeypatch, command: str, words: tuple[str, ...], key: str) -> str:
    monkeypatch.setattr(sys, "argv", [command, *words, f"{key}=3"])
    with pytest.raises(ConfigCompositionException) as error:
        runs.composed(command, *words, f"{key}=3")
    return cli.explain(command, error.value)


@pytest.mark.parametrize(("command", "words", "key"), TAKEN)
def test_a_plus_is_proposed_where_the_target_takes_the_key(monkeypatch, command, words, key):
    assert f"Use +{key}=" in answered(monkeypatch, command, words, key)


@pytest.mark.parametrize(("command", "words", "key"), UNTAKEN)
def test_no_plus_is_proposed_where_it_would_be_refused(monkeypatch, caplog, command, words, key):
    said = answered(monkeypatch, command, words, key)
    assert not caplog.records  # without a handler each is a line more on the terminal
    assert said.startswith(f"unknown key '{key}': ") and "Use +" not in said and "\n" not in said


def test_the_answer_says_which_option_of_the_group_has_the_key_and_where(monkeypatch):
    said = answered(monkeypatch, "train", ("data=cifar10",), "data.stored_size")
    assert "data=flowers and data=image_folder and data=pets and data=photos have" in said
    assert "have data.source.stored_size. " in said and "did you mean" not in said
    said = answered(monkeypatch, "train", ("data=photos",), "data.stored_size")
    assert "did you mean data.source.stored_size?" in said
    said = answered(monkeypatch, "train", ("data=digits",), "data.source.severity")
    assert "data=cifar10_corrupted has it. " in said


@pytest.mark.parametrize("word", ["+=[x]", "++=3", "~"])
def test_a_word_without_a_key_is_refused(word):
    """Found by random words: an assertion of Hydra's."""
    with pytest.raises(UserError, match="has no key"):
        composing.prepared("train", [word])
