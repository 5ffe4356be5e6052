"""python -m mhprobe.prune: remove heads from trained weights, and save the smaller network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.run.schema import Config


def run(cfg: Config, folder: Path) -> None:
    """The task itself; ``cfg`` is composed and checked."""
    from mhprobe.backbones import attach
    from mhprobe.masking.base import LABELS
    from mhprobe.questions.attention import keep_attention
    from mhprobe.report.html import finish_report
    from mhprobe.report.summary import show
    from mhprobe.run import builders, pruning
    from mhprobe.run.construct import construct, keyed
    from mhprobe.weights.checkpoint import gates_kept, load_weights

    pruning.refuse(cfg)
    settings = cfg.prune
    assert settings is not None
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    device = pruning.one_process(builders.trainer(cfg, [], report))
    dense = model.to(device).backbone.eval()
    order = None if settings.order is None else construct(settings.order, "prune.order")
    weights = load_weights(file)[1] if (file := builders.weights_file(cfg)) else None
    with keyed(settings.model_dump(), "prune"):
        source = pruning.source_of(settings, order, cfg.seed)
        found = pruning.run_pruning(
            settings,
            dense,
            pruning.images(cfg, model, data, device),
            report,
            source,
            model.description,
            train=pruning.retraining(cfg, dense, model.description, data, report) if settings.tune_epochs else None,
            kept=None if weights is None else gates_kept(weights),
            made=pruning.made_from(cfg, data, weights or {}),
        )
    if found.scored == LABELS and not found.optimistic:  # two runs are compared on images that neither has looked at
        builders.keep_outcomes(folder, found.right[-1], data)
    attach(found.model, units={"head"})  # what looks at heads finds them by their gates
    keep_attention(folder, found.model, data)
    finish_report(folder, cfg.command, model.gates.layout.of("head"), model.description)
    report.close()
    show(folder)
    if found.promise is not None and not found.promise.steps:
        raise pruning.nothing_promised(found.promise)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("prune")
