"""Masking curves for the page: every line's points, and every mask whose accuracy is known."""

from __future__ import annotations

from typing import Any

from mhprobe.report.runs.atlas import short
from mhprobe.report.runs.run import Run

NUMBERS = ["step", "heads_masked", "accuracy", "low", "high", "delta", "delta_low", "delta_high", "p_holm"]


def rows(run: Run) -> list[dict[str, Any]]:
    """The rows of ``masking_curves.csv``; empty if there is none."""
    table = run.tables.get("masking_curves")
    return [] if table is None else [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def lines(run: Run) -> list[dict[str, Any]]:
    """A line per curve and split: of repeats the mean. points: step, heads, accuracy, its interval, loss, mask, ..."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    known = rows(run)
    first = {row["curve"]: row["split"] for row in reversed(known)}  # in older tables the images that chose come first
    averaged = {(row["curve"], row["split"]) for row in known if row["seed"] == "mean"}
    for row in known:
        key = row["curve"], row["split"]
        if key in averaged and row["seed"] != "mean":
            continue
        line = {"curve": row["curve"], "split": row["split"], "averaged": key in averaged, "points": []}
        line |= {"search": row.get("search") or "", "chosen_on": row.get("chosen_on") or first[row["curve"]]}
        found.setdefault(key, line)["points"].append(_point(row))
    return list(found.values())


def scored(run: Run, table: str = "masking_curves") -> str:
    """What the accuracy of a table is: it is a score, and agreement with the unmasked model is one as well."""
    return str(run.labels.get(table) or next((row["of"] for row in totals(run) if row.get("of")), "accuracy"))


def lost(run: Run) -> tuple[str, str]:
    """What the loss of curves is, and its unit: a distance from the unmasked model has its own words."""
    known = run.labels.get("masking_distances")
    return (str(known), "") if known else ("loss", "nats")


def repeats(run: Run) -> list[dict[str, Any]]:
    """The points of single random repeats: masks whose accuracy is known too."""
    return [
        {"curve": row["curve"], "split": row["split"], **_point(row)}
        for row in rows(run)
        if row["seed"] not in (None, "mean")
    ]


def totals(run: Run) -> list[dict[str, Any]]:
    """The rows of ``masking_totals.csv``."""
    table = run.tables.get("masking_totals")
    return [] if table is None else [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def best(run: Run) -> dict[str, Any] | None:
    """The searched order whose curve lets most heads go within one point, on the images it was chosen on."""
    chosen_on = {line["curve"]: line["chosen_on"] for line in lines(run) if not line["averaged"]}
    asked = [row for row in totals(run) if row["split"] == chosen_on.get(row["curve"])]
    area = "area_shared" if asked and "area_shared" in asked[0] else "area"  # its name in older runs
    return max(asked, key=lambda row: (row["heads_within_1_point"], row.get(area) or 0), default=None)


def _point(row: dict[str, Any]) -> dict[str, Any]:
    numbers = dict(zip(NUMBERS, short([row.get(name) for name in NUMBERS]), strict=True))
    return {**numbers, "masked": str(row["masked"] if row["masked"] is not None else "")}
