"""python -m mhprobe.prunebench: methods of pruning beside each other on one network, at equal FLOPs, over seeds.

A cell, a method at a budget with a seed, is a small file below ``cells``: a bench goes on where it
stopped, and jobs of a sweep share cells. The table has the error of a cell that failed, and a
command for each that was not run.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    """Run the cells that the checked configuration asks for, in one process."""
    from mhprobe.framework.run.questions import answer
    from mhprobe.lab.prunebench.cells import question_of_cells

    answer(cfg, folder, question_of_cells(cfg, folder), tested=False)


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("prunebench")
