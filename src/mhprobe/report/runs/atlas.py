"""Data of a run for its page: heads, values in every measure, similar heads, classes, history, masking curves.

A table is shown by its entry in the run's ledger, so a new measure needs no code here. The neurons
of a block, too many for a square each, are a strip.

Shapes: A heads of all sites.
"""

from typing import Any

import numpy as np

from mhprobe.errors import UserError
from mhprobe.heads import Kind
from mhprobe.report.ledger import Entry
from mhprobe.report.runs.run import Run
from mhprobe.report.tables import Table

PLACE = ["head", "site", "stage", "block", "index"]  # how a table of heads begins
MOST = 20_000  # heads of a model that a page can show
BINS = 64  # of a block's neurons
NUMBERS = [
    "step",
    "heads_masked",
    "accuracy",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
]
AT_A_STEP = list(NUMBERS)  # what is said of one step
NUMBERS += ["delta", "delta_low", "delta_high", "p_holm"]


def heads_listed(run: Run) -> list[dict[str, Any]]:
    """Return A heads: flat index, site, stage, block, index within the site; [] if no file of the run lists them.

    Raises UserError for more heads than a page can show.
    """
    rows: list[dict[str, Any]] = []
    for site, stage, block, count in run.facts.get("heads", []):
        if count > MOST - len(rows):
            raise UserError(f"report: {run.folder}/run.json says more than {MOST:,} heads.")
        for index in range(count):
            rows.append(
                {"id": len(rows), "site": str(site), "stage": stage, "block": block, "index": index}
            )
    if rows:
        return rows
    for _, _, table in run.of_kind("per_head"):
        return [
            dict(zip(("id", *PLACE[1:]), row[:5], strict=True))
            for row in of_units(table, "head").rows
        ]
    return []


def measures(run: Run) -> list[dict[str, Any]]:
    """Return an entry per measure of single heads, with its columns of (A,) numbers, "value" first.

    constants: columns of one number for all heads, e.g. the entropy of even attention. chance,
    twin: (A,) numbers, or None. reference: what "chance" is of: "chance", or "even attention".
    low, high: the 95 % interval of "value", from ``freedom`` degrees of freedom. neurons: see
    ``strips``.
    """
    entries = []
    for name, entry, table in _per_head(run, "per_head"):
        values = _values(entry, table)
        if not values:
            continue
        constants = _constants(table, values)
        ends = entry.interval or [""]
        entries.append(
            {
                "key": name,
                **_words(entry),
                "masks": entry.masks,
                "columns": {
                    key: few_digits(table.column(key)) for key in values if key not in constants
                },
                "constants": constants,
                "chance": _of(table, entry.chance),
                "reference": entry.reference,
                "twin": _of(table, entry.control),
                "low": _of(table, ends[0]),
                "high": _of(table, ends[-1]),
                "freedom": _freedom(entry, table),
                "neurons": strips(run.tables[name]),
            }
        )
    return entries


def of_units(table: Table, kind: Kind) -> Table:
    """Keep the rows of a table of units that are heads, or neurons."""
    if "kind" not in table.columns:
        return table if kind == "head" else table._replace(rows=[])
    return table._replace(
        rows=[row for row in table.rows if row[table.columns.index("kind")] == kind]
    )


def strips(table: Table) -> list[dict[str, Any]]:
    """Return an entry per MLP: its block, and its neurons from the lowest to the highest value.

    bins: means of at most ``BINS`` equal parts of the sorted values. lowest, highest: [index,
    value].
    """
    blocks: dict[int, list[tuple[float, int]]] = {}
    neurons = of_units(table, "neuron")
    if not neurons.rows or "value" not in table.columns:
        return []
    for block, index, value in zip(
        *(neurons.column(name) for name in ("block", "index", "value")), strict=True
    ):
        if value is not None:
            blocks.setdefault(block, []).append((value, index))
    rows = []
    for block, pairs in blocks.items():
        pairs.sort()
        values = np.array([value for value, _ in pairs])
        bins = [float(part.mean()) for part in np.array_split(values, min(BINS, len(values)))]
        lowest, highest = ([index, _short(value)] for value, index in (pairs[0], pairs[-1]))
        rows.append(
            {
                "block": block,
                "count": len(pairs),
                "bins": few_digits(bins),
                "lowest": lowest,
                "highest": highest,
            }
        )
    return rows


def pairs_listed(run: Run) -> list[dict[str, Any]]:
    """Return an entry per measure of pairs of heads: [a, b, value] or [a, b, value, low, high], and the mean of chance.

    nearest: "largest" or "smallest", the value of the most similar heads.
    """
    rows = []
    for name, entry, table in run.of_kind("pairwise"):
        if "value" not in table.columns:
            continue
        compared = ("head_a", "head_b", "value", *entry.interval)
        levels = [
            value for value in _of(table, entry.chance or entry.control) or [] if value is not None
        ]
        rows.append(
            {
                "key": name,
                **_words(entry),
                "nearest": entry.alike or "largest",
                "chance": _short(sum(levels) / len(levels)) if levels else None,
                "chance_is": entry.reference if entry.chance else "a random network's mean",
                "pairs": [
                    list(row)
                    for row in zip(*(few_digits(table.column(c)) for c in compared), strict=True)
                ],
            }
        )
    return rows


def classes(run: Run) -> list[dict[str, Any]]:
    """Return effects with several numbers per head, e.g. on every class: names and (A, K) numbers."""
    return [
        {
            "name": entry.title,
            "names": table.columns[5:],
            "values": [few_digits(row[5:]) for row in table.rows],
        }
        for _, entry, table in _per_head(run, "per_head_along")
        if not entry.larger.startswith("nothing")
        and any(row[5:] != table.rows[0][5:] for row in table.rows)
    ]


def history(run: Run) -> list[dict[str, Any]]:
    """Return measures along training: their steps and, for each, A numbers."""
    lines = []
    for _, entry, table in run.of_kind("history"):
        points: dict[int, list[Any]] = {}
        for step, value in zip(
            table.column("step"), few_digits(table.column("value")), strict=True
        ):
            points.setdefault(step, []).append(value)
        lines.append((entry.part_of.replace("_", " ") or entry.title, entry, points))
    for _, entry, table in run.of_kind("gate_history"):
        lines.append(("gates", entry, {row[0]: few_digits(row[2:]) for row in table.rows}))
    return [
        {
            "name": name,
            "label": _words(entry)["label"],
            "steps": list(points),
            "values": list(points.values()),
        }
        for name, entry, points in lines
    ]


def lines(run: Run) -> list[dict[str, Any]]:
    """Return a line per curve and split, of repeats the mean.

    points: ``NUMBERS``, and the flat indices ``masked``.
    """
    table: dict[tuple[str, str], dict[str, Any]] = {}
    rows = run.rows("curves")
    first = {row["curve"]: row["split"] for row in reversed(rows)}
    averaged = {(row["curve"], row["split"]) for row in rows if row["seed"] == "mean"}
    for row in rows:
        key = row["curve"], row["split"]
        if key in averaged and row["seed"] != "mean":
            continue
        # a single random order is its own mean: nobody searched for it
        line = {
            "curve": row["curve"],
            "split": row["split"],
            "averaged": row["seed"] is not None,
            "points": [],
        }
        line |= {
            "search": row.get("search") or "",
            "chosen_on": row.get("chosen_on") or first[row["curve"]],
        }
        table.setdefault(key, line)["points"].append(_point(row))
    return list(table.values())


def score_name(run: Run, kind: str = "curves") -> str:
    """Return the name of a table's score: "accuracy", or an agreement with the unmasked model."""
    label = next((entry.label for _, entry, _ in run.of_kind(kind)), "")
    return label or next((str(row["of"]) for row in totals(run) if row.get("of")), "accuracy")


def lost(run: Run) -> tuple[str, str]:
    """Return the name and the unit of a curve's loss, or distance from the unmasked model."""
    name = next((entry.columns.get("loss") for _, entry, _ in run.of_kind("curves")), None)
    return (name, "") if name else ("loss", "nats")


def repeats(run: Run) -> list[dict[str, Any]]:
    """Return the points of single random repeats."""
    single = [row for row in run.rows("curves") if row["seed"] not in (None, "mean")]
    return [{"curve": row["curve"], "split": row["split"], **_point(row)} for row in single]


def totals(run: Run) -> list[dict[str, Any]]:
    """Return the rows of the totals of these curves."""
    part_of = next((entry.part_of for _, entry, _ in run.of_kind("curves")), "")
    tables = [table for _, entry, table in run.of_kind("totals") if entry.part_of == part_of]
    return tables[0].dicts() if tables else []


def _point(row: dict[str, Any]) -> dict[str, Any]:
    numbers = dict(zip(NUMBERS, few_digits([row.get(name) for name in NUMBERS]), strict=True))
    return {**numbers, "masked": str(row["masked"] if row["masked"] is not None else "")}


def few_digits(values: list[Any]) -> list[Any]:
    return [_short(value) for value in values]


def _short(value: Any) -> Any:
    """Round to five digits, which halves the file."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _words(entry: Entry) -> dict[str, str]:
    """Return name, label (with the unit), direction and meaning of an entry."""
    return {
        "name": entry.title,
        "label": entry.label or entry.title,
        "larger": entry.larger,
        "about": entry.about,
    }


def _per_head(run: Run, kind: Any) -> list[tuple[str, Entry, Table]]:
    """Return the tables with a row for each head that the atlas shows, without their rows of neurons."""
    count = len(heads_listed(run))
    tables = [(name, entry, of_units(table, "head")) for name, entry, table in run.of_kind(kind)]
    return [one for one in tables if one[2].columns[:5] == PLACE and len(one[2].rows) == count]


def _values(entry: Entry, table: Table) -> list[str]:
    """Return the columns that are values of heads, or chance of further ones, without intervals, errors and counts."""
    aside = {column for column, role in entry.roles.items() if role not in ("chance", "control")}
    others = {*aside, *entry.interval, entry.chance, entry.control}
    return [name for name in table.columns[5:] if name not in others and _is_number(table, name)]


def _constants(table: Table, names: list[str]) -> dict[str, Any]:
    """Return the columns, but the first, that have one number for all of several heads."""
    columns = {name: table.column(name) for name in names[1:]}
    return {
        name: _short(cells[0])
        for name, cells in columns.items()
        if len(cells) > 1 and len(set(cells)) == 1
    }


def _is_number(table: Table, name: str) -> bool:
    cells = [cell for cell in table.column(name) if cell is not None]
    return bool(cells) and all(isinstance(cell, int | float) for cell in cells)


def _of(table: Table, name: str) -> list[Any] | None:
    return (
        few_digits(table.column(name))
        if name in table.columns and _is_number(table, name)
        else None
    )


def _freedom(entry: Entry, table: Table) -> int | None:
    """Degrees of freedom of the intervals: one less than there are folds of images, or images."""
    named = sorted(
        (role, name) for name, role in entry.roles.items() if role in ("folds", "images")
    )
    draws = table.column(named[0][1]) if named else []
    return draws[0] - 1 if draws and isinstance(draws[0], int) and draws[0] > 1 else None
