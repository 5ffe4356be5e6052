"""python -m mhprobe.study: every figure and table of one paper, on one model (no training)."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.questions.material import Material
    from mhprobe.framework.questions.plan import Question
    from mhprobe.framework.run.schema import Config
    from mhprobe.report.report import Report


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.run.questions import answer, panels
    from mhprobe.framework.run.sections import options_of_group
    from mhprobe.lab.claims.parts.asking import with_verdicts
    from mhprobe.lab.papers import paper

    assert cfg.paper is not None
    about, panel_of = cfg.paper, panels(cfg.paper)
    wanted = paper.figures_named(about, cfg.figures, options_of_group("paper"))

    def questions(material: "Material", _: "Report") -> "list[Question]":
        return [
            with_verdicts(question, about.name)
            for question in paper.questions(about, wanted, panel_of, material)
        ]

    answers = answer(cfg, folder, questions, estimate=True)
    paper.write_page(about, answers, cfg.name)
    if cfg.figures is not None:
        answers.complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("study")
