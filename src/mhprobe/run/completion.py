"""Completion in bash behind the word ``mhprobe``: a command, then what Hydra knows of the command's configuration.

Hydra's own completion (``-sc install=bash``) is of a program that is one command, with every group of conf/. Here it is
asked for one of several commands, and answers with what this command has. Where it knows nothing, bash offers files.
"""

from collections.abc import Iterable

from mhprobe.errors import UserError
from mhprobe.run import sections

# bash gives the line and asks "mhprobe --complete"; it replaces only what stands behind the last "=" of a word
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


def offers(line: str, commands: Iterable[str], demo: tuple[str, ...]) -> list[str]:
    """Return the words that can stand where ``line`` ends: ``mhprobe train data=d`` -> ``data=digits``.

    Empty for a command without a configuration, and where what was typed does not compose. demo: what the word ``demo``
    stands for.
    """
    said = line.split()[1:]
    if not said or (len(said) == 1 and not line.endswith(" ")):
        before = said[0] if said else ""
        return [name for name in sorted({*commands, "demo"}) if name.startswith(before)]
    command, *rest = [*demo, *said[1:]] if said[0] == "demo" else said
    if command not in sections.commands():
        return []
    found = _asked(command, " ".join(rest) + " " * line.endswith(" "))
    return [f"+{word}" if word.rstrip("=") in sections.ADDS else word for word in found if _can(command, word)]


def _asked(command: str, line: str) -> list[str]:
    from hydra import initialize_config_dir
    from hydra._internal.core_plugins.bash_completion import BashCompletion
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    sections.install()
    try:
        with initialize_config_dir(str(sections.CONF), version_base="1.3"):
            return BashCompletion(GlobalHydra.instance().config_loader())._query(command, line)
    except (UserError, ValueError, HydraException, OmegaConfBaseException):  # what was typed before does not compose
        return []


def _can(command: str, word: str) -> bool:
    """Hydra offers all groups of conf/, and the file that the others of a group begin with."""
    group, _, option = word.lstrip("+~").partition("=")
    own = {*sections.sections(command), "experiment", "hydra"}
    return group.split(".")[0].split("/")[0] in own and not (option == "base" and "." not in group)
