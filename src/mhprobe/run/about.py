"""Explain a choice of the command line: ``mhprobe measure=svcca`` prints its meaning and its options.

The answer is the first lines of its yaml or its module, its options with their defaults as they are typed, and what the
docstrings of the classes behind it say of them. Nothing is imported.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mhprobe.errors import UserError
from mhprobe.run import members
from mhprobe.run.cli import fail
from mhprobe.run.constructors import docstrings, fill
from mhprobe.run.sections import CONF, begins_with, options


def tell(word: str) -> None:
    """Print the answer, or one line that says what there is; exit code 2 then."""
    try:
        print(about(word))
    except UserError as error:
        fail(str(error))


def about(word: str) -> str:
    """The answer to ``group=option``. UserError for a group or an option that there is not."""
    group, _, option = word.partition("=")
    files = {str(path.parent.relative_to(CONF)) for path in CONF.rglob("*.yaml")} - {".", "shared"}
    groups = sorted({*files, *members.FOLDERS})
    if group not in groups:
        raise UserError(f"{word}: there is no group {group}; there are {', '.join(groups)}.")
    file, member = CONF / group / f"{option}.yaml", members.members(group).get(option)
    if file.is_file():
        chosen, place, meaning = _whole(file), _place(file), "\n".join(_first_lines(file))
    elif member:
        chosen, place = OmegaConf.create(member), members.place(group, option)
        meaning = members.meaning(group, option)
    else:
        raise UserError(f"{word}: {group} has {', '.join(options(group))}.")
    fill(chosen)
    typed = [f"  {key}={value}" for key, value in _typed(place, OmegaConf.to_container(chosen, resolve=False))]
    return "\n\n".join([meaning, *(["\n".join(typed)] if typed else []), *_explained(chosen)])


def _whole(file: Path) -> DictConfig:
    """A file on top of those that it begins with, of its group or by their whole names."""
    own = OmegaConf.load(file)
    assert isinstance(own, DictConfig)
    places = [[folder / f"{name}.yaml" for folder in (file.parent, CONF)] for name in begins_with(own)]
    whole = OmegaConf.merge(*(_whole(next(filter(Path.is_file, paths))) for paths in places), own)
    assert isinstance(whole, DictConfig)
    whole.pop("defaults", None)
    return whole


def _place(file: Path) -> str:
    """Return the place of a file's keys: its ``# @package``, else its group."""
    said = re.match(r"# @package (\S+)", file.read_text(encoding="utf-8"))
    group = str(file.parent.relative_to(CONF)).replace("/", ".")
    return (said[1] if said else group).removeprefix("_global_")


def _first_lines(file: Path) -> Iterator[str]:
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        if "@package" not in line:
            yield line.removeprefix("#").strip()


def _typed(place: str, part: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(part, dict):
        yield place, "null" if part is None else str(part).lower() if isinstance(part, bool) else part
        return
    for key, value in sorted(part.items(), key=lambda pair: isinstance(pair[1], dict)):
        if not str(key).startswith("_"):
            yield from _typed(f"{place}.{key}".lstrip("."), value)


def _explained(part: Any) -> Iterator[str]:
    """The docstrings of all that ``part`` is made of, each once, up to their examples."""
    targets = _targets(OmegaConf.to_container(part, resolve=False))
    for name, text in dict.fromkeys(pair for target in targets for pair in docstrings(target)):
        yield f"{name}\n" + "\n".join(
            f"    {line}".rstrip() for line in text.partition("\n>>>")[0].rstrip().splitlines()
        )


def _targets(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "_target_" in part:
            yield str(part["_target_"])
        for inner in part.values():
            yield from _targets(inner)
