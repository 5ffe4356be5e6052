"""Help of the word ``mhprobe``: the meaning of a choice (``mhprobe measure=svcca``), and completion in bash.

A choice is explained by the first lines of its yaml or module, its options as they are typed, and
docstrings, without imports. Hydra's own completion (``-sc install=bash``) is for a program that is
one command.
"""

import itertools
import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir

# Hydra answers a shell, not a program: the words that its completion would offer are in a private method
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhprobe.errors import UserError
from mhprobe.framework.run import composing, members, sections
from mhprobe.framework.run.constructors import docstrings, fill
from mhprobe.framework.run.sections import CONF, options_of_group
from mhprobe.io.nested import leaves

# bash replaces only what follows the last "=" of a word
SCRIPT = """\
_mhprobe() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##* } fixed=
    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && fixed=${word%=*}=
    COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" --complete "$line" 2>/dev/null)" -- "$word"))
    COMPREPLY=("${COMPREPLY[@]#"$fixed"}")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} != *[=./] ]] && compopt +o nospace
}
complete -o default -o nospace -F _mhprobe mhprobe"""


def help_of(word: str) -> str:
    """Return the help of ``group=option``. UserError for an unknown group or option."""
    group, _, option = word.partition("=")
    files = {str(path.parent.relative_to(CONF)) for path in CONF.rglob("*.yaml")} - {".", "shared"}
    groups = sorted({*files, *members.FOLDERS})
    if group not in groups:
        raise UserError(f"{word}: there is no group {group}; there are {', '.join(groups)}.")
    file, member = CONF / group / f"{option}.yaml", members.members(group).get(option)
    if file.is_file():
        place, meaning = _comment(file, group)
        chosen = sections.whole(file)
    elif member:
        chosen, place = OmegaConf.create(member), members.option_key(group, option)
        meaning = members.meaning(group, option)
    else:
        raise UserError(f"{word}: {group} has {', '.join(options_of_group(group))}.")
    fill(chosen)
    plain = OmegaConf.to_container(chosen, resolve=False)
    typed = "\n".join(_as_typed(plain, place))
    return "\n\n".join([meaning, *filter(None, [typed]), *_explained(plain)])


def _comment(file: Path, group: str) -> tuple[str, str]:
    """Return the key that the options of a file stand below, and what its first comment says.

    The key is that of "# @package", else the group.
    """
    lines = file.read_text("utf-8").splitlines()
    comment = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    packages = [line.split()[2] for line in comment if line.startswith("# @package")]
    place = packages[0].removeprefix("_global_") if packages else group.replace("/", ".")
    return place, "\n".join(line[1:].strip() for line in comment if "@package" not in line)


def _as_typed(plain: Any, place: str) -> list[str]:
    """Return the options of a part as words of a command line, a line each."""
    lines = []
    for path, value in leaves(plain):
        if not any(key.startswith("_") for key in path):
            written = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"  {'.'.join(filter(None, (place, *path)))}={written}")
    return lines


def _explained(plain: Any) -> list[str]:
    """Return the docstrings of everything that a part builds, each once, up to their examples."""
    targets = [str(value) for path, value in leaves(plain) if path[-1] == "_target_"]
    texts = {name: text for target in targets for name, text in docstrings(target)}
    plain_texts = {name: text.partition("\n>>>")[0].rstrip() for name, text in texts.items()}
    return [f"{name}\n{textwrap.indent(text, '    ')}" for name, text in plain_texts.items()]


def offers(line: str, commands: Iterable[str], demo: tuple[str, ...]) -> list[str]:
    """Return the words that complete ``line``: ``mhprobe train data=d`` -> ``data=digits``.

    demo: its words.
    """
    typed = line.split()[1:]
    if not typed or (len(typed) == 1 and not line.endswith(" ")):
        return [name for name in sorted({*commands, "demo"}) if name.startswith("".join(typed))]
    command, *rest = [*demo, *typed[1:]] if typed[0] == "demo" else typed
    if command not in sections.commands_of_conf():
        return []
    groups = {*sections.sections(command), "experiment", "hydra"}
    composing.compose_for(command)
    try:
        with initialize_config_dir(str(sections.CONF), version_base="1.3"):
            completion = BashCompletion(GlobalHydra.instance().config_loader())
            offered = completion._query(command, " ".join(rest) + " " * line.endswith(" "))
    except (
        UserError,
        ValueError,
        HydraException,
        OmegaConfBaseException,
    ):  # the words before do not compose
        return []
    words = []
    for word in offered:
        group, _, option = word.lstrip("+~").partition("=")
        # Hydra offers all groups of conf/, and base files of groups
        if re.split(r"[./]", group)[0] in groups and (option != "base" or "." in group):
            words.append(f"+{word}" if word.rstrip("=") in sections.ADDS else word)
    return words
