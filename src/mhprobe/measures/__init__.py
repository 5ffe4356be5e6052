"""Measures: numbers about heads, from records of forward passes.

One file per measure; import each class from here.

The modules of this package are searched for measures, so a new one is one new file.
"""

import importlib
import inspect
import pkgutil
from typing import Any


def _measures() -> dict[str, Any]:
    from mhprobe.measures.base import Measure

    classes: dict[str, Any] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, member in vars(module).items():
            ours = (
                isinstance(member, type)
                and issubclass(member, Measure)
                and member.__module__ == module.__name__
            )
            if ours and (member is Measure or not inspect.isabstract(member)):
                classes[name] = member
    return classes


def __getattr__(name: str) -> Any:
    # only class names: `import mhprobe.measures.svcca` asks for 'svcca' and for dunders here first
    if name[:1].isupper() and name in (classes := _measures()):
        return classes[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_measures())
