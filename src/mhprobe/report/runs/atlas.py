"""What the head atlas shows: heads, their values in every measure, their neighbours, their classes, their past.

What is shown of a table follows from its columns, never from its name: a new measure is shown without new code.

Shapes: A heads of all sites.
"""

from __future__ import annotations

import importlib.util
import pydoc
from typing import Any

from mhprobe.report.runs.run import CONTROL, DURING, Run, column
from mhprobe.report.tables import Table

PLACE = ["head", "site", "stage", "block", "index"]  # how a table of heads begins
CHANCE = ("null", "chance", "uniform")  # columns that say what a value would be by chance
TWIN = "random_init"  # and in a freshly initialised network
INTERVAL = ("low", "high")
NOT_A_VALUE = {*CHANCE, TWIN, *INTERVAL, "standard_error", "images"}


def heads(run: Run) -> list[dict[str, Any]]:
    """A heads: flat index, site, stage, block, index within the site. Empty where no file of the run knows them."""
    known: list[dict[str, Any]] = []
    for site, stage, block, count in run.facts.get("heads", []):
        for index in range(count):
            known.append({"id": len(known), "site": site, "stage": stage, "block": block, "index": index})
    if known:
        return known
    for table in run.tables.values():
        if table.columns[:5] == PLACE:
            return [dict(zip(("id", *PLACE[1:]), row[:5], strict=True)) for row in table.rows]
    return []


def measures(run: Run) -> list[dict[str, Any]]:
    """One entry per measure of single heads: its columns of (A,) numbers, "value" first, and what to hold them against.

    chance, twin: (A,) numbers, or None where the table has none. low, high: the 95 % interval of "value".
    """
    found = []
    for name, table in _per_head(run).items():
        values = [c for c in table.columns[5:] if c not in NOT_A_VALUE and _is_number(table, c)]
        if name.endswith(CONTROL) or DURING.search(name) or _along(run, name) or not values:
            continue  # a twin's values stand beside the model's own
        chance = next((c for c in CHANCE if c in table.columns), None)
        found.append(
            {
                "key": name,
                "name": name.replace("_", " "),
                "label": label(run, name),
                "about": about(run, name),
                "columns": {c: short(column(table, c)) for c in values},
                "chance": chance and short(column(table, chance)),
                "twin": short(column(table, TWIN)) if TWIN in table.columns else None,
                **_interval(table),
            }
        )
    return found


def pairs(run: Run) -> list[dict[str, Any]]:
    """One entry per measure of pairs of heads: [a, b, value] of every pair that was compared, and the mean of chance.

    nearest: whether the "largest" or the "smallest" value means the most alike.
    """
    found = []
    for name, table in run.tables.items():
        of_pairs = table.columns[:3] == ["head_a", "head_b", "value"]
        if not of_pairs or name.endswith(CONTROL) or DURING.search(name):
            continue
        chance = next((c for c in (*CHANCE, TWIN) if c in table.columns), None)
        levels = [value for value in column(table, chance) if value is not None] if chance else []
        found.append(
            {
                "key": name,
                "name": name.replace("_", " "),
                "label": label(run, name),
                "about": about(run, name),
                "nearest": "smallest" if "distance" in name else "largest",
                "chance": _short(sum(levels) / len(levels)) if levels else None,
                "chance_is": "a random network's mean" if chance == TWIN else "chance",
                "pairs": [[a, b, _short(value)] for a, b, value, *_ in table.rows],
            }
        )
    return found


def classes(run: Run) -> list[dict[str, Any]]:
    """Tables with more than one number per head, e.g. the effect on every class: their names and (A, K) numbers."""
    measured = {measure["key"] for measure in measures(run)}
    return [
        {"name": name.replace("_", " "), "names": table.columns[5:], "values": [short(row[5:]) for row in table.rows]}
        for name, table in _per_head(run).items()
        if _along(run, name) and not name.endswith(CONTROL) and any(name.startswith(f"{key}_") for key in measured)
    ]


def history(run: Run) -> list[dict[str, Any]]:
    """Measures along training: their steps and, for each, A numbers."""
    found = []
    for name, table in run.tables.items():
        if table.columns[:3] == ["epoch", "step", "head"]:
            points: dict[int, list[Any]] = {}
            for step, value in zip(column(table, "step"), column(table, "value"), strict=True):
                points.setdefault(step, []).append(_short(value))
            measure = name.removesuffix("_history")
            found.append({"name": measure.replace("_", " "), "label": label(run, measure), **_points(points)})
        elif name == "gate_history":
            points = {row[0]: short(row[2:]) for row in table.rows}
            found.append({"name": "gates", "label": "how open the learned gate is", **_points(points)})
    return found


def label(run: Run, name: str) -> str:
    """What the value is, with its unit, as its figure says it."""
    return str(run.labels.get(name) or name.replace("_", " "))


def about(run: Run, name: str) -> str:
    """The first line of the file that defines the measure, found through the run's configuration."""
    part = (run.config.get("measure") or {}).get(name)
    target = part.get("_target_", "") if isinstance(part, dict) else ""
    try:
        spec = importlib.util.find_spec(target.rpartition(".")[0])
    except (ImportError, ValueError):
        return ""
    return (pydoc.synopsis(spec.origin) or "") if spec is not None and spec.origin else ""


def short(values: list[Any]) -> list[Any]:
    return [_short(value) for value in values]


def _short(value: Any) -> Any:
    """Five digits are more than a reader sees, and half of the file."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _per_head(run: Run) -> dict[str, Table]:
    heads = [table for table in run.tables.values() if table.columns[:5] == PLACE]
    count = max((len(table.rows) for table in heads), default=0)
    return {name: t for name, t in run.tables.items() if t.columns[:5] == PLACE and len(t.rows) == count}


def _along(run: Run, name: str) -> bool:
    """Whether the table is ``<measure>_<column>`` of a measure that has its own table: one number per head and name."""
    parts = name.removesuffix(CONTROL).split("_")
    stems = {"_".join(parts[:i]) for i in range(1, len(parts))}
    return "value" not in run.tables[name].columns and not stems.isdisjoint(run.tables)


def _is_number(table: Table, name: str) -> bool:
    cells = [cell for cell in column(table, name) if cell is not None]
    return bool(cells) and all(isinstance(cell, int | float) for cell in cells)


def _interval(table: Table) -> dict[str, Any]:
    if not set(INTERVAL) <= set(table.columns):
        return {"low": None, "high": None}
    return {name: short(column(table, name)) for name in INTERVAL}


def _points(points: dict[int, list[Any]]) -> dict[str, Any]:
    return {"steps": list(points), "values": list(points.values())}
