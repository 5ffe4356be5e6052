"""python -m mhprobe.study: every figure and table of one paper, on one model (no training)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run import builders
    from mhprobe.run.sections import options
    from mhprobe.studies.figures import Figures, chosen

    wanted = chosen(cfg["paper"], cfg["figures"], options("paper"))
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    figures = Figures(
        cfg["paper"],
        wanted,
        report,
        measures=builders.measures(cfg["paper"]["measure"], model.gates.layout, "paper.measure"),
        curves=builders.curve_callbacks(cfg["paper"]["masking"], Path(cfg["cache_dir"]), model, report),
        panels=builders.panels(cfg["paper"]["figures"]),
        control=builders.control(model, cfg["seed"]) if cfg["control"] else None,
        seed=cfg["seed"],
    )
    trainer = builders.trainer(cfg, [figures], report)
    builders.test(trainer, model, data, report)
    builders.finish(cfg, trainer, model, data, report)
    if trainer.is_global_zero:
        figures.write_page(cfg["name"], model, data)
    figures.complain(asked=cfg["figures"] is not None)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("study")
