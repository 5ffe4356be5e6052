"""The files of conf/ as one command has them, by two plug-ins of Hydra: a source of files, and a search path.

A file that serves all commands, an experiment, keeps only what the command has. A part has the
defaults of its constructor, so that ``--cfg job`` shows them and an override needs no ``+``; members
of a folder have no yaml and are files here all the same. A yaml in conf/ wins.
"""

import os
from pathlib import Path
from typing import cast

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from mhprobe.framework.run import members
from mhprobe.framework.run.constructors import fill
from mhprobe.framework.run.sections import CONF, sections, stands_alone, whole
from mhprobe.io.nested import leaves

SCHEME = "mhprobe"


class OwnFiles(ConfigSource):
    """The files of conf/ for the command of its address, ``mhprobe://train``."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.command, self.path = self.path, str(CONF)

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        file = self._file(config_path)
        header: dict[str, str | None] = {"package": None}
        if file.is_file():
            header = self._get_header_dict(file.read_text(encoding="utf-8"))
            cfg = whole(file) if stands_alone(file) else cast(DictConfig, OmegaConf.load(file))
        elif self.is_config(config_path):
            header["package"] = members.option_key(group, name)
            cfg = OmegaConf.create(members.members(group)[name])
        else:
            raise ConfigLoadError(f"Config not found : {file}")
        if not group or header["package"] == "_global_":
            self._keep_own(cfg)
        for path, value in leaves(OmegaConf.to_container(cfg, resolve=False), lists=True):
            if str(value).startswith("~/"):
                OmegaConf.update(cfg, ".".join(path), os.path.expanduser(value))
        fill(cfg)
        return ConfigResult(self.provider, self.full_path(), cfg, header)

    def _keep_own(self, cfg: DictConfig) -> None:
        own = {*sections(self.command), "defaults", "hydra", "experiment"}
        for key in set(cfg) - own:
            del cfg[key]
        cfg.defaults = [
            entry
            for entry in cfg.get("defaults", [])
            if isinstance(entry, str) or _section(next(iter(entry))) in own
        ]

    def _file(self, config_path: str) -> Path:
        return CONF / self._normalize_file_name(config_path)

    def available(self) -> bool:
        return CONF.is_dir()

    def is_group(self, config_path: str) -> bool:
        return (CONF / config_path).is_dir() or config_path in members.FOLDERS

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        return self._file(config_path).is_file() or name in members.members(group)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names: list[str] = []
        for path in (CONF / config_path).glob("*"):
            place = str(path.relative_to(CONF))
            self._list_add_result(names, place, path.name, results_filter)
        if results_filter != ObjectType.GROUP:
            names += members.members(config_path)
        return sorted({*names})


class OwnPath(SearchPathPlugin):
    """Puts ``OwnFiles`` before the plain files of conf/, in this process, after ``find_own_files``."""

    command = ""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        places = {part.path.removeprefix("file://") for part in search_path.get_path()}
        if str(CONF) in places:
            search_path.prepend(SCHEME, f"{SCHEME}://{self.command}", SearchPathQuery("main"))


def find_own_files(command: str) -> None:
    """Make Hydra find the files of this command, from now on in this process."""
    OwnPath.command = command
    for plugin in (OwnFiles, OwnPath):
        Plugins.instance().register(plugin)


def _section(entry: str) -> str:
    """Return the section that an entry of a defaults list goes to: 'override /prune/order@method.mine' -> 'method'."""
    group, _, package = entry.split()[-1].strip("/").partition("@")
    return (package or group).replace("/", ".").split(".")[0]
