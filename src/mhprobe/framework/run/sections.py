"""Sections of the configuration that a command has: those of its own file in conf/."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf

from mhprobe.errors import short
from mhprobe.framework.run import members
from mhprobe.framework.run.constructors import PACKAGE

CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parents[1] / "conf"
ADDS = (
    "experiment",
    "callback",
    "paper",
)  # groups that add to a command instead of choosing a part of it


def commands_of_conf() -> list[str]:
    """Return the commands, by their files in conf/ and modules below mhprobe: train, ..., studies.voita."""
    return [path.stem for path in sorted(CONF.glob("*.yaml")) if path.stem != "base"]


def sections(command: str) -> set[str]:
    """Return the keys of a command's configuration: its settings and its groups."""
    return settings_of(command) | set(_chosen(command))


def settings_of(command: str) -> set[str]:
    """Return the settings of a command's file and of its base files, without groups."""
    file = _file(command)
    keys = {str(key) for key in file if key not in ("defaults", "hydra")}
    return keys.union(*(settings_of(base) for base in begins_with(file)))


def groups_with_options(command: str) -> str:
    """Return the groups of a command, a line each, with their options."""
    names = {
        *_chosen(command),
        *(group for group in ADDS if group == "experiment" or group in sections(command)),
    }
    return "\n".join(f"{group}: {', '.join(options_of_group(group))}" for group in sorted(names))


def options_of_group(group: str) -> list[str]:
    return sorted(
        {path.stem for path in (CONF / group).glob("*.yaml")} - {"base"}
        | set(members.members(group))
    )


def options_in_words(group: str) -> str:
    """Return the options of a group in one line, shortened if they are many; "" if it has none."""
    return short(", ".join(options_of_group(group)), 200)


def _chosen(command: str) -> Iterator[str]:
    """Yield the groups in the defaults of a command's file and of its base files."""
    file = _file(command)
    for base in begins_with(file):
        yield from _chosen(base)
    for entry in file.get("defaults", []):
        for group, choice in {} if isinstance(entry, str) else entry.items():
            name = str(group).removeprefix("override ").strip("/")
            if choice is not None and options_of_group(name):
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


def whole(file: Path) -> DictConfig:
    """Return a file merged into its base files, of its group or of conf/."""
    stated = cast(DictConfig, OmegaConf.load(file))
    merged = OmegaConf.merge(*(whole(base) for base in _bases(file, stated)), stated)
    together = cast(DictConfig, merged)
    together.pop("defaults", None)
    return together


def stands_alone(file: Path) -> bool:
    """Return True if a file, and each of its base files, chooses no options of groups."""
    stated = cast(DictConfig, OmegaConf.load(file))
    chooses = any(not isinstance(entry, str) for entry in stated.get("defaults", []))
    return not chooses and all(map(stands_alone, _bases(file, stated)))


def _bases(file: Path, stated: DictConfig) -> Iterator[Path]:
    for name in begins_with(stated):
        places = [folder / f"{name}.yaml" for folder in (file.parent, CONF)]
        yield next(filter(Path.is_file, places))
