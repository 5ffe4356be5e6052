"""Masking curves for the page: every line's points, and every mask whose accuracy is known."""

from typing import Any

from mhprobe.report.runs.atlas import short
from mhprobe.report.runs.run import Run

NUMBERS = ["step", "heads_masked", "accuracy", "low", "high", "delta", "delta_low", "delta_high", "p_holm"]


def lines(run: Run) -> list[dict[str, Any]]:
    """A line per curve and split: of repeats the mean. points: step, heads, accuracy, its interval, loss, mask, ..."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    known = run.rows("curves")
    first = {row["curve"]: row["split"] for row in reversed(known)}
    averaged = {(row["curve"], row["split"]) for row in known if row["seed"] == "mean"}
    for row in known:
        key = row["curve"], row["split"]
        if key in averaged and row["seed"] != "mean":
            continue
        line = {"curve": row["curve"], "split": row["split"], "averaged": key in averaged, "points": []}
        line |= {"search": row.get("search") or "", "chosen_on": row.get("chosen_on") or first[row["curve"]]}
        found.setdefault(key, line)["points"].append(_point(row))
    return list(found.values())


def scored(run: Run, kind: str = "curves") -> str:
    """Return the name of a table's accuracy: it is a score, and agreement with the unmasked model is one as well."""
    label = next((entry.label for _, entry, _ in run.of_kind(kind)), "")
    return label or next((str(row["of"]) for row in totals(run) if row.get("of")), "accuracy")


def lost(run: Run) -> tuple[str, str]:
    """Return the name and the unit of a curve's loss: a distance from the unmasked model has its own words."""
    known = next((entry.columns.get("loss") for _, entry, _ in run.of_kind("curves")), None)
    return (known, "") if known else ("loss", "nats")


def repeats(run: Run) -> list[dict[str, Any]]:
    """The points of single random repeats: masks whose accuracy is known too."""
    return [
        {"curve": row["curve"], "split": row["split"], **_point(row)}
        for row in run.rows("curves")
        if row["seed"] not in (None, "mean")
    ]


def totals(run: Run) -> list[dict[str, Any]]:
    """The rows of the totals of these curves."""
    part_of = next((entry.part_of for _, entry, _ in run.of_kind("curves")), "")
    tables = [table for _, entry, table in run.of_kind("totals") if entry.part_of == part_of]
    return tables[0].dicts() if tables else []


def best(run: Run) -> dict[str, Any] | None:
    """The searched order whose curve lets most heads go within one point, on the images it was chosen on."""
    chosen_on = {line["curve"]: line["chosen_on"] for line in lines(run) if not line["averaged"]}
    asked = [row for row in totals(run) if row["split"] == chosen_on.get(row["curve"])]
    return max(asked, key=lambda row: (row["heads_within_1_point"], row.get("area_shared") or 0), default=None)


def _point(row: dict[str, Any]) -> dict[str, Any]:
    numbers = dict(zip(NUMBERS, short([row.get(name) for name in NUMBERS]), strict=True))
    return {**numbers, "masked": str(row["masked"] if row["masked"] is not None else "")}
