"""Command line: Hydra composes, a command runs, and a user's mistakes are answered in one line.

Exit codes: 0 done, 2 bad input, 130 interrupted, 143 stopped by SIGTERM (training saves first);
others are bugs.
"""

import argparse
import contextlib
import inspect
import itertools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, NoReturn

import hydra

# the flags of every command of Hydra: what parses them is in no public module
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhprobe.errors import UserError, causes, first_line, nearest
from mhprobe.framework.run import composing, jobs, sections
from mhprobe.framework.run.sections import CONF, options_in_words, options_of_group
from mhprobe.io.files import reason
from mhprobe.io.nested import leaves
from mhprobe.io.stopping import Stopped, listen, outlive_readers, stop


def main(command: str) -> None:
    """Run a command (a file of conf/: train, probe, studies.voita ...) as a Hydra application; sweeps with -m."""
    if _is_command():
        outlive_readers()
    os.environ["HYDRA_FULL_ERROR"] = (
        "1"  # let exceptions through to us instead of Hydra's own print and exit
    )
    composing.compose_for(command)
    sys.argv[1:] = flags_first(["verbose=true" if word == "-v" else word for word in sys.argv[1:]])
    listen(lambda number: _stopped(command, number))
    started: list[Path] = []
    mistakes: list[UserError] = []
    words = tuple(sys.argv[1:])  # a launcher runs jobs in processes that have words of their own

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=command)
    def application(cfg: DictConfig) -> None:
        _job(command, cfg, started, mistakes, words)

    try:
        _answer(command, application)
    except (UserError, HydraException, OmegaConfBaseException) as error:
        jobs.forget_unused()
        fail(explain(command, error))
    except (ValueError, TypeError) as error:  # Hydra's answer to data=3 and data=[3]
        if started:
            raise
        jobs.forget_unused()
        fail(_no_option(error))
    except OSError as error:
        if started:  # parts answer for their own files
            raise
        fail(_unwritable(error))
    except BrokenExecutor:  # joblib gave up
        sys.exit(
            "mhprobe: a process of the sweep was killed, e.g. for want of memory, and joblib ended "
            "the others with it. "
            "Jobs whose folder has no metrics.json are to be run again; hydra.launcher.n_jobs=1 "
            "takes the least memory."
        )
    except Stopped as stopped:
        sys.exit(stopped.code)
    except KeyboardInterrupt:  # a launcher's own
        with contextlib.suppress(Stopped):
            stop(signal.SIGINT)
        sys.exit(130)
    if mistakes:
        sys.exit(2)


def _no_option(error: Exception) -> str:
    """Return the line for a group that got something else than the name of an option."""
    for word in sys.argv[1:]:
        group, _, value = word.lstrip("+").partition("=")
        named = value != "null" and re.match(r"[a-zA-Z_]|\[[a-zA-Z_]", value)
        if not named and (one_of := options_in_words(group)):
            return f"{group}: expected one of {one_of}, got {value}."
    return f"{first_line(error)}. --help says what there is."


def _unwritable(error: OSError) -> str:
    """Return the line for a run's folder that cannot be written."""
    place = error.filename or "the run's folder"
    why = reason(error, Path(error.filename or "."))
    return (
        f"out: {place} cannot be written ({why}). Make room, or choose another folder with "
        "out=<folder>."
    )


def _is_command() -> bool:
    """Return True if this process runs a command of ours, and no other program."""
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name.startswith("mhprobe.")


def flags_first(words: list[str]) -> list[str]:
    """Put overrides behind the flags: Hydra takes them on one side of ``-m`` only.

    Exit code 2 for an unknown flag.
    """
    parser = get_args_parser()
    parser.error = lambda message: fail(f"{message}. --help says what there is.")  # type: ignore[method-assign]
    overrides: list[str] = parser.parse_intermixed_args(words).overrides
    return [*(word for word in words if word not in overrides), *overrides]


def _answer(command: str, application: Callable[[], None]) -> None:
    """Print what ``--help`` or ``--cfg job`` asks for; leave all else to Hydra."""
    asked = get_args_parser().parse_args()
    elsewhere = asked.config_path or asked.config_name or asked.config_dir or asked.hydra_help
    other = asked.run or asked.multirun or asked.shell_completion or asked.info is not None
    if asked.help and not elsewhere:  # Hydra would compose once more for each group
        print(composing.composed(command, asked.overrides, hydra=True).hydra.help.template)
    elif asked.cfg == "job" and not other and not elsewhere:  # Hydra would leave out ``finished``
        print(_shown(composing.composed(command, asked.overrides), asked), end="")
    else:
        count = len(sys.argv) - len(asked.overrides)
        sys.argv[count:] = composing.prepared(command, asked.overrides, asked.multirun)
        application()


def _shown(cfg: DictConfig, asked: argparse.Namespace) -> str:
    """Return the section ``--package`` of a configuration as text, all of it without."""
    if asked.package in (None, "_global_"):
        part, title = cfg, ""
    else:
        part = OmegaConf.select(cfg, asked.package)
        title = f"# @package {asked.package}\n"
        if part is None:
            fail(f"--package: the configuration has no {asked.package}; it has {', '.join(cfg)}.")
    if not OmegaConf.is_config(part):
        return f"{part}\n"
    if asked.resolve:
        OmegaConf.resolve(part)
    return title + OmegaConf.to_yaml(part)


def _job(
    command: str,
    cfg: DictConfig,
    started: list[Path],
    mistakes: list[UserError],
    words: Sequence[str],
) -> None:
    """Run a command, or one job of a sweep; a job that fails leaves a note in its folder."""
    from mhprobe.framework.run.launch import run

    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    sweeping = job.mode == RunMode.MULTIRUN
    started.append(folder)
    try:
        cfg, typed = composing.of_job(command, cfg, job.overrides.task)
        with jobs.held(folder), jobs.keep_settings(folder, cfg, typed, sweeping):
            refuse_empty(cfg, typed)
            refuse_unread(cfg, typed)
            run(command, cfg, folder, typed, words if sweeping else ())
    except (
        UserError,
        OmegaConfBaseException,
    ) as error:  # not through Hydra, which adds lines of its own
        mistake = error if isinstance(error, UserError) else UserError(explain(command, error))
        say(str(mistake))
        mistakes.append(mistake)
        if sweeping:
            jobs.note_failure(folder, 2, str(mistake))
    except Exception as error:
        if not sweeping:
            raise
        traceback.print_exc()
        jobs.note_failure(folder, 1, f"{type(error).__name__}: {error}")
    except SystemExit as stop:
        if not sweeping or stop.code in (130, 143):  # a signal ends the whole sweep
            raise
        jobs.note_failure(folder, 1, f"exit code {stop.code}")


def refuse_empty(cfg: DictConfig, overrides: Iterable[str]) -> None:
    """Raise UserError for ``key={}``, which empties nothing: Hydra merges it with the section."""
    for key in (word.removesuffix("={}").lstrip("+") for word in overrides if word.endswith("={}")):
        if section := OmegaConf.select(cfg, key, throw_on_resolution_failure=False):
            raise UserError(
                f"{key}={{}}: adds nothing to what is there ({', '.join(map(str, section))}) and "
                "takes nothing away; "
                f"take parts away by name (~{key}.{next(iter(section))}), or choose another option "
                "of the group."
            )


def refuse_unread(cfg: Any, overrides: Iterable[str]) -> None:
    """Raise UserError for a typed ``backbone``, or setting of one, that differs from that of the file ``weights``."""
    typed = [
        word.lstrip("+").partition("=")[0]
        for word in overrides
        if word.lstrip("+").startswith("backbone")
    ]
    if not typed:
        return
    from mhprobe.weights.checkpoint import read_description
    from mhprobe.weights.description import FREE
    from mhprobe.weights.hub import NAMES

    place = Path(str(cfg.get("weights")))
    if not (files := [*filter(Path.is_file, (place, *map(place.joinpath, NAMES)))]):
        return
    theirs, taken = read_description(files[0])["backbone"], (*FREE, "num_classes", "checkpoint")
    for key in typed:
        name = key.partition(".")[2] or "name"
        if name not in taken and (value := cfg["backbone"].get(name)) not in (
            None,
            theirs.get(name),
        ):
            raise UserError(
                f"{key}: the network of weights={cfg['weights']} has {theirs.get(name, 'none')}, "
                f"got {value}. Leave "
                f"{key} out; of backbone only num_classes=0, {', '.join(FREE)} change."
            )


def _stopped(command: str, number: int) -> None:
    """Write which signal came and how to go on; on rank 0 alone, since srun and torchrun signal all ranks."""
    if jobs.rank_by_environment():
        return
    what = "interrupted" if number == signal.SIGINT else f"stopped ({signal.Signals(number).name})"
    training = "ckpt_path" in sections.sections(command)
    next_step = (
        "go on with ckpt_path=last"
        if training
        else "the same command goes on behind what it has measured"
    )
    # not print, which the signal may have interrupted
    os.write(2, f"mhprobe: {what}; {next_step}\n".encode())


def say(message: str) -> None:
    """Write one line to stderr."""
    print(f"mhprobe: {' '.join(message.split())}", file=sys.stderr)


def fail(message: str) -> NoReturn:
    """Write one line to stderr and end with exit code 2."""
    say(message)
    sys.exit(2)


def explain(command: str, error: Exception) -> str:
    """Return an error of Hydra or OmegaConf as one line that lists the valid choices."""
    for inner in causes(error):
        if isinstance(inner, UserError):
            return str(inner)
    text = str(error).partition("Config search path:")[0]
    reasons = text if error.__cause__ is None else f"{text}\n{error.__cause__}"
    unchosen = re.search(r"Could not override '([\w/]+/\w+)'", text)
    if unchosen is not None and options_of_group(unchosen[1]):
        return _group_of_a_part(command, unchosen[1])
    gone = "Could not delete" in text and "does not exist" in text
    if gone or "is not in struct" in reasons or "Could not override" in reasons:
        return _unknown_key(command, text)
    # a parser quotes only the end of what it could not read
    override = getattr(error, "override", None)
    word = override or (text.split("'")[-2] if "LexerNoViableAlt" in text else "")
    if isinstance(word, str) and (in_quotes := _in_quotes(word)):
        return f"{word}: Hydra's grammar takes such a value in quotes only: {in_quotes}."
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines[0] = _naming_the_word(override, text) + lines[0]
    if text.startswith("Error merging override") and error.__cause__ is not None:
        lines.append(first_line(error.__cause__) + ".")
    group = re.search(r"Could not (?:load|find) '([\w/]+)/([^/']+)'", text)
    if group is not None:
        options = options_of_group(group[1])
        if meant := nearest(group[2], options).strip():
            lines.insert(1, f"D{meant[1:]}")
        if "Available options" not in text:
            lines.append(f"Available options: {', '.join(options)}.")
    return " ".join([lines[0] + ("" if lines[0].endswith((".", ":")) else "."), *lines[1:]])


def _naming_the_word(override: str | None, text: str) -> str:
    """Return the typed words that an error is about, before its first line; "" if it names them, or of none."""
    if override is not None and override not in text:
        return f"{override}: "
    if "interpolation" not in text.lower():
        return ""
    pointing = [word for word in sys.argv[1:] if "${" in word]
    return f"{' '.join(pointing)}: " if pointing else ""


def _in_quotes(word: str) -> str:
    """Return an override that Hydra cannot read with quotes around its value; "" if they are no help."""
    key, _, value = word.partition("=")
    tried = [re.sub(r".+", r'"\g<0>"', value)]
    if value[:1] + value[-1:] == "[]":  # its odd items
        odd = r"[^][,]*[^][,\w.-][^][,]*"
        tried.insert(0, re.sub(odd, r'"\g<0>"', value, flags=re.ASCII))
    for quoted in tried if value and "'" not in key else ():
        with contextlib.suppress(HydraException):
            OverridesParser.create().parse_override(f"{key}={quoted}")
            return f"'{key}={quoted}'"
    return ""


def _group_of_a_part(command: str, group: str) -> str:
    """Return a line for a group that the chosen options have no place for: prune/order without prune=order."""
    key = group.replace("/", ".")
    word = next(word for word in sys.argv[1:] if composing.key_of(word) == group)
    chosen = [other for other in sys.argv[1:] if _chooses(other) and other != word]
    parent, _, leaf = key.rpartition(".")
    if leaf in (OmegaConf.select(composing.composed(command, chosen), parent) or ()):
        return (
            f"{word}: nothing is chosen of {group} that it could replace. Write +{word} to add it."
        )
    return f"{word}: {_where_it_is(command, chosen, key)}Give one of these, too, or leave it out."


def _unknown_key(command: str, text: str) -> str:
    """Return a line for an unknown key, with the keys and options that exist."""
    key = text.split("'")[1] if "'" in text else ""
    if (why := _not_so(key)) is not None:
        return why
    typed = [word for word in sys.argv[1:] if word.startswith("+experiment=")]
    experiment = [word for word in typed if "," not in word]
    chosen = experiment + [word for word in sys.argv[1:] if _chooses(word)]
    cfg = composing.composed(command, chosen, hydra=key.startswith("hydra."))
    parent, leaf = _deepest(cfg, key)
    node = OmegaConf.select(cfg, parent) if parent else cfg
    line = f"unknown key {key!r}: {_where_it_is(command, chosen, key)}"
    line += _settings_of(node, parent, leaf, parent or f"mhprobe.{command}")
    if leaf != key.rpartition(".")[2] or not _takes(node, parent, leaf):
        return line
    if typed != experiment:
        # the experiments may have the key; Hydra asks for it before it reads them
        return f"{line} In a sweep over experiments write ++{key}=..."
    return f"{line} Use +{key}=... to add a key that the target takes."


def _not_so(key: str) -> str | None:
    """Return the line for a key that another typed word takes away, or that is a group's; None for others."""
    for word in sys.argv[1:]:
        away = word[1:] if word.startswith("~") and "=" not in word else word.removesuffix("=null")
        if away != word and key.startswith(f"{away}."):
            return f"{key}: is taken away by {word}. Leave one of them out."
    options = options_of_group(key)
    if options and key in sections.ADDS:
        return f"{key}: is added, so that it takes a +, as in +{key}={options[0]}."
    if options:
        return f"{key}: is chosen by name, expected one of {options_in_words(key)}."
    return None


def _deepest(cfg: DictConfig, key: str) -> tuple[str, str]:
    """Return the last part of a key that there is, and the name behind it that there is not."""
    parent, _, leaf = key.rpartition(".")
    while parent and not isinstance(OmegaConf.select(cfg, parent), DictConfig):
        parent, _, leaf = parent.rpartition(".")
    return parent, leaf


def _settings_of(node: Any, parent: str, leaf: str, called: str) -> str:
    """Return a sentence on the settings of a part, with the one that was meant perhaps."""
    keys = [str(name) for name in node]
    settings = ", ".join(name for name in keys if name != "_target_") or "no settings"
    deeper = _below(node, leaf)
    meant = f"did you mean {parent}.{deeper}? " if parent and deeper else nearest(leaf, keys)
    return f"{meant}{called} has {settings}."


def _below(node: Any, leaf: str) -> str:
    """Return the place of an option of that name inside a part of a configuration; "" if there is none."""
    plain = OmegaConf.to_container(node, resolve=False)
    inner = (path for path, _ in leaves(plain) if path[-1] == leaf and len(path) > 1)
    return ".".join(next(inner, ()))


def _where_it_is(command: str, chosen: Sequence[str], key: str) -> str:
    """Return a sentence on the options of groups that have a key, or have it further inside; "" if none has."""
    having = _options_with(command, chosen, key)
    sentences = []
    for place in dict.fromkeys(having.values()):
        choices = [choice for choice, other in having.items() if other == place]
        has = "has" if len(choices) == 1 else "have"
        sentences.append(f"{' and '.join(choices)} {has} {'it' if place == key else place}. ")
    return "".join(sentences)


def _takes(node: Any, parent: str, leaf: str) -> bool:
    """Return True if the target of a part takes an option, by its signature."""
    target = "lightning.Trainer" if parent == "trainer" else str(node.get("_target_", ""))
    if not target:  # about which Hydra writes a line of its own
        return False
    try:
        made = get_object(target)
        if parent == "backbone":
            from timm import create_model
            from torch import device

            from mhprobe.weights.description import Backbone

            with device("meta"):
                network = type(create_model(node["name"]))
            return leaf in {*inspect.signature(network).parameters, *Backbone.model_fields}
        bases = [of for of in getattr(made, "__mro__", (made,)) if of is not object]
        return any(leaf in inspect.signature(of).parameters for of in bases)
    except Exception:  # no such target, or network: whoever builds it says so
        return False


def _chooses(word: str) -> bool:
    """Return True for a word that takes options of a group: prune=order, prune/order=obs, measure=[cka]."""
    group, _, option = word.lstrip("+").partition("=")
    several = option[1:-1].split(",") if option[:1] + option[-1:] == "[]" else [option]
    return group != "experiment" and {*several} <= {*options_of_group(group)}


def _options_with(command: str, chosen: Sequence[str], key: str) -> dict[str, str]:
    """Return the options of a key's groups that have it, prune=order for prune.remove, and where.

    chosen: words of the command line that take an option; those of other groups stay.
    """
    parent, _, leaf = key.rpartition(".")
    having = {}
    for group in itertools.accumulate(parent.split(".") if parent else [], "{}/{}".format):
        others = [word for word in chosen if word.lstrip("+").partition("=")[0] != group]
        for choice in (f"{group}={option}" for option in options_of_group(group)):
            # no group of this command
            with contextlib.suppress(HydraException, OmegaConfBaseException):
                part = OmegaConf.select(composing.composed(command, [*others, choice]), parent)
                if not isinstance(part, DictConfig):
                    continue
                if place := leaf if leaf in part else _below(part, leaf):
                    having[choice] = f"{parent}.{place}"
    return having
