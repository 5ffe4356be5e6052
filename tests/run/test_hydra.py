"""What sections.py takes from Hydra's private parts is still there, and is still what Hydra uses."""

from __future__ import annotations

import inspect

import pytest
from hydra._internal import config_loader_impl
from hydra._internal import hydra as machinery
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path

from mhprobe.run.sections import CONF, OwnSections

LOOK = "Hydra changed: compare its ConfigLoaderImpl, and where Hydra.create_main_hydra2 makes one, with run/sections.py"


def test_hydra_makes_its_loader_by_the_name_that_ours_is_put_under():
    """Nothing public says which sections a command has, so ``install`` puts a subclass in the place of the class."""
    assert "ConfigLoaderImpl(" in inspect.getsource(machinery.Hydra.create_main_hydra2), LOOK
    assert issubclass(OwnSections, ConfigLoaderImpl)


@pytest.mark.parametrize("name", [name for name in vars(OwnSections) if not name.startswith("_")])
def test_what_ours_overrides_is_asked_with_the_same_words(name):
    theirs, ours = (inspect.signature(getattr(each, name)).parameters for each in (ConfigLoaderImpl, OwnSections))
    assert list(theirs) == list(ours), LOOK
    assert [each.default for each in theirs.values()] == [each.default for each in ours.values()], LOOK


def test_the_options_of_a_group_are_those_that_hydra_finds_without_a_copy_of_all_files(monkeypatch):
    """It makes one for each group, which was most of the time of --help."""
    loader = OwnSections(create_config_search_path(str(CONF)))
    groups = loader.list_groups("")
    theirs = [ConfigLoaderImpl.get_group_options(loader, group) for group in groups]
    monkeypatch.setattr(config_loader_impl, "CachingConfigRepository", None)
    assert len(groups) > 10 and [loader.get_group_options(group) for group in groups] == theirs
    with pytest.raises(TypeError):  # negative control
        ConfigLoaderImpl.get_group_options(loader, groups[0])
