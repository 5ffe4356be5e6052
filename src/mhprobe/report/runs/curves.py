"""Masking curves of a run, read from its tables."""

from typing import Any

from mhprobe.report.runs.atlas import short
from mhprobe.report.runs.run import Run

NUMBERS = ["step", "heads_masked", "accuracy", "low", "high", "delta", "delta_low", "delta_high", "p_holm"]


def lines(run: Run) -> list[dict[str, Any]]:
    """Return a line per curve and split, of repeats the mean. points: ``NUMBERS``, and the flat indices ``masked``."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    rows = run.rows("curves")
    first = {row["curve"]: row["split"] for row in reversed(rows)}
    averaged = {(row["curve"], row["split"]) for row in rows if row["seed"] == "mean"}
    for row in rows:
        key = row["curve"], row["split"]
        if key in averaged and row["seed"] != "mean":
            continue
        line = {"curve": row["curve"], "split": row["split"], "averaged": key in averaged, "points": []}
        line |= {"search": row.get("search") or "", "chosen_on": row.get("chosen_on") or first[row["curve"]]}
        found.setdefault(key, line)["points"].append(_point(row))
    return list(found.values())


def scored(run: Run, kind: str = "curves") -> str:
    """Return the name of a table's score: "accuracy", or an agreement with the unmasked model."""
    label = next((entry.label for _, entry, _ in run.of_kind(kind)), "")
    return label or next((str(row["of"]) for row in totals(run) if row.get("of")), "accuracy")


def lost(run: Run) -> tuple[str, str]:
    """Return the name and the unit of a curve's loss, or distance from the unmasked model."""
    name = next((entry.columns.get("loss") for _, entry, _ in run.of_kind("curves")), None)
    return (name, "") if name else ("loss", "nats")


def repeats(run: Run) -> list[dict[str, Any]]:
    """Return the points of single random repeats."""
    return [
        {"curve": row["curve"], "split": row["split"], **_point(row)}
        for row in run.rows("curves")
        if row["seed"] not in (None, "mean")
    ]


def totals(run: Run) -> list[dict[str, Any]]:
    """Return the rows of the totals of these curves."""
    part_of = next((entry.part_of for _, entry, _ in run.of_kind("curves")), "")
    tables = [table for _, entry, table in run.of_kind("totals") if entry.part_of == part_of]
    return tables[0].dicts() if tables else []


def best(run: Run) -> dict[str, Any] | None:
    """Return the searched order that lets most heads go within one point, on the images that chose it."""
    chosen_on = {line["curve"]: line["chosen_on"] for line in lines(run) if not line["averaged"]}
    searched = [row for row in totals(run) if row["split"] == chosen_on.get(row["curve"])]
    return max(searched, key=lambda row: (row["heads_within_1_point"], row.get("area_shared") or 0), default=None)


def _point(row: dict[str, Any]) -> dict[str, Any]:
    numbers = dict(zip(NUMBERS, short([row.get(name) for name in NUMBERS]), strict=True))
    return {**numbers, "masked": str(row["masked"] if row["masked"] is not None else "")}
