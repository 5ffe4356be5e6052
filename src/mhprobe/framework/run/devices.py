"""Lightning with the settings of ``trainer``."""

from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import (
    MisconfigurationException as FabricMisconfiguration,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from mhprobe.errors import UserError
from mhprobe.framework.run.schema import Config


def build_lightning(cfg: Config, **more: Any) -> L.Trainer:
    """Return a trainer with the settings of ``trainer``."""
    settings = {**cfg.trainer.model_dump(), "precision": choose_precision(cfg)}
    try:
        return L.Trainer(**settings, **more, enable_model_summary=False)
    except (
        MisconfigurationException,
        FabricMisconfiguration,
        TypeError,
        ValueError,
        RuntimeError,
        ImportError,  # of what an accelerator needs
    ) as error:
        raise UserError(f"trainer: {' '.join(str(error).split())}") from error


def choose_precision(cfg: Config) -> str:
    """Return the precision of training; for "auto" bf16 where the hardware multiplies it faster than float32."""
    if cfg.trainer.precision != "auto":
        return cfg.trainer.precision
    accelerator, faster = cfg.trainer.accelerator, False
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        faster = torch.cuda.is_bf16_supported(including_emulation=False)
    elif accelerator in ("auto", "cpu"):
        faster = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bf16-mixed" if faster else "32-true"
