"""What commands and ranks import or do for the first time sooner or later: once, in a process that is then forked."""

from __future__ import annotations

import functools
import gc
import importlib
import io
import pkgutil
from collections.abc import Callable
from typing import Any

import mhprobe
from mhprobe.run.quiet import quiet

LIBRARIES = ("sklearn.datasets", "torchvision.transforms.v2", "matplotlib.backends.backend_pdf", "pydantic")


def up() -> None:
    """Import everything, compose a configuration, draw a figure. What was made until now is left to no collector."""
    quiet()
    quick_pdfs()
    for name in modules():
        importlib.import_module(name)
    _compose()
    _draw()
    gc.collect()
    gc.freeze()  # else a collection in a fork looks through all of torch again, and copies it


@functools.cache
def quick_pdfs() -> Callable[..., None]:
    """Each PDF is a blank page of its figure's size: drawing all a second time takes a third of the time of a figure.

    Gives what draws them whole; tests of figures do (fixture ``whole_pdfs``).
    """
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    whole: Callable[..., None] = FigureCanvasPdf.print_pdf

    @functools.wraps(whole)  # by its signature matplotlib decides what it passes
    def blank(self: FigureCanvasPdf, filename: Any, **options: Any) -> None:
        whole(FigureCanvasPdf(Figure(figsize=self.figure.get_size_inches())), filename, **options)

    FigureCanvasPdf.print_pdf = blank
    return whole


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
