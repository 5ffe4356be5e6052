"""python -m mhprobe.train: train, then test, probe and mask the best weights."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.run import batch_size, builders, questions
    from mhprobe.framework.run.resume import LAST, resume

    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    if cfg.ckpt_path is None or not (folder / LAST).is_file():
        report.begin({})
    cfg = batch_size.settled(cfg, model, data, report)
    answers = questions.of_run(cfg, model, data, report)
    callbacks = builders.callbacks(cfg, model, data, report)
    trainer = builders.trainer(cfg, [*callbacks, answers], report)
    trainer.fit(model, datamodule=data, ckpt_path=resume(cfg, folder, trainer))

    builders.best(model, folder / "checkpoints")
    builders.test(trainer, model, data, report)
    builders.save(cfg, trainer, model, data, folder)
    builders.finish(cfg, trainer, model, data, report)
    answers.complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("train")
