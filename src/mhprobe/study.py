"""python -m mhprobe.study: every figure and table of one paper, on one model (no training)."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.questions.material import Material
    from mhprobe.framework.questions.plan import Question
    from mhprobe.framework.run.needed import Need
    from mhprobe.framework.run.schema import Config
    from mhprobe.report.report import Report


def needs(cfg: "Config", key: str) -> "list[Need]":
    """Return the need of an option of the validation images: a figure has to look at some.

    Figures with curves look at them, and so may figures with panels, which are taken to do so.
    """
    from mhprobe.framework.run.needed import OF_VALIDATION, TEST_ALONE, Need, select_first
    from mhprobe.framework.run.sections import options_of_group
    from mhprobe.lab.papers import paper

    if key not in OF_VALIDATION or cfg.paper is None:
        return []
    wanted = paper.figures_named(cfg.paper, cfg.figures, options_of_group("paper"))
    figures = [cfg.paper.figures[name] for name in wanted]
    measures = {name: cfg.paper.measure[name] for figure in figures for name in figure.measure}
    looks = any(of.curves or of.panel for of in figures if not of.elsewhere)
    looks = looks or select_first(measures)
    return [Need(OF_VALIDATION, lambda _: looks, TEST_ALONE, ("paper", "figures"))]


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
