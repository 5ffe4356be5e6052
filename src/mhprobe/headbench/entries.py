"""The measures that take part: all that there are, or some, and those that a user enters."""

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from mhprobe import measures as all_measures
from mhprobe.errors import UserError, quoted
from mhprobe.headbench.bench import Make
from mhprobe.measures.base import Measure


def entries(names: Sequence[str] | None, entered: Sequence[str] = ()) -> dict[str, Make]:
    """Measure's name -> what makes it, with its own defaults. UserError for a name or a class that there is not."""
    kinds = (getattr(all_measures, name) for name in dir(all_measures))
    shipped = {_name(kind): kind for kind in kinds if not inspect.isabstract(kind)}
    if unknown := sorted(set(names or ()) - set(shipped)):
        raise UserError(f"headbench: no measures {', '.join(unknown)}; there are {', '.join(sorted(shipped))}.")
    chosen = {name: shipped[name] for name in (shipped if names is None else names)}
    for path in entered:
        kind = _imported(path)
        chosen[_name(kind)] = kind
    return chosen


def _name(kind: Any) -> str:
    """Read an attribute of a measure's class, without a layout."""
    said = kind.__dict__.get("name")
    return said if isinstance(said, str) else Measure.name.fget(kind.__new__(kind))  # type: ignore[attr-defined]


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"headbench: cannot import {quoted(path)} ({error}); expected module.Class.") from error
    if not (isinstance(kind, type) and issubclass(kind, Measure)):
        raise UserError(f"headbench: {path} is no measure; expected a class that derives from mhprobe's Measure.")
    return kind
