"""python -m mhprobe.study: every figure and table of one paper, on one model (no training)."""

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run.questions import answer, panels
    from mhprobe.run.sections import options
    from mhprobe.studies import page, paper

    wanted = paper.chosen(cfg["paper"], cfg["figures"], options("paper"))
    made = panels(cfg["paper"]["figures"])
    answers = answer(cfg, folder, lambda material: paper.questions(cfg["paper"], wanted, made, material), estimate=True)
    page.write(cfg["paper"], answers, cfg["name"])
    if cfg["figures"] is not None:
        answers.complain()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("study")
