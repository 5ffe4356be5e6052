"""python -m mhprobe, and the script mhprobe: a door to the commands.

``mhprobe train ...`` is ``python -m mhprobe.train ...``. Alone it lists the commands that most people
need, ``mhprobe more`` lists all: every module whose first line says ``python -m <its name>: what it
does``, or ``mhprobe <command>: ...`` where its name is another.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from mhprobe.errors import nearest, one_line

PACKAGE = Path(__file__).parent
DEMO = ("train", "+experiment=demo")
WEIGHTS = PACKAGE.parents[1] / "weights" / "cifar10_vit_dinov2.safetensors"  # in a clone alone
LOOK = Path("outputs", "demo", "look.html")  # the demo's second page
FIRST = ("demo", "look", "train", "probe", "mask", "prune", "shrink", "compare")
SHOWN = 7  # of these, in the help
# Commands that read folders, maybe a stranger's, and name no code of the user: they import nothing
# from the folder that one stands in.
READERS = {"report", "compare", "diff", "look", "shrink", "dashboard", "studies.sweep"}


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
        "mhprobe COMMAND --help says more; python -m mhprobe.COMMAND is the same (diff: "
        "mhprobe.differing, look: mhprobe.looking).",
        "mhprobe GROUP=OPTION says what it is and which options it has, e.g. mhprobe measure=svcca.",
        'eval "$(mhprobe --install-completion)" lets bash complete commands and settings.',
    ]
    return "\n".join(lines)


def demo(overrides: Sequence[str]) -> int:
    """Train and probe on digits, and meanwhile make a page of a ViT-S/14; return the exit status.

    The second page is ``mhprobe look`` of the fine-tuned ViT-S/14 of a clone, on the two photographs
    that come with scikit-learn. It takes the second core while the training takes the first. Where
    it cannot be made the demo says so, and is no failure.
    """
    train = [sys.executable, "-m", "mhprobe.train", *DEMO[1:], *overrides]
    sklearn = importlib.util.find_spec("sklearn")
    plain = all("=" in word for word in overrides)  # no --help, no sweep
    if not plain or sklearn is None or sklearn.origin is None or not WEIGHTS.is_file():
        if plain:
            print("The demo's second page needs the weights of a clone; this one makes the first.")
        sys.stdout.flush()
        os.execv(sys.executable, train)
    LOOK.parent.mkdir(parents=True, exist_ok=True)
    photographs = Path(sklearn.origin).parent / "datasets" / "images"
    look = [sys.executable, "-P", "-m", "mhprobe.looking", str(WEIGHTS), str(photographs)]
    with tempfile.TemporaryFile("w+") as said:
        looking = subprocess.Popen([*look, "--out", str(LOOK)], stdout=said, stderr=said)
        training = subprocess.Popen(train)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: both processes get it
        signal.signal(signal.SIGTERM, lambda number, frame: training.terminate())
        status = training.wait()
        if status:
            looking.terminate()
        failed = looking.wait()
        said.seek(0)
        last = said.read().rstrip().rpartition("\n")[2]
    if not status:
        print("" if failed else "\nwhere the heads of a ViT-S/14 look in two photographs:")
        print(f"The demo's second page could not be made: {last}" if failed else last)
    return status if status >= 0 else 128 - status


@one_line()
def main() -> None:
    modules = {
        **commands(),
        "demo": ("", f"`{' '.join(DEMO)}`: train, test, probe and mask a small ViT on digits"),
    }
    name, *rest = sys.argv[1:] or ["--help"]
    if name == "demo":
        # more threads: other rounding, other weights, no faster
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(demo(rest))
    if name in modules:
        safe = ["-P"] if name in READERS else []
        os.execv(sys.executable, [sys.executable, *safe, "-m", modules[name][0], *rest])
    if name in ("--install-completion", "--complete") or "=" in name:
        from mhprobe.framework.run.about import SCRIPT, help_of, offers

        if name == "--complete":
            print("\n".join(offers(rest[0] if rest else "", modules, DEMO)))
        else:
            print(SCRIPT if name == "--install-completion" else help_of(name))
        return
    print(listing(modules, everything=name == "more"))
    if name not in ("--help", "-h", "more"):
        print(
            f"mhprobe: there is no command {name!r}; {nearest(name, modules)}there are "
            f"{', '.join(modules)}.",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
