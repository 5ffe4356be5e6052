"""Figures of claims: all that is drawn is on the page, for few and for many claims."""

from __future__ import annotations

import math

import pytest

from drawn import assert_nothing_is_clipped
from mhprobe.report.figures import claims


def row(number: int, verdict: str, effect: float) -> dict[str, object]:
    name = f"claim_number_{number}" + "_of_many_words" * (number % 3)
    ends = {
        "effect": effect,
        "low": effect - 0.3,
        "high": effect + 0.3,
        "matters": 0.1,
        "learned": number % 2 == 0,
    }
    return {"claim": name, "verdict": verdict, "shape": list(claims.MARKS)[number % 3], **ends}


@pytest.mark.parametrize("count", [1, 5, 44])
def test_a_forest_is_whole(count):
    words = list(claims.WORDS)
    rows = [row(k, words[k % 4], (-1) ** k * 0.1 * (k % 7)) for k in range(count)]
    rows.append(row(count, "not applicable", math.nan))
    assert_nothing_is_clipped(claims.claims(rows))


@pytest.mark.parametrize("networks", [1, 7])
def test_a_matrix_is_whole(networks):
    names = [f"cifar10_network_{k}" for k in range(networks)]
    words = [*claims.WORDS, ""]
    rows = [
        {"claim": f"claim_{k}", **{name: words[(k + n) % 6] for n, name in enumerate(names)}}
        for k in range(9)
    ]
    assert_nothing_is_clipped(claims.claims_matrix(rows, names))
