"""Sections of the configuration that a command has: those of its own file in conf/.

A command takes its own sections of an experiment; on the command line, other sections are a
UserError.
"""

import contextlib
import functools
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import hydra._internal.hydra as machinery
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from mhprobe.errors import UserError
from mhprobe.framework.run import members
from mhprobe.framework.run.constructors import PACKAGE, Filled, fill, take_back
from mhprobe.framework.run.jobs import claim
from mhprobe.io.nested import leaves

CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parents[1] / "conf"
ENGINES = ("launcher", "sweeper")  # of Hydra: they run the jobs of a sweep, and choose them
NAMES = (
    "name",
    "experiment",
    "backbone",
    "backbone.name",
)  # keys that name a sweep, the first that is swept
ADDS = (
    "experiment",
    "callback",
    "paper",
)  # groups that add to a command instead of choosing a part of it


def commands() -> list[str]:
    """Return the commands, by their files in conf/ and modules below mhprobe: train, ..., studies.voita."""
    return [path.stem for path in sorted(CONF.glob("*.yaml")) if path.stem != "base"]


def sections(command: str) -> set[str]:
    """Return the keys of a command's configuration: its settings and its groups."""
    return settings(command) | set(_chosen(command))


def settings(command: str) -> set[str]:
    """Return the settings of a command's file and of its base files, without groups."""
    file = _file(command)
    keys = {str(key) for key in file if key not in ("defaults", "hydra")}
    return keys.union(*(settings(base) for base in begins_with(file)))


class OwnSections(ConfigLoaderImpl):
    """Hydra's loader, for one command's sections; ``install`` puts it in the place of Hydra's private class.

    Nothing public of Hydra leaves out sections, or adds defaults of constructors, before the
    command line is merged in.
    """

    _filled: Sequence[Filled] = ()

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        names = sections(str(config_name))
        for override in overrides:
            if override.endswith(
                "="
            ):  # a variable of a shell that is not set: out= would be the root of all files
                raise UserError(f"{override}: has no value. Give one, or leave it out.")
            package = (
                override.partition("=")[0].partition("@")[2].split(".")[0]
            )  # where a group's choice goes
            if (section := _key(override).split(".")[0]) in {
                *names,
                "experiment",
                "hydra",
            } or package in names:
                continue
            if homes := [f"mhprobe.{other}" for other in commands() if section in sections(other)]:
                raise UserError(
                    f"{override}: mhprobe.{config_name} has no {section}, a part of "
                    f"{', '.join(homes)}."
                )
        data = [] if run_mode == RunMode.MULTIRUN else data_of_weights(overrides)
        cfg = super().load_configuration(
            config_name, [*data, *overrides], run_mode, from_shell, validate_sweep_overrides
        )
        with open_dict(cfg):
            for section in set(cfg) - names - {"hydra"}:
                del cfg[section]
        take_back(
            cfg, self._filled, map(_key, overrides)
        )  # the command line replaced parts, and added some
        fill(cfg)
        for path, value in leaves(OmegaConf.to_container(cfg, resolve=False), lists=True):
            if str(value).startswith("~/"):
                OmegaConf.update(cfg, ".".join(path), os.path.expanduser(value))
        _check_installed(cfg)
        if cfg.hydra.mode is None and any(
            ".core_plugins." not in cfg.hydra[part]["_target_"] for part in ENGINES
        ):
            cfg.hydra.mode = (
                RunMode.MULTIRUN
            )  # a launcher or a sweeper means a sweep, also without -m
        return cfg

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        cfg = super()._compose_config_from_defaults_list(defaults, repo)
        self._filled = fill(cfg)  # before the command line overrides what is there
        return cfg

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        job = super().load_sweep_config(master_config, sweep_overrides)
        with read_write(job.hydra.sweep):
            job.hydra.sweep.dir = (
                master_config.hydra.sweep.dir
            )  # one folder, whichever process the job runs in
        return job

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        if config_name or overrides:
            return super().get_group_options(group_name, results_filter, config_name, overrides)
        # Hydra copies its repository for each of a hundred groups, which is most of the time of
        # --help
        return self.repository.get_group_options(group_name, results_filter)


def _check_installed(cfg: DictConfig) -> None:
    for part in ENGINES:
        module = cfg.hydra[part]["_target_"].rpartition(".")[0]
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(module):
                continue
        choice = cfg.hydra.runtime.choices[f"hydra/{part}"]
        extra = re.sub(r"hydra_plugins\.hydra_(\w+?)_.*", r"\1", module)
        raise UserError(f'hydra/{part}={choice}: not installed; pip install "mhprobe[{extra}]".')


def install() -> None:
    """Make Hydra compose a command's own sections only, and register the resolvers of conf/."""
    machinery.ConfigLoaderImpl = OwnSections  # type: ignore[misc]
    members.register(CONF)
    for resolver in (_groups, claim, _network, _swept):
        OmegaConf.register_new_resolver(
            f"mhprobe.{resolver.__name__.lstrip('_')}", resolver, replace=True
        )


def data_of_weights(overrides: Sequence[str]) -> list[str]:
    """Return ``data=<name>`` of the given weights' description, unless data or an experiment is given."""
    keys = {_key(override): override.partition("=")[2] for override in overrides}
    if "weights" not in keys or {"data", "experiment"} & set(keys):
        return []
    from mhprobe.weights.checkpoint import read_description  # torch takes seconds, --help none
    from mhprobe.weights.hub import NAMES as FILES

    file = Path(keys["weights"].strip("'\"")).expanduser()
    file = next(filter(Path.is_file, map(file.joinpath, FILES)), file)  # of a run's folder
    try:  # what stands beside weights is checked when they are loaded
        about = (
            read_description(file)
            if file.suffix == ".ckpt"
            else json.loads(file.with_suffix(".json").read_text())
        )
        name = about["data"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # loading the weights raises
    return (
        [f"data={name}"]
        if isinstance(name, str) and (CONF / "data" / f"{name}.yaml").is_file()
        else []
    )


def _key(override: str) -> str:
    """Return the key or group of an override: '++masking.steps=3' -> 'masking.steps', '+data@second=x' -> 'data'."""
    return re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]


def _network(*, _root_: DictConfig) -> str:
    return network(OmegaConf.select(_root_, "weights", default=None))


def network(weights: str | None) -> str:
    """Return a name for weights: that of their file, with the folders of the run for a file that mhprobe names."""
    if weights in (None, "random"):
        return "untrained"
    path = Path(weights)
    of_run = path.stem in ("model", "pruned", "best", "last")
    return "_".join([*path.absolute().parts[-3:-1], path.stem]) if of_run else path.stem


def _swept(name: str, *, _root_: DictConfig) -> str:
    """Return a sweep's folder: the name of its jobs, or the first of several names and how many more there are."""
    for override in map(OverridesParser.create().parse_override, _root_.hydra.overrides.task):
        if override.key_or_group in NAMES and override.is_choice_sweep():
            first, *others = override.sweep_string_iterator()
            return f"{first}_and_{len(others)}_more"
    return name


def _groups(command: str) -> str:
    """Return the groups of a command, a line each, with their options."""
    groups = {
        *_chosen(command),
        *(group for group in ADDS if group == "experiment" or group in sections(command)),
    }
    return "\n".join(f"{group}: {', '.join(options(group))}" for group in sorted(groups))


def options(group: str) -> list[str]:
    return sorted(
        {path.stem for path in (CONF / group).glob("*.yaml")} - {"base"}
        | set(members.members(group))
    )


def _chosen(command: str) -> Iterator[str]:
    """Yield the groups in the defaults of a command's file and of its base files."""
    file = _file(command)
    for base in begins_with(file):
        yield from _chosen(base)
    for entry in file.get("defaults", []):
        for group, choice in {} if isinstance(entry, str) else entry.items():
            name = str(group).removeprefix("override ").strip("/")
            if choice is not None and options(name):
                yield name


@functools.cache
def _file(command: str) -> DictConfig:
    return cast(DictConfig, OmegaConf.load(CONF / f"{command}.yaml"))


def begins_with(file: DictConfig) -> list[str]:
    """Return the base files of a file: plain names in its defaults."""
    return [
        entry.strip("/")
        for entry in file.get("defaults", [])
        if isinstance(entry, str) and entry != "_self_"
    ]
