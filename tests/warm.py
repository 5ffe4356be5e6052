"""What commands and ranks import or do for the first time sooner or later: once, in a process that is then forked."""

from __future__ import annotations

import functools
import gc
import importlib
import io
import pickle
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mhprobe
from mhprobe.io import code
from mhprobe.run.quiet import quiet

LIBRARIES = ("sklearn.datasets", "torchvision.transforms.v2", "matplotlib.backends.backend_pdf", "pydantic")


def up() -> None:
    """Import everything, compose a configuration, draw a figure. What was made until now is left to no collector."""
    quiet()
    quick_pictures()
    quick_configurations()
    quick_imports()
    for name in modules():
        importlib.import_module(name)
    _compose()
    _draw()
    code._distributions()  # a sixth of a second, in every fork that names what decoded its images
    code.code_digests(*modules())
    gc.collect()
    gc.freeze()  # else a collection in a fork looks through all of torch again, and copies it


@functools.cache
def quick_pictures() -> dict[str, Callable[..., None]]:
    """Each PNG and PDF is a blank page of its figure's size: drawing text takes most of the time of a figure.

    Gives what draws them whole, by where it belongs; tests of figures put it back (fixture ``whole_pictures``).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    drawing = {}
    for canvas, name in ((FigureCanvasAgg, "print_png"), (FigureCanvasPdf, "print_pdf")):
        whole = getattr(canvas, name)
        drawing[f"{canvas.__module__}.{canvas.__name__}.{name}"] = whole
        setattr(canvas, name, _blank(canvas, whole))
    return drawing


def _blank(canvas: type[Any], whole: Callable[..., None]) -> Callable[..., None]:
    from matplotlib.figure import Figure

    @functools.wraps(whole)  # by its signature matplotlib decides what it passes
    def blank(self: Any, *args: Any, **options: Any) -> None:
        measured = "draw" in vars(self.figure)  # matplotlib wants a renderer, and has put one of its own there
        page = self if measured else canvas(Figure(figsize=self.figure.get_size_inches(), dpi=self.figure.dpi))
        whole(page, *args, **options)

    return blank


@functools.cache
def quick_configurations() -> None:
    """Hydra parses a yaml once, and again after it was written to: it composes a command of thirty of them, twice."""
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins

    Plugins.instance()  # it loads the sources, in a way that makes their classes anew
    for scheme in ("file", "pkg"):  # ours, and Hydra's own
        source: Any = SourcesRegistry.instance().resolve(scheme)
        source.load_config = _once(source.load_config)


def _once(parse: Callable[..., Any]) -> Callable[..., Any]:
    parsed: dict[tuple[Any, ...], bytes] = {}

    @functools.wraps(parse)
    def load_config(self: Any, config_path: str) -> Any:
        file = Path(self.path, self._normalize_file_name(config_path))
        key = (self.provider, file, file.stat().st_mtime_ns if file.is_file() else None)
        if key not in parsed:
            parsed[key] = pickle.dumps(parse(self, config_path))
        return pickle.loads(parsed[key])  # a copy for each, five times faster than deepcopy

    return load_config


@functools.cache
def quick_imports() -> None:
    """What a file imports is read from it once, and again after it was written to."""
    read = code._imported

    @functools.cache
    def once(name: str, file: Path, changed: int) -> list[str]:
        return list(read(name, file))

    code._imported = lambda name, file: iter(once(name, file, file.stat().st_mtime_ns))


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
