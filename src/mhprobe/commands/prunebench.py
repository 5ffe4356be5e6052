"""python -m mhprobe.prunebench: methods of pruning beside each other on one network, at equal FLOPs, over seeds.

One cell is a method at a budget with a seed. Each is a small file below ``cells``, so that a bench goes on where it
stopped, and jobs of a sweep share what they did. A cell that fails costs itself, and the table says why. A cell that
was not run has its command there.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    """The task itself; ``cfg`` is composed and checked."""
    from mhprobe.run.cells import questions
    from mhprobe.run.questions import answer

    answer(cfg, folder, questions(cfg, folder), tested=False)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("prunebench")
