"""python -m mhprobe, and the script mhprobe: a door to the commands.

``mhprobe train ...`` is ``python -m mhprobe.train ...``. Alone it lists the commands that most people
need, ``mhprobe more`` lists all: every module whose first line says ``python -m <its name>: what it
does``, or ``mhprobe <command>: ...`` where its name is another.
"""

import os
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from mhprobe.errors import one_line

PACKAGE = Path(__file__).parent
DEMO = ("train", "+experiment=demo")
FIRST = ("demo", "look", "train", "probe", "mask", "prune", "shrink", "compare")
SHOWN = 7  # of these, in the help
# Commands that read folders, maybe a stranger's, and name no code of the user: they import nothing
# from the folder that one stands in.
READERS = {"report", "compare", "look", "shrink", "dashboard", "studies.sweep"}


def commands() -> dict[str, tuple[str, str]]:
    """Every command by its name: the module that ``python -m`` runs, and what it does."""
    modules = {}
    places = ("*.py", "studies/*.py", "*/__main__.py")
    for path in sorted(path for place in places for path in PACKAGE.glob(place)):
        text = path.read_text(encoding="utf-8")
        match = re.match(
            r'"""(python -m mhprobe\.|mhprobe )([\w.]+)[^:\n]*: (.*?)\.?(?:"""|\n)', text
        )
        here = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        here = here.removesuffix(".__main__")
        if match and (match[2] == here or match[1] == "mhprobe "):
            modules[match[2]] = f"mhprobe.{here}", match[3]
    return modules


def listing(modules: Mapping[str, tuple[str, str]], everything: bool = False) -> str:
    """Return the help: the commands that most people need, and the names of the others.

    modules: every command, and what it does. everything: say of all commands what they do.
    """
    first = [name for name in FIRST if name in modules][:SHOWN]
    rest = [name for name in modules if name not in first]
    lines = ["mhprobe: what does each attention head do, and which heads can go?", ""]
    lines += [f"  mhprobe {name:<16} {modules[name][1]}" for name in first]
    if everything:
        lines += ["", "More:", *(f"  mhprobe {name:<16} {modules[name][1]}" for name in rest)]
    else:
        more = f"More: {', '.join(rest)}. `mhprobe more` says what they do."
        lines += ["", *textwrap.wrap(more, 96, break_on_hyphens=False)]
    lines += [
        "",
        "mhprobe COMMAND --help says more; python -m mhprobe.COMMAND is the same (look: "
        "mhprobe.looking).",
        "mhprobe GROUP=OPTION says what it is and which options it has, e.g. mhprobe measure=svcca.",
        'eval "$(mhprobe --install-completion)" lets bash complete commands and settings.',
    ]
    return "\n".join(lines)


@one_line()
def main() -> None:
    modules = {
        **commands(),
        "demo": ("", f"`{' '.join(DEMO)}`: train, test, probe and mask a small ViT on digits"),
    }
    name, *rest = sys.argv[1:] or ["--help"]
    if name == "demo":
        name, *rest = *DEMO, *rest
        os.environ.setdefault(
            "OMP_NUM_THREADS", "1"
        )  # more threads: other rounding, other weights, no faster
    if name in modules:
        safe = ["-P"] if name in READERS else []
        os.execv(sys.executable, [sys.executable, *safe, "-m", modules[name][0], *rest])
    if name in ("--install-completion", "--complete") or "=" in name:
        from mhprobe.framework.run.about import SCRIPT, about, offers

        if name == "--complete":
            print("\n".join(offers(rest[0] if rest else "", modules, DEMO)))
        else:
            print(SCRIPT if name == "--install-completion" else about(name))
        return
    print(listing(modules, everything=name == "more"))
    if name not in ("--help", "-h", "more"):
        print(
            f"mhprobe: there is no command {name!r}; there are {', '.join(modules)}.",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
