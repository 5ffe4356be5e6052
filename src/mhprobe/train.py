"""python -m mhprobe.train: train, then test, probe and mask the best weights."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.run import batch_size, image_data, networks, questions, trainers
    from mhprobe.framework.run.resume import LAST, resume

    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    report = trainers.make_report(cfg, folder, model.gates.layout)
    if cfg.ckpt_path is None or not (folder / LAST).is_file():
        report.begin({})
    cfg = batch_size.settled(cfg, model, data, report)
    answers = questions.of_run(cfg, model, data, report)
    callbacks = trainers.build_callbacks(cfg, model, data, report)
    trainer = trainers.build_trainer(cfg, [*callbacks, answers], report)
    trainers.open_loggers(cfg, report, trainer)
    trainer.fit(model, datamodule=data, ckpt_path=resume(cfg, folder, trainer))

    networks.load_best(model, folder / "checkpoints")
    trainers.test(trainer, model, data, report)
    networks.save_run_weights(cfg, trainer, model, data, folder)
    trainers.finish(cfg, trainer, model, data, report)
    answers.complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("train")
