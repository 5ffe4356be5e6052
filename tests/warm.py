"""What commands and ranks import or do for the first time sooner or later: once, in a process that is then forked."""

from __future__ import annotations

import functools
import gc
import importlib
import io
import pkgutil
from typing import Any

import mhprobe
from mhprobe.run.quiet import quiet

LIBRARIES = ("sklearn.datasets", "torchvision.transforms.v2", "matplotlib.backends.backend_pdf", "pydantic")


def up() -> None:
    """Import everything, compose a configuration, draw a figure. What was made until now is left to no collector."""
    quiet()
    quick_fonts()
    for name in modules():
        importlib.import_module(name)
    _compose()
    _draw()
    gc.collect()
    gc.freeze()  # else a collection in a fork looks through all of torch again, and copies it


@functools.cache
def quick_fonts() -> Any:
    """PDFs with outlines of letters in place of fonts, in half the time. Gives what figures have without it."""
    from mhprobe.report.figures.style import STYLE

    own, STYLE["pdf.fonttype"] = STYLE["pdf.fonttype"], 3
    return own


def modules() -> list[str]:
    """All of mhprobe but the commands themselves, with what it imports late."""
    inside = [module.name for module in pkgutil.walk_packages(mhprobe.__path__, "mhprobe.")]
    return [*LIBRARIES, *(name for name in inside if name.count(".") > 1 and not name.endswith("__main__"))]


def _compose() -> None:
    from hydra import compose, initialize_config_dir

    from mhprobe.run import sections

    sections.install()
    with initialize_config_dir(str(sections.CONF), version_base="1.3"):
        compose("train", ["+experiment=digits_vit", "seed=0"])


def _draw() -> None:
    from mhprobe.report.figures.style import canvas

    with canvas((1, 1)) as figure:
        figure.add_subplot().set_title("any")
        for kind in ("png", "pdf"):
            figure.savefig(io.BytesIO(), format=kind)
