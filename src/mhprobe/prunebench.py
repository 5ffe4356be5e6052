"""python -m mhprobe.prunebench: methods of pruning beside each other on one network, at equal FLOPs, over seeds.

One cell is a method at a budget with a seed. Each is a small file below ``cells``, so that a bench goes on where it
stopped, and jobs of a sweep share what they did. A cell that fails costs itself, and the table says why. A cell that
was not run has its command there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.run.schema import Config


def run(cfg: Config, folder: Path) -> None:
    """The task itself; ``cfg`` is composed and checked."""
    from mhprobe.report.html import finish_report
    from mhprobe.report.runs.facts import command
    from mhprobe.report.summary import show
    from mhprobe.run import builders, pruning
    from mhprobe.run.cells import Cells, refuse, results

    refuse(cfg)
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    cells = Cells(cfg, data, model, pruning.one_process(builders.trainer(cfg, [], report)))
    cells.run()
    report.add_all(results(command(cfg.command, folder), cells.there()))
    finish_report(folder, cfg.command, model.gates.layout.of("head"), model.description)
    report.close()
    show(folder)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("prunebench")
