"""python -m mhprobe, and the script mhprobe: a door to the commands.

``mhprobe train ...`` is ``python -m mhprobe.train ...``. Alone it lists the commands: every module whose first line
says ``python -m <its name>: what it does``. ``mhprobe measure=svcca`` says what that is. bash can complete it all.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent
DEMO = ("train", "+experiment=demo")


def commands() -> dict[str, str]:
    """Name below mhprobe -> what it does."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        match = re.match(r'"""python -m mhprobe\.([\w.]+)[^:]*: (.*?)\.?(?:"""|\n)', path.read_text(encoding="utf-8"))
        here = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__main__")
        if match and match[1] == here:
            found[match[1]] = match[2]
    return found


def main() -> None:
    known = commands()
    name, *rest = sys.argv[1:] or ["--help"]
    if name == "demo":
        name, *rest = *DEMO, *rest
    if name in known:
        os.execv(sys.executable, [sys.executable, "-m", f"mhprobe.{name}", *rest])
    if name in ("--install-completion", "--complete"):
        from mhprobe.run import completion

        asked = name == "--complete"
        print("\n".join(completion.offers(rest[0], known, DEMO)) if asked else completion.SCRIPT)
        return
    if "=" in name:
        from mhprobe.run.about import tell

        tell(name)
        return
    shown = {**known, "demo": f"`{' '.join(DEMO)}`: train, test, probe and mask a small ViT on digits"}
    print("mhprobe: what does each attention head do, and which heads can go?\n")
    for each, what in shown.items():
        print(f"  mhprobe {each:<16} {what}")
    print("\nmhprobe COMMAND --help says more; python -m mhprobe.COMMAND is the same.")
    print("mhprobe GROUP=OPTION says what it is and which options it has, e.g. mhprobe measure=svcca.")
    print('eval "$(mhprobe --install-completion)" lets bash complete commands and settings.')
    if name not in ("--help", "-h"):
        print(f"mhprobe: there is no command {name!r}; there are {', '.join(shown)}.", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
