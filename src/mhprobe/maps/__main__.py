"""python -m mhprobe.maps: where attention, its rollouts and relevance point in single images (no training)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.run.schema import Config


def run(cfg: Config, folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.maps.gallery import write_maps
    from mhprobe.report.html import finish_report
    from mhprobe.report.summary import show
    from mhprobe.run import builders, questions
    from mhprobe.run.construct import construct

    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    report.data = data.source.name
    trainer = builders.trainer(cfg, [], report)
    kinds = {name: construct(part, f"maps.{name}") for name, part in (cfg.maps or {}).items()}
    model.to(trainer.strategy.root_device)
    scores = cfg.faithfulness
    options = {"score": False} if scores is None else {**scores.model_dump(), "seed": cfg.seed}
    # a few images are no work to share, but questions are asked on every rank
    write_maps(report, questions.material(cfg, model, data), cfg.images, kinds, **options)
    if trainer.is_global_zero:
        finish_report(folder, cfg.command, model.gates.layout, model.description)
        report.close()
        show(folder)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("maps")
