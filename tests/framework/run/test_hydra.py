"""Hydra composes the configuration of a command by its public means, and quickly in tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import hydra as machinery
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf

import runs
import warm
from mhprobe.framework.run import cli, composing, jobs, sections
from mhprobe.framework.run.sections import CONF


def test_no_class_of_hydra_is_replaced():
    theirs = machinery.ConfigLoaderImpl
    composing.compose_for("train")
    assert machinery.ConfigLoaderImpl is theirs is ConfigLoaderImpl
    assert theirs.__module__.startswith("hydra.")


def test_no_group_is_listed_for_the_help(monkeypatch, capsys):
    """Hydra composes for each group, which was most of the time of --help."""
    listed = []
    monkeypatch.setattr(
        machinery.Hydra, "list_all_config_groups", lambda *_: listed.append(1) or []
    )
    monkeypatch.setattr(sys, "argv", ["train", "--help"])
    cli.main("train")
    assert "experiment: " in capsys.readouterr().out and not listed
    monkeypatch.setattr(sys, "argv", ["train", "--hydra-help"])  # negative control
    with pytest.raises(SystemExit):
        cli.main("train")
    assert listed


@pytest.mark.parametrize("command", ["train", "claims", "mask"])
def test_a_command_takes_its_own_sections_of_an_experiment(command):
    whole = OmegaConf.load(sections.CONF / "experiment" / "demo.yaml")
    assert {"probe", "report", "data"} < set(whole)  # negative control: of several commands
    assert set(runs.composed(command, "+experiment=demo")) == sections.sections(command)


def test_an_option_of_an_experiment_that_another_command_alone_has_is_not_even_read():
    """Without it, a paper and its figures would stand in the configuration of ``train``."""
    composing.compose_for("mask")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        choices = compose("mask", ["+experiment=demo"], return_hydra_config=True)
    assert choices.hydra.runtime.choices.experiment == "demo"
    assert not {"callback", "measure"} & set(choices)


def test_a_file_of_the_user_may_hold_what_another_command_has(tmp_path, capsys, monkeypatch):
    """It lies in a folder of its own, which is none of ours: what is left of it is taken away at the end."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\nmaps: {a: 1}\n"
    )
    composing.compose_for("mask")
    search = f"hydra.searchpath=[{tmp_path}]"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        words = [search, "+experiment=mine"]
        cfg = compose("mask", words)
        assert cfg.name == "mine" and "maps" in cfg
        assert "maps" not in composing.completed_configuration("mask", cfg, words)


@pytest.mark.parametrize("text", ["a", "it's", "a b,c=[d]", "\\'", "~/x", "ü"])
def test_any_folder_of_a_sweep_reaches_its_jobs(text):
    word = OverridesParser.create().parse_override(f"hydra.sweep.dir={jobs.in_quotes(text)}")
    assert word.value() == text


@pytest.mark.parametrize(
    "command",
    [
        ("train", *runs.TINY, *runs.SHORT, "seed=3"),
        ("train", "backbone=vit", "masking=orders", "+data@second=digits", "~logger"),
        ("probe", "weights=random", *runs.TINY, "measure=[svcca,entropy]", "~measure.svcca.pairs"),
        ("prune", "weights=random", "prune=order", "prune/order=fisher", "optim.lr=1"),
    ],
    ids=lambda command: command[0],
)
def test_what_tests_compose_once_is_what_hydra_composes_each_time(command, monkeypatch):
    quick = [OmegaConf.to_yaml(runs.composed(*command, hydra=True)) for _ in range(2)]
    for name, whole in warm.quick_configurations().items():
        monkeypatch.setattr(name, whole)
    assert quick == [OmegaConf.to_yaml(runs.composed(*command, hydra=True))] * 2
    assert quick[0] != OmegaConf.to_yaml(
        runs.composed(*command, "name=another", hydra=True)
    )  # negative control


def test_a_configuration_that_was_written_to_is_composed_again(tmp_path):
    loader = ConfigLoaderImpl(create_config_search_path(str(tmp_path)))
    (tmp_path / "part").mkdir()
    seen = []
    for time, (chosen, value) in enumerate([("a", 1), ("b", 1), ("b", 1), ("b", 2), ("a", 2)]):
        for file, text in (
            ("all", f"defaults: [part: {chosen}]"),
            (f"part/{chosen}", f"{chosen}: {value}"),
        ):
            path = tmp_path / f"{file}.yaml"
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                os.utime(path, ns=(time, time))
        seen.append(dict(loader.load_configuration("all", [], RunMode.RUN).part))
    assert seen == [{"a": 1}, {"b": 1}, {"b": 1}, {"b": 2}, {"a": 2}]


@pytest.mark.parametrize("command", ["train", "prunebench"])
def test_a_folder_may_be_given_from_the_home_folder(command, tmp_path, monkeypatch):
    """Without it, ckpt_path=last looked into ./~, and mhprobe.prunebench wrote there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    cfg = runs.composed(command, 'out="~/out"', 'cache_dir="~/cache"', "~logger", hydra=True)
    folders = [
        cfg.out,
        cfg.cache_dir,
        *([cfg.cells, cfg.hydra.run.dir] if command == "prunebench" else []),
    ]
    assert all(Path(folder).is_relative_to(tmp_path) for folder in folders)
    assert "~logger" in cfg.hydra.overrides.task and not cfg.get("logger")


def test_a_run_is_named_after_its_weights_or_its_backbone(tmp_path):
    """Shipped networks share one backbone: named after it, their folders could not be told apart."""
    shipped = CONF.parent / "weights" / "cifar10_vit_stem.safetensors"
    run = tmp_path / "mine" / "2026-01-02_03-04-05"
    run.mkdir(parents=True)
    for name, made in (("model", {"name": "tuned"}), ("last", {}), ("best", {"name": "../up"})):
        (run / f"{name}.json").write_text(json.dumps({"made": made}))
        (run / f"{name}.safetensors").touch()
    named = {
        shipped: "cifar10_vit_stem",
        run / "model.safetensors": "tuned",
        run: "tuned",
        run / "last.safetensors": "mine_2026-01-02_03-04-05_last",
        run / "best.safetensors": "mine_2026-01-02_03-04-05_best",
        "random": "vit_tiny_patch16_224",
    }
    for weights, name in named.items():
        assert runs.composed("mask", f"weights={weights}").name == name
    assert (
        runs.composed("mask", f"weights={shipped}", "+experiment=digits_vit").name == "digits_vit"
    )
