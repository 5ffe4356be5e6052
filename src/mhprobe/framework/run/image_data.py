"""Images of a run, made from the checked configuration."""

from pathlib import Path
from typing import Any

import torch

from mhprobe.backbones.parts.folders import folder_of_others
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.framework.run import networks
from mhprobe.framework.run.construct import construct, keyed, refuse_plain
from mhprobe.framework.run.quiet import quiet
from mhprobe.framework.run.schema import Config, absent_data
from mhprobe.io.files import absent
from mhprobe.io.tensors import write_outcomes


def build_images(cfg: Config) -> ImageData:
    """Return the images, listed and split.

    UserError for a file that the configuration names and that is missing.
    """
    quiet()
    saved = "a .safetensors with its .json, or a .ckpt of mhprobe.train"
    named = {  # files read after the images, which may have to be downloaded first
        "weights": (networks.weights_file(cfg), saved),
        "backbone.checkpoint": (cfg.backbone.get("checkpoint"), "weights of any training"),
        "optim.teacher": (cfg.optim and cfg.optim.teacher, saved),
        "gates.mask": (cfg.gates.mask, "a table of heads with a column kept"),
    }
    missing = [
        f"{key}: {absent(Path(str(file)))}. {folder_of_others(Path(str(file))) or f'Give {what}.'}"
        for key, (file, what) in named.items()
        if file is not None and not Path(str(file)).is_file()
    ]
    if missing:  # data beside them, so that both can be mended at once
        sets: dict[str, Any] = {"data": cfg.data, "probe.also_on": cfg.probe and cfg.probe.also_on}
        sets["evidence.second"] = cfg.evidence and cfg.evidence.second
        raise UserError(" ".join([*missing, *absent_data(sets)]))
    if cfg.data.get("batch_size") != "auto":
        return prepare(cfg.data, "data")
    if cfg.command != "train":
        raise UserError(
            f"data.batch_size=auto: is for mhprobe.train; give mhprobe.{cfg.command} a number."
        )
    return prepare({**cfg.data, "batch_size": 1}, "data")  # until run.batch_size has found it


def prepare(part: dict[str, Any], where: str) -> ImageData:
    """Return a data set of the configuration, listed and split. where: the part's key."""
    refuse_plain(part.get("source"), f"{where}.source")
    if part.get("augment") is not None:
        refuse_plain(part["augment"], f"{where}.augment")
    with keyed(part, where):
        images: ImageData = construct(part, where)
        images.options_in = f"{where}.source."
        images.list_images()
    return images


def keep_outcomes(folder: Path, right: torch.Tensor, data: ImageData) -> None:
    """Write the right test images, (N,) bool, for ``mhprobe.compare``; nothing for images without labels."""
    if len(right) and not data.unlabelled:
        write_outcomes(
            folder, right, torch.from_numpy(data.splits["test"].positions), data.images_of("test")
        )
