"""python -m mhprobe, and the script mhprobe: a door to the commands.

``mhprobe train ...`` is ``python -m mhprobe.train ...``. Alone it lists the commands: every module
whose first line says ``python -m <its name>: what it does``, or ``mhprobe <command>: ...`` where
its name is another.
"""

import os
import re
import sys
from pathlib import Path

from mhprobe.errors import one_line

PACKAGE = Path(__file__).parent
DEMO = ("train", "+experiment=demo")
# Commands that read folders, maybe a stranger's, and name no code of the user: they import nothing
# from the folder that one stands in.
READERS = {"report", "compare", "look", "dashboard", "studies.sweep"}


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
    print("mhprobe: what does each attention head do, and which heads can go?\n")
    for command, (_, does) in modules.items():
        print(f"  mhprobe {command:<16} {does}")
    print(
        "\nmhprobe COMMAND --help says more; python -m mhprobe.COMMAND is the same (look: "
        "mhprobe.looking)."
    )
    print(
        "mhprobe GROUP=OPTION says what it is and which options it has, e.g. mhprobe measure=svcca."
    )
    print('eval "$(mhprobe --install-completion)" lets bash complete commands and settings.')
    if name not in ("--help", "-h"):
        print(
            f"mhprobe: there is no command {name!r}; there are {', '.join(modules)}.",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
