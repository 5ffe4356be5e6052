"""What sections.py takes from Hydra's private parts is still there, and is still what Hydra uses."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest
from hydra._internal import config_loader_impl
from hydra._internal import hydra as machinery
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.types import RunMode
from omegaconf import OmegaConf

import runs
import warm
from mhprobe.framework.run.sections import CONF, OwnSections

LOOK = (
    "Hydra changed: compare its ConfigLoaderImpl, and where Hydra.create_main_hydra2 makes one, "
    "with framework/run/sections.py"
)


def test_hydra_makes_its_loader_by_the_name_that_ours_is_put_under():
    """Nothing public says which sections a command has, so ``install`` puts a subclass in the place of the class."""
    assert "ConfigLoaderImpl(" in inspect.getsource(machinery.Hydra.create_main_hydra2), LOOK
    assert issubclass(OwnSections, ConfigLoaderImpl)


@pytest.mark.parametrize("name", [name for name in vars(OwnSections) if not name.startswith("_")])
def test_what_ours_overrides_is_asked_with_the_same_words(name):
    theirs, ours = (
        inspect.signature(getattr(each, name)).parameters
        for each in (ConfigLoaderImpl, OwnSections)
    )
    assert list(theirs) == list(ours), LOOK
    assert [each.default for each in theirs.values()] == [each.default for each in ours.values()], (
        LOOK
    )


def test_the_options_of_a_group_are_those_that_hydra_finds_without_a_copy_of_all_files(monkeypatch):
    """It makes one for each group, which was most of the time of --help."""
    loader = OwnSections(create_config_search_path(str(CONF)))
    groups = loader.list_groups("")
    theirs = [ConfigLoaderImpl.get_group_options(loader, group) for group in groups]
    monkeypatch.setattr(config_loader_impl, "CachingConfigRepository", None)
    assert len(groups) > 10 and [loader.get_group_options(group) for group in groups] == theirs
    with pytest.raises(TypeError):  # negative control
        ConfigLoaderImpl.get_group_options(loader, groups[0])


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
