"""Sections of the configuration that a command has: those of its own file in conf/.

An experiment speaks to all commands: it names a backbone, data, how to train, what to measure and what to mask. Each
command takes the sections it has, and leaves the others out. A section that a command does not have is a mistake on its
command line, and the answer names the commands that have it.
"""

import functools
import importlib.util
import json
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
from mhprobe.run import members
from mhprobe.run.constructors import Filled, fill, take_back
from mhprobe.run.jobs import claim

PACKAGE = Path(__file__).parents[1]
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parents[1] / "conf"
ENGINES = ("launcher", "sweeper")  # of Hydra: who runs the jobs of a sweep, and who chooses them
NAMES = ("name", "experiment", "backbone", "backbone.name")  # what names a run, the first that is swept
ADDS = ("experiment", "callback", "paper")  # groups that add something to a command instead of choosing a part of it


def commands() -> list[str]:
    """The names of the commands' files, which are those of their modules below mhprobe: train, ..., studies.voita."""
    return [path.stem for path in sorted(CONF.glob("*.yaml")) if path.stem != "base"]


def sections(command: str) -> set[str]:
    """The keys of a command's configuration: its settings and its groups."""
    return settings(command) | set(_chosen(command))


def settings(command: str) -> set[str]:
    """Return the settings of a command's file and of its base files: always there, unlike the choice of a group."""
    file = _file(command)
    found = {str(key) for key in file if key not in ("defaults", "hydra")}
    return found.union(*(settings(base) for base in begins_with(file)))


class OwnSections(ConfigLoaderImpl):
    """Hydra's loader, for one command's sections; ``install`` puts it in the place of Hydra's private class.

    Nothing public of Hydra can leave out a section that an experiment names and a command has not, or add defaults of
    constructors to ``--cfg job``: both have to happen before the command line is merged in, and before Hydra prints.
    tests/run/test_hydra.py sees when Hydra changes what is overridden here.
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
        own = sections(str(config_name))
        _refuse_others(str(config_name), own, overrides)
        data = [] if run_mode == RunMode.MULTIRUN else data_of_weights(overrides)
        cfg = super().load_configuration(
            config_name, [*data, *overrides], run_mode, from_shell, validate_sweep_overrides
        )
        with open_dict(cfg):
            for section in set(cfg) - own - {"hydra"}:
                del cfg[section]
        take_back(cfg, self._filled, map(_key, overrides))  # the command line replaced parts, and added some
        fill(cfg)
        _check_installed(cfg)
        if cfg.hydra.mode is None and any(".core_plugins." not in cfg.hydra[part]["_target_"] for part in ENGINES):
            cfg.hydra.mode = RunMode.MULTIRUN  # who names a launcher or a sweeper means a sweep, also without -m
        return cfg

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        cfg = super()._compose_config_from_defaults_list(defaults, repo)
        self._filled = fill(cfg)  # before the command line overrides what is there
        return cfg

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        job = super().load_sweep_config(master_config, sweep_overrides)
        with read_write(job.hydra.sweep):
            job.hydra.sweep.dir = master_config.hydra.sweep.dir  # one folder, whichever process the job runs in
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
        # Hydra reads from a copy of all it knows, one for each of a hundred groups: most of the time of --help
        return self.repository.get_group_options(group_name, results_filter)


def _check_installed(cfg: DictConfig) -> None:
    for part in ENGINES:
        module = cfg.hydra[part]["_target_"].rpartition(".")[0]
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            choice = cfg.hydra.runtime.choices[f"hydra/{part}"]
            extra = re.sub(r"hydra_plugins\.hydra_(\w+?)_.*", r"\1", module)
            raise UserError(f'hydra/{part}={choice}: not installed; pip install "mhprobe[{extra}]".')


def _refuse_others(command: str, own: set[str], overrides: Sequence[str]) -> None:
    for override in overrides:
        section = _key(override).split(".")[0]
        if section in {*own, "experiment", "hydra"}:
            continue
        if homes := [f"mhprobe.{other}" for other in commands() if section in sections(other)]:
            raise UserError(f"{override}: mhprobe.{command} has no {section}; it is a part of {', '.join(homes)}.")


def install() -> None:
    """Make Hydra compose a command's own sections only, and register the resolvers of conf/."""
    machinery.ConfigLoaderImpl = OwnSections  # type: ignore[misc]
    members.register(CONF)
    for resolver in (_groups, claim, _network, _swept):
        OmegaConf.register_new_resolver(f"mhprobe.{resolver.__name__.lstrip('_')}", resolver, replace=True)


def data_of_weights(overrides: Sequence[str]) -> list[str]:
    """``data=<name>`` where weights are given that say what they were trained on, and neither data nor experiment."""
    keys = {_key(override): override.partition("=")[2] for override in overrides}
    if "weights" not in keys or {"data", "experiment"} & set(keys):
        return []
    try:
        name = json.loads(Path(keys["weights"].strip("'\"")).with_suffix(".json").read_text())["data"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # whoever loads the weights says what is wrong with them
    return [f"data={name}"] if isinstance(name, str) and (CONF / "data" / f"{name}.yaml").is_file() else []


def _key(override: str) -> str:
    """The key or group that an override sets: '++masking.steps=3' -> 'masking.steps', '+data@second=x' -> 'data'."""
    return re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]


def _network(*, _root_: DictConfig) -> str:
    return network(OmegaConf.select(_root_, "weights", default=None))


def network(weights: str | None) -> str:
    """A name for the weights that are looked into: their file's, or that of the run that wrote them."""
    if weights in (None, "random"):
        return "untrained"
    path = Path(weights)
    own = path.stem not in ("model", "pruned", "best", "last")
    return path.stem if own else "_".join([*path.absolute().parts[-3:-1], path.stem])


def _swept(name: str, *, _root_: DictConfig) -> str:
    """A folder's name for a sweep: its jobs' name; where that is swept, the first one's and how many there are more."""
    parser = OverridesParser.create()
    for override in map(parser.parse_override, _root_.hydra.overrides.task):
        if override.key_or_group in NAMES and override.is_choice_sweep():
            first, *others = override.sweep_string_iterator()
            return f"{first}_and_{len(others)}_more"
    return name


def _groups(command: str) -> str:
    """The groups that a command chooses from, a line each, with their options."""
    groups = {*_chosen(command), *(group for group in ADDS if group == "experiment" or group in sections(command))}
    return "\n".join(f"{group}: {', '.join(options(group))}" for group in sorted(groups))


def options(group: str) -> list[str]:
    """The options of a group that can be chosen."""
    return sorted({path.stem for path in (CONF / group).glob("*.yaml")} - {"base"} | set(members.members(group)))


def _chosen(command: str) -> Iterator[str]:
    """Groups in the defaults of a command's file, and of those that it begins with."""
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
    """Read a command's file, once per process; the result is not to be changed."""
    return cast(DictConfig, OmegaConf.load(CONF / f"{command}.yaml"))


def begins_with(file: DictConfig) -> list[str]:
    """The files that another one begins with: plain names in its defaults."""
    return [entry.strip("/") for entry in file.get("defaults", []) if isinstance(entry, str) and entry != "_self_"]
