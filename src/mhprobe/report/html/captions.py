"""How to read each figure, and what chance would give: every kind of figure says it in its own file."""

from __future__ import annotations

import importlib
import json
import pkgutil
from types import ModuleType

from mhprobe.report import figures
from mhprobe.report.runs.run import CONTROL, DURING, Run

BY_COLUMNS = {"per_head": ["head", "site", "stage"], "pairwise": ["head_a"], "pairwise_layers": ["block_a"]}


def kinds() -> list[str]:
    """Every kind of figure, by its file; what several share is none."""
    return [module.name for module in pkgutil.iter_modules(figures.__path__) if hasattr(_file(module.name), "draw")]


def _file(kind: str) -> ModuleType:
    return importlib.import_module(f"{figures.__name__}.{kind}")


def kind_of(stem: str, run: Run) -> str | None:
    """The kind that drew ``figures/<stem>.png``: its name says it, or the columns of the table beside it."""
    stem = DURING.sub("", stem.removesuffix(CONTROL))
    named = [kind for kind in kinds() if stem == kind or stem.endswith(f"_{kind}") or stem.startswith(f"{kind}_")]
    if named:
        return max(named, key=len)
    table = run.tables.get(stem)
    found = (kind for kind, first in BY_COLUMNS.items() if table and table.columns[: len(first)] == first)
    return next(found, None)


def caption(stem: str, run: Run) -> str:
    """Plain sentences: those that the run itself has for the figure, or its kind's; empty where no kind is known."""
    file = run.folder / "captions.json"
    own: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    if stem in own:
        return own[stem]
    kind = kind_of(stem, run)
    return "" if kind is None else getattr(_file(kind), "CAPTION", "")
