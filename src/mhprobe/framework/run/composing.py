"""Composing the configuration of a command, by Hydra's public means.

``own_files`` gives Hydra the files of a command. What Hydra has no plug-in for is done to the words
before it reads them (``prepared``), and to what it composed (``completed_configuration``).
"""

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from mhprobe.errors import UserError, short
from mhprobe.framework.run import own_files
from mhprobe.framework.run.constructors import fill, take_back
from mhprobe.framework.run.jobs import claim_folder, use_folder
from mhprobe.framework.run.sections import (
    CONF,
    commands_of_conf,
    groups_with_options,
    options_in_words,
    options_of_group,
    sections,
)

ENGINES = ("launcher", "sweeper")  # of Hydra: they run the jobs of a sweep, and choose them
NAMES = (
    "name",
    "experiment",
    "backbone",
    "backbone.name",
)  # keys that name a sweep, the first that is swept
SEVERAL = (
    "measure",
    "maps",
    "logger",
    "callback",
    "experiment",
)  # groups of which a command may have several
HOME = re.compile(r"""(?<==|\[|,|:)(\s*["'])~(?=/)""")


def compose_for(command: str) -> None:
    """Let Hydra compose the sections of this command only, and register the resolvers of conf/."""
    own_files.find_own_files(command)
    resolvers: dict[str, Callable[..., Any]] = {
        "groups": groups_with_options,
        "claim": claim_folder,
        "use": use_folder,
        "network": _network,
        "subject": _subject,
        "swept": _swept,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(f"mhprobe.{name}", resolver, replace=True)


def composed(command: str, words: Sequence[str], hydra: bool = False) -> DictConfig:
    """Return the configuration of a command for the words of its command line, flags left out.

    hydra: with Hydra's own section. UserError for words that the command has no use for.
    """
    words = prepared(command, words)
    compose_for(command)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return completed_configuration(
            command, compose(command, words, return_hydra_config=hydra), words
        )


def of_job(command: str, cfg: DictConfig, words: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """Return the configuration of a job and its words, after Hydra composed ``cfg`` of ``words``.

    The weights of a job of a sweep may choose its data, which nobody knew before.
    """
    data = data_of_weights(words)
    words = [*data, *words]
    return completed_configuration(command, compose(command, words) if data else cfg, words), words


def completed_configuration(command: str, cfg: DictConfig, words: Sequence[str]) -> DictConfig:
    """Take from a configuration what is not the command's, and fill in parts that the words put there."""
    with read_write(cfg), open_dict(cfg):
        for section in set(cfg) - sections(command) - {"hydra"}:
            del cfg[section]
    targets = [word for word in words if "_target_" in word]
    if targets:
        # what a part that the words replaced had of its own constructor
        with contextlib.suppress(HydraException):  # words about a part that the others add
            before = compose(command, [word for word in words if word not in targets])
            take_back(cfg, before, map(key_of, words))
    fill(cfg)
    return cfg


def prepared(command: str, words: Sequence[str], sweeping: bool = False) -> list[str]:
    """Return the words of a command line, flags left out, as Hydra is to read them.

    A folder may begin with ``~/``, weights choose the data, a launcher means a sweep. UserError for
    a section of another command, a key without a value, and for what is not installed.
    """
    for word in words:
        _refuse_foreign(command, word)
    words = [HOME.sub(rf"\g<1>{os.path.expanduser('~')}", word) for word in words]
    engines = [word for word in words if key_of(word) in map("hydra/{}".format, ENGINES)]
    for word in engines:
        _check_installed(word)
    if any(not word.endswith("=basic") for word in engines):
        sweeping = True
        if "hydra.mode" not in map(key_of, words):
            words.append("hydra.mode=MULTIRUN")
    if sweeping:
        _refuse_sweeps(words)
    return words if sweeping else [*data_of_weights(words), *words]


def _refuse_sweeps(words: Sequence[str]) -> None:
    """Raise UserError for a word of a sweep that gives no value, or one of them twice."""
    for word in words:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException:  # whoever composes says so
            continue
        if not override.is_sweep_override() or override.is_interval_sweep():
            continue
        values = _values_of(override)
        if not values:
            raise UserError(f"{word}: gives no value, so that the sweep would have no job.")
        if twice := [value for value in dict.fromkeys(values) if values.count(value) > 1]:
            raise UserError(f"{word}: expected each value once, got {twice[0]} several times.")


def _values_of(override: Any) -> list[str]:
    """Return the values that a word of a sweep gives, of a glob the options that it fits."""
    value = override.value()
    if isinstance(value, Glob):
        return value.filter(options_of_group(override.key_or_group))
    try:
        return list(override.sweep_string_iterator())
    except ValueError as error:  # range(0,1,0)
        raise UserError(f"{override.input_line}: {error}.") from None


def _refuse_foreign(command: str, word: str) -> None:
    if word.endswith("="):
        # a variable of a shell that is not set: out= would be the root of all files
        raise UserError(f"{word}: has no value. Give one, or leave it out.")
    if not key_of(word):  # which Hydra's parser takes, and its composing does not
        raise UserError(f"{word}: has no key. Give one, as in optim.lr=0.1, or leave it out.")
    _refuse_several(word)
    names = sections(command)
    package = word.partition("=")[0].partition("@")[2].split(".")[0]  # where a group's choice goes
    section = key_of(word).split(".")[0]
    if section in {*names, "experiment", "hydra"} or package in names:
        return
    homes = [f"mhprobe.{other}" for other in commands_of_conf() if section in sections(other)]
    if homes:
        raise UserError(
            f"{word}: mhprobe.{command} has no {section}, a part of {', '.join(homes)}."
        )


def _refuse_several(word: str) -> None:
    """Raise UserError for a list of options of a group that chooses one: prune=[], data=[digits,scenes]."""
    group, _, value = word.lstrip("+").partition("=")
    listed = value.startswith("[") and value.endswith("]")
    if listed and group not in SEVERAL and (one_of := options_in_words(group)):
        raise UserError(f"{group}: expected one of {one_of}, got {short(value, 60)}.")


def _check_installed(word: str) -> None:
    """Raise UserError for a launcher or sweeper of conf/hydra whose library is not installed."""
    group, _, choice = word.partition("=")
    file = CONF / group / f"{choice}.yaml"
    if not file.is_file():  # Hydra has it, or says what there is
        return
    engine = cast(DictConfig, OmegaConf.load(file))
    module = engine["_target_"].rpartition(".")[0]
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(module):
            return
    extra = re.sub(r"hydra_plugins\.hydra_(\w+?)_.*", r"\1", module)
    raise UserError(f'{word}: not installed; pip install "mhprobe[{extra}]".')


def data_of_weights(overrides: Sequence[str]) -> list[str]:
    """Return ``data=<name>`` of the given weights' description, unless data or an experiment is given."""
    keys = {key_of(override): override.partition("=")[2] for override in overrides}
    if "weights" not in keys or {"data", "experiment"} & set(keys):
        return []
    name = _description(keys["weights"].strip("'\"")).get("data")
    known = isinstance(name, str) and (CONF / "data" / f"{name}.yaml").is_file()
    return [f"data={name}"] if known else []


def _description(weights: str) -> Mapping[str, Any]:
    """Return what stands beside weights, or in a checkpoint; nothing if it cannot be read.

    It is checked when the weights are loaded.
    """
    from mhprobe.weights.checkpoint import read_description  # torch takes seconds, --help none
    from mhprobe.weights.hub import NAMES as FILES

    file = Path(weights).expanduser()
    file = next(filter(Path.is_file, map(file.joinpath, FILES)), file)  # of a run's folder
    try:
        if file.suffix == ".ckpt":
            return read_description(file)
        about = json.loads(file.with_suffix(".json").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return about if isinstance(about, dict) else {}


def key_of(override: str) -> str:
    """Return the key or group of an override: '++masking.steps=3' -> 'masking.steps', '+data@second=x' -> 'data'."""
    return re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]


def _subject(*, _root_: DictConfig) -> str:
    """Return a name for what a run is about: that of its weights, or of its backbone without weights."""
    weights = OmegaConf.select(_root_, "weights", default=None)
    if not isinstance(weights, str) or weights == "random":
        return str(_root_.backbone.name)
    path = Path(weights).expanduser()
    described = path.is_dir() or (_written_by_run(path) and path.suffix != ".ckpt")
    # a checkpoint is large, and does not say who made it
    made = _description(weights).get("made") if described else None
    name = made.get("name") if isinstance(made, dict) else None
    if isinstance(name, str) and Path(name).name == name:
        return name
    return network(weights)


def _network(*, _root_: DictConfig) -> str:
    return network(OmegaConf.select(_root_, "weights", default=None))


def network(weights: str | None) -> str:
    """Return a name for weights: that of their file, with the folders of the run for a file that mhprobe names."""
    if weights in (None, "random"):
        return "untrained"
    path = Path(weights)
    if not _written_by_run(path):
        return path.stem
    return "_".join([*path.absolute().parts[-3:-1], path.stem])


def _written_by_run(file: Path) -> bool:
    """Return True for a name that says nothing but that a run wrote the file."""
    return file.stem in ("model", "pruned", "best", "last")


def _swept(name: str, *, _root_: DictConfig) -> str:
    """Return a sweep's folder: the name of its jobs, or the first of several names and how many more there are."""
    for override in map(OverridesParser.create().parse_override, _root_.hydra.overrides.task):
        if override.key_or_group in NAMES and override.is_choice_sweep():
            first, *others = override.sweep_string_iterator()
            return f"{first}_and_{len(others)}_more"
    return name
