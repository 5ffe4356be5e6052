"""python -m mhprobe.studies.causal: which heads are necessary, irrelevant or interfering (no training)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run import builders
    from mhprobe.studies.causal_roles import CausalRoles

    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    callbacks = [*builders.callbacks(cfg, model, data, report), CausalRoles(report, cfg["seed"], **cfg["causal"])]
    trainer = builders.trainer(cfg, callbacks, report)
    builders.test(trainer, model, data, report)
    builders.finish(cfg, trainer, model, data, report)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("studies.causal")
