"""Search for data.batch_size=auto: the largest training batch that fits into the device's memory."""

import copy
import gc
import tempfile
from pathlib import Path

import torch

from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.framework.run import trainers
from mhprobe.framework.run.schema import Config
from mhprobe.framework.run.shortage import no_memory
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.report.report import Report


def settled(cfg: Config, model: GatedClassifier, data: ImageData, report: Report) -> Config:
    """Return ``cfg`` with a number for ``data.batch_size``.

    UserError if resumed, on a CPU, or in several processes.
    """
    if cfg.data["batch_size"] != "auto":
        return cfg
    if cfg.ckpt_path is not None:
        raise UserError(
            "data.batch_size=auto: a run that goes on keeps its batches; give the number that it "
            "found, "
            "train/batch_size in its metrics.json."
        )
    trainer = trainers.build_trainer(cfg, [], report)
    if trainer.strategy.root_device.type == "cpu" or trainer.world_size > 1:
        raise UserError(
            "data.batch_size=auto: fills the memory of one GPU, in one process (on a CPU the "
            "system would end the run "
            "instead). Give a number; for several processes, the one that a single one finds."
        )
    size = largest(cfg, model, data)
    report.add_metrics({"train/batch_size": size})
    print(
        f"data.batch_size=auto: {size} images fit; optim.lr is still {cfg.optim and cfg.optim.lr}"
    )
    return cfg.but(data={**cfg.data, "batch_size": size})


def largest(cfg: Config, model: GatedClassifier, data: ImageData) -> int:
    """Find and set the largest batch that a step fits with, by doubling and bisection.

    UserError if none.
    """
    most = data.sizes["train"]
    fits, fails = 0, most + 1
    while fails - fits > 1:
        data.batch_size = size = min(2 * fits or 1, most) if fails > most else (fits + fails) // 2
        fits, fails = (size, fails) if _step_fits(cfg, copy.deepcopy(model), data) else (fits, size)
    if not fits:
        raise UserError(
            "data.batch_size=auto: out of memory with a single image. Use a smaller model or image "
            "size."
        )
    data.batch_size = fits
    return fits


def _step_fits(cfg: Config, model: GatedClassifier, data: ImageData) -> bool:
    """Return True if two training steps fit; the optimizer takes its memory in the first."""
    short = {
        "max_steps": 2,
        "limit_val_batches": 0,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    }
    with tempfile.TemporaryDirectory(prefix="mhprobe_") as folder:
        trainer = trainers.build_trainer(cfg.but(trainer=short), [], Report(Path(folder)))
        try:
            trainer.fit(model, datamodule=data)
        except (RuntimeError, MemoryError) as error:
            if not no_memory(error):
                raise
            return False
        finally:
            gc.collect()
            torch.cuda.empty_cache()
    return True
