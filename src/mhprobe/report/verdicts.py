"""Verdicts on claims of several runs: a matrix of claims by networks."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures import claims as figure
from mhprobe.report.result import Result
from mhprobe.report.tables import from_rows

Rows = Sequence[Mapping[str, Any]]


def by_network(judged: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Return a row per claim with the verdict of each network, "" where it was not asked.

    judged: the rows of claims, by the name of the network's run; runs without any are left out.
    """
    asked = {name: {row["claim"]: row for row in rows} for name, rows in judged.items() if rows}
    says = {claim: row["says"] for rows in asked.values() for claim, row in rows.items()}
    rows = []
    for claim in sorted(says):
        verdicts = {name: str(of[claim]["verdict"]) if claim in of else "" for name, of in asked.items()}
        holds = sum(verdict == "holds" for verdict in verdicts.values())
        rows.append({"claim": claim, "says": says[claim], "holds_in": holds, **verdicts})
    return rows


def matrix(judged: Mapping[str, Rows]) -> Result:
    """The table and the figure of claims by networks; empty where no run judged any."""
    rows = by_network(judged)
    if not rows:
        return Result()
    return Result(
        from_rows(rows),
        figure.claims_matrix(rows, [name for name in judged if name in rows[0]]),
        drawn="claims_matrix",
        about="Which findings of the literature hold for which network?",
        columns={"holds_in": "in how many networks it holds"},
    )
