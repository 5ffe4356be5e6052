"""What commands and ranks import or do for the first time sooner or later: once, in a process that is then forked."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import importlib.metadata
import io
import os
import pickle
import pkgutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightning
import torch
from packaging.version import Version
from PIL import Image

import mhprobe
import models
import runs
from mhprobe.framework.run import own_files, sections
from mhprobe.framework.run.quiet import quiet
from mhprobe.io import code
from mhprobe.pages.html import page
from mhprobe.report.runs import facts

LIBRARIES = (
    "sklearn.datasets.data",
    "sklearn.datasets.descr",
    "torchvision.transforms.v2",
    "matplotlib.backends.backend_pdf",
    "pydantic",
    "torch.distributed.launcher.api",
    "pytest",
)
OF_SOME_VERSIONS = (  # parts of libraries that others of their versions lack
    "hydra._internal.logging_config",
    "fsspec.implementations.chained",
    "rich._emoji_codes",
)


AVERAGING = "mhprobe.framework.training.averaging"  # of lightning from 2.6 on


def up() -> None:
    """Import everything, compose what most tests choose, draw a figure.

    What was made is left to no collector.
    """
    quiet()
    quick_disk()
    quick_pictures()
    quick_configurations()
    quick_imports()
    quick_exports()
    quick_trainers()
    quick_devices()
    for name in modules():
        if name != AVERAGING or Version(version("lightning")) >= Version("2.6"):
            importlib.import_module(name)
    for name in OF_SOME_VERSIONS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    _compose()
    _draw()
    _look()
    lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    Image.init()
    facts.commit()
    code._distributions()  # a sixth of a second, in every fork that names what decoded its images
    code.code_digests(*modules())
    gc.collect()
    gc.freeze()  # else a collection in a fork looks through all of torch again, and copies it


@functools.cache
def quick_pictures() -> dict[str, Callable[..., Any]]:
    """Each PNG and PDF is a blank page of its figure's size: text takes most of the time of a figure.

    It is neither drawn nor, to place the small print on a screen, measured. Gives what does so
    whole, by where it belongs; tests of figures put it back (fixture ``whole_pictures``).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    from mhprobe.report.figures import style

    drawing: dict[str, Callable[..., Any]] = {f"{style.__name__}.save_figure": style.save_figure}
    style.save_figure = _unmeasured(style.save_figure)
    for canvas, name in ((FigureCanvasAgg, "print_png"), (FigureCanvasPdf, "print_pdf")):
        whole = getattr(canvas, name)
        drawing[f"{canvas.__module__}.{canvas.__name__}.{name}"] = whole
        setattr(canvas, name, _blank(canvas, whole))
    return drawing


def _blank(canvas: type[Any], whole: Callable[..., None]) -> Callable[..., None]:
    from matplotlib.figure import Figure

    @functools.wraps(whole)  # by its signature matplotlib decides what it passes
    def blank(self: Any, *args: Any, **options: Any) -> None:
        measured = "draw" in vars(
            self.figure
        )  # matplotlib wants a renderer, and has put one of its own there
        page = (
            self
            if measured
            else canvas(Figure(figsize=self.figure.get_size_inches(), dpi=self.figure.dpi))
        )
        whole(page, *args, **options)

    return blank


def _unmeasured(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing hangs out of a figure; one for paper is measured, as its size follows from it."""

    @functools.wraps(whole)
    def save(
        figure: Any,
        stem: Path,
        about: str = "",
        paper: bool = False,
        origin: Any = MappingProxyType({}),
    ) -> Any:
        if not paper:
            figure.get_tightbbox = lambda: figure.bbox_inches
        try:
            return whole(figure, stem, about, paper, origin)
        finally:
            vars(figure).pop("get_tightbbox", None)

    return save


@functools.cache
def quick_disk() -> None:
    """A sync waits for the disk itself, for longer than writing took; in no test the power fails."""
    os.fsync = os.fstat  # which refuses what is no open file, too


@functools.cache
def quick_configurations() -> dict[str, Callable[..., Any]]:
    """Hydra parses a yaml once and merges the same options once, and again after one was written to.

    It composes a command of thirty yamls, twice; one with a wrong key, four times. Gives what
    composes anew each time.
    """
    from hydra._internal import config_loader_impl
    from hydra._internal.config_repository import ConfigRepository
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from omegaconf import _utils, base, grammar_parser

    _utils.parse = base.parse = functools.cache(
        grammar_parser.parse
    )  # trees of interpolations, which are read and never written
    Plugins.instance()  # it loads the sources, in a way that makes their classes anew
    own_files.find_own_files("train")
    for scheme in ("file", "pkg", own_files.SCHEME):
        source: Any = SourcesRegistry.instance().resolve(scheme)
        source.load_config = _once(source.load_config)
    repository: Any = ConfigRepository
    repository.__deepcopy__ = lambda self, _: copy.copy(
        self
    )  # Hydra gives the copy other sources, and changes none
    loader: Any = config_loader_impl
    choose, merge = (
        loader.create_defaults_list,
        loader.ConfigLoaderImpl._compose_config_from_defaults_list,
    )
    loader.create_defaults_list = _chosen_once(choose)
    loader.ConfigLoaderImpl._compose_config_from_defaults_list = _merged_once(merge)
    names = ("create_defaults_list", "ConfigLoaderImpl._compose_config_from_defaults_list")
    return {
        f"{loader.__name__}.{name}": whole
        for name, whole in zip(names, (choose, merge), strict=True)
    }


def _once(parse: Callable[..., Any]) -> Callable[..., Any]:
    parsed: dict[tuple[Any, ...], bytes] = {}

    @functools.wraps(parse)
    def load_config(self: Any, config_path: str) -> Any:
        file = Path(self.path, self._normalize_file_name(config_path))
        key = (
            vars(self).get("command"),
            self.provider,
            file,
            file.stat().st_mtime_ns if file.is_file() else None,
        )
        if key not in parsed:
            parsed[key] = pickle.dumps(parse(self, config_path))
        return pickle.loads(parsed[key])  # a copy for each, five times faster than deepcopy

    return load_config


def _chosen_once(choose: Callable[..., Any]) -> Callable[..., Any]:
    from hydra._internal.defaults_list import Overrides

    chosen: dict[str, tuple[str, Any]] = {}

    @functools.wraps(choose)
    def create_defaults_list(
        repo: Any, config_name: str, overrides_list: list[Any], **options: Any
    ) -> Any:
        new = Overrides(
            repo, overrides_list
        )  # of the command line, what chooses options and what sets values
        choices = (new.override_choices, new.append_group_defaults, new.deletions)
        key = repr((config_name, choices, [source.path for source in repo.get_sources()]))
        before, defaults = chosen.get(key, ("", None))
        if defaults is None or before != _changed(repo, defaults.defaults):
            defaults = choose(repo, config_name, overrides_list, **options)
            if (
                "???" not in defaults.overrides.known_choices.values()
            ):  # the options say whether that is a mistake
                chosen[key] = _changed(repo, defaults.defaults), defaults
        return dataclasses.replace(defaults, config_overrides=new.config_overrides)

    return create_defaults_list


def _merged_once(merge: Callable[..., Any]) -> Callable[..., Any]:
    merged: dict[str, bytes] = {}

    @functools.wraps(merge)
    def compose(self: Any, defaults: list[Any], repo: Any) -> Any:
        key = _changed(repo, defaults)
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults, repo))
        return pickle.loads(merged[key])

    return compose


def _changed(repo: Any, defaults: list[Any]) -> str:
    """The options of a configuration, with when each of their files was written to."""
    places = [source.path for source in repo.get_sources()]
    files = [Path(place, f"{option.config_path}.yaml") for option in defaults for place in places]
    return repr((places, defaults, [file.stat().st_mtime_ns for file in files if file.is_file()]))


@functools.cache
def quick_imports() -> None:
    """What a file imports is read from it once, and again after it was written to."""
    read = code._imported

    @functools.cache
    def once(name: str, file: Path, changed: int) -> list[str]:
        return list(read(name, file))

    code._imported = lambda name, file: iter(once(name, file, file.stat().st_mtime_ns))


@functools.cache
def quick_exports() -> None:
    """torch's newer exporter lists all operators that it can write once, and not for each network.

    The list, which took two fifths of the export of a tiny ViT, is that of an opset; each export
    gets a copy.
    """
    whole = torch.onnx.export

    @functools.wraps(whole)
    def export(*args: Any, **options: Any) -> Any:
        if options.get("dynamo"):
            _listed_once()
        return whole(*args, **options)

    torch.onnx.export = export


@functools.cache
def quick_trainers() -> None:
    """Lightning looks through all that is installed for callbacks of others, once and not for each trainer."""
    from lightning.fabric.utilities import registry

    registry.entry_points = functools.cache(registry.entry_points)


@functools.cache
def quick_devices() -> None:
    """NVIDIA's driver is asked once how many devices there are.

    Lightning has torch ask it, which looks for its library anew; an optimizer does at every step.
    """
    torch.cuda._raw_device_count_nvml = functools.cache(torch.cuda._raw_device_count_nvml)


@functools.cache
def _listed_once() -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    listed = functools.cache(ONNXRegistry.from_torchlib)

    def from_torchlib(**opset: Any) -> Any:
        registry = copy.copy(listed(**opset))
        registry.functions = {name: list(found) for name, found in registry.functions.items()}
        return registry

    ONNXRegistry.from_torchlib = staticmethod(from_torchlib)


def modules() -> list[str]:
    """All of mhprobe but the commands themselves, with what it imports late."""
    inside = [module.name for module in pkgutil.walk_packages(mhprobe.__path__, "mhprobe.")]
    return [
        *LIBRARIES,
        *(name for name in inside if name.count(".") > 1 and not name.endswith("__main__")),
    ]


def _compose() -> None:
    for command in sections.commands_of_conf():
        for short in ((), runs.SHORT):
            runs.composed(command, *runs.TINY, *short)


def _draw() -> None:
    from mhprobe.report.figures.style import canvas

    with canvas((1, 1)) as figure:
        figure.add_subplot().set_title("any")
        for kind in ("png", "pdf"):
            figure.savefig(io.BytesIO(), format=kind)


def _look() -> None:
    """A first forward pass builds kernels.

    It is no backward pass: torch refuses slopes in forks of a process that had some.
    """
    with torch.no_grad():
        model = models.tiny_vit()
        model(models.images_for(model, 2))
    for name in page.templates().list_templates(extensions=["jinja"]):
        page.templates().get_template(name)
