"""Runs against each other: their verdicts on claims, and on the same test images exact McNemar and Newcombe's interval.

Networks that were tested on other images, or whose runs did not write which images were right, have no such test.

Shapes: N test images.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mhprobe.io.outcomes import Outcomes
from mhprobe.report.figures import claims as figure
from mhprobe.report.result import Result
from mhprobe.report.tables import from_rows
from mhprobe.stats.significance import holm, paired

NONE = {"difference": "", "low": "", "high": "", "lost": "", "won": "", "p": "", "p_holm": "", "images": ""}


def pairs(found: Sequence[Outcomes | None], names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for every two runs, in their order, with a test of those that saw the same test images.

    found: of each run, which test images it got right, or None.
    run_a, run_b: names. difference, low, high: accuracy of b - a with its 95 % interval. lost, won: images that only a,
    only b gets right. p: exact McNemar; p_holm: over all pairs that were tested. images: how many. untested: why there
    is no test, "" where there is one.
    """
    rows = []
    for (a, first), (b, second) in itertools.combinations(zip(names, found, strict=True), 2):
        row: dict[str, Any] = {"run_a": a, "run_b": b, **NONE, "untested": ""}
        silent = [name for name, each in ((a, first), (b, second)) if each is None]
        if first is None or second is None:
            row["untested"] = f"{' and '.join(silent)} did not write which test images were right"
        elif first.images != second.images:
            row["untested"] = "they were tested on different images"
        else:
            row |= {**paired(first.right, second.right)._asdict(), "images": len(first.right)}
        rows.append(row)
    tested = [row for row in rows if not row["untested"]]
    adjusted = holm(torch.tensor([row["p"] for row in tested], dtype=torch.float64)).tolist()
    for row, p in zip(tested, adjusted, strict=True):
        row["p_holm"] = p
    return rows


def said(row: Mapping[str, Any]) -> str:
    """A pair of runs in a sentence."""
    if row["untested"]:
        return f"{row['run_b']} against {row['run_a']}: {row['untested']}, so there is no paired test."
    gap, low, high = (100 * row[name] for name in ("difference", "low", "high"))
    return (
        f"{row['run_b']} minus {row['run_a']}: {gap:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}), "
        f"p = {row['p_holm']:.2g} (McNemar, Holm) on the same {row['images']:,} images."
    )


def by_network(judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
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


def matrix(judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> Result:
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
