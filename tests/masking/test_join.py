"""Redundant or inert: a curve of six heads whose answer can be read off."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mhprobe.masking.base import Path
from mhprobe.masking.redundant_or_inert import Likeness, Similarity, masked_heads
from mhprobe.masking.totals import totals
from mhprobe.masking.trace import Curve, Points, Trace
from mhprobe.report.masking import answer
from mhprobe.report.tables import masked_heads as table_of


def curve(masked: list[set[int]], accuracy: list[float], p: list[float] | None) -> Curve:
    mask = torch.tensor([[head in heads for head in range(6)] for heads in masked])
    points = Points(mask.sum(1).double(), *[torch.tensor(accuracy, dtype=torch.float64)] * 7)
    path = Path(None, mask[1:] & ~mask[:-1], ("",) * (len(masked) - 1))
    found = None if p is None else torch.tensor(p, dtype=torch.float64)
    trace = Trace(path, tuple(range(len(masked))), mask, points, found)
    return Curve("c", "test", "exact", "validation", False, (trace,))


def with_p(p: list[float] | None, accuracy: list[float] | None = None) -> Curve:
    return curve(MASKED, accuracy or [0.9, 0.9, 0.895, 0.88, 0.5], p)


MASKED = [set(), {0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3, 4}]
CURVE = with_p([1.0, 1.0, 0.5, 0.01, 0.001])  # Holm: 0.03 at the third step
NORM = torch.tensor([1.0, 0.1, 1.0, 1.0, 2.0, 1.0])


def similarity(pairs: dict[tuple[int, int], float]) -> Similarity:
    value = torch.full((6, 6), torch.nan, dtype=torch.float64).fill_diagonal_(1.0)
    for (a, b), number in pairs.items():
        value[a, b] = value[b, a] = number
    return Similarity(value, torch.full((6, 6), 0.2, dtype=torch.float64))


def phases(found) -> dict[int, str]:
    return {head.head: head.phase for head in found}


def test_phases_part_at_the_first_significant_drop():
    found = masked_heads(CURVE, {"s": similarity({})}, NORM)
    assert [(head.head, head.step) for head in found] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)]
    assert phases(found) == {0: "before", 1: "before", 2: "at", 3: "after", 4: "after"}
    early = masked_heads(with_p([1.0, 1.0, 0.01, 0.01, 0.001]), {"s": similarity({})}, NORM)
    assert phases(early)[1] == "at"
    up = with_p([1.0, 1.0, 0.01, 0.01, 0.001], [0.9, 0.9, 0.95, 0.88, 0.5])
    assert phases(masked_heads(up, {"s": similarity({})}, NORM))[1] == "before"  # better is no drop


def test_a_drop_of_a_point_that_may_be_chance_does_not_end_the_first_phase():
    """With few images a point is noise: the curve must not say at once that eight heads can go and that none can."""
    noisy = with_p([1.0, 0.4, 0.4, 0.3, 0.001], [0.9, 0.88, 0.88, 0.88, 0.5])
    assert bool(noisy.falls[1])
    assert list(phases(masked_heads(noisy, {"s": similarity({})}, NORM)).values()) == ["before"] * 3 + ["at"] * 2


def test_without_a_test_the_drop_is_of_more_than_a_point():
    found = masked_heads(with_p(None), {"s": similarity({})}, NORM)
    assert phases(found) == {0: "before", 1: "before", 2: "at", 3: "after", 4: "after"}


def test_likeness_is_to_heads_that_are_kept_at_the_drop():
    # 0 is most like 1, but 1 goes before the drop too; 2 and 3 are still there
    s = similarity({(0, 1): 0.99, (0, 2): 0.7, (0, 3): 0.5, (2, 3): 0.4, (3, 1): 0.8})
    found = {head.head: head.likeness["s"] for head in masked_heads(CURVE, {"s": s}, NORM)}
    assert found[0] == Likeness(2, 0.7, 0.2) and found[1] == Likeness(3, 0.8, 0.2)
    assert found[2] == Likeness(3, 0.4, 0.2)  # itself is no kept head
    assert found[4] is None


def test_the_largest_similarity_is_read_against_the_largest_chance_level():
    s = similarity({(0, 2): 0.7, (0, 3): 0.5})
    s.null[0, 3] = 0.6  # of a pair that is not the most alike
    s.null[0, 1] = 0.9  # of a head that is gone
    first = masked_heads(CURVE, {"s": s}, NORM)[0]
    assert first.likeness["s"] == Likeness(2, 0.7, 0.6) and first.likeness["s"].standing == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("value", "norm", "verdict"),
    [(0.61, 1.0, "redundant"), (0.59, 1.0, "neither"), (0.59, 0.49, "inert"), (0.61, 0.49, "both")],
)
def test_verdicts_at_their_thresholds(value, norm, verdict):
    # (0.6 - 0.2) / (1 - 0.2) = 0.5; the median norm is 1
    norms = torch.tensor([norm, 1.0, 1.0, 1.0, 1.0, 1.0])
    head = masked_heads(CURVE, {"s": similarity({(0, 5): value})}, norms)[0]
    assert (head.head, head.verdict, head.write_share) == (0, verdict, pytest.approx(norm))


def test_any_similarity_makes_a_head_redundant():
    low, high = similarity({(0, 5): 0.3}), similarity({(0, 5): 0.9})
    assert masked_heads(CURVE, {"a": low, "b": high}, NORM)[0].verdict == "redundant"
    assert masked_heads(CURVE, {"b": Similarity(high.value)}, NORM)[0].likeness["b"].null is None


def test_a_curve_without_a_drop_is_all_before():
    found = masked_heads(with_p([1.0] * 5), {"s": similarity({(0, 5): 0.9, (0, 2): 0.95})}, NORM)
    assert set(phases(found).values()) == {"before"}
    assert found[0].likeness["s"].kept == 5  # the only one that is there at the end


def test_the_table_has_a_row_per_head_and_nothing_where_nothing_was_compared():
    s = similarity({(0, 2): 0.7})
    found = masked_heads(CURVE, {"s": s, "t": Similarity(s.value)}, NORM)
    table = table_of(found)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["head"] for row in rows] == [0, 1, 2, 3, 4]
    assert (rows[0]["kept_s"], rows[0]["similarity_s"], rows[0]["null_s"], rows[0]["null_t"]) == (2, 0.7, 0.2, "")
    assert {rows[4][f"{column}_s"] for column in ("kept", "similarity", "null")} == {""}
    assert dataclasses.asdict(found[0])["redundant"] == (rows[0]["verdict"] in ("redundant", "both"))


def test_the_answer_is_a_line_per_tested_curve():
    heads = masked_heads(CURVE, {"s": similarity({(0, 5): 0.9})}, NORM)
    (line,) = answer(totals([CURVE]), heads)
    assert line == (
        "c on test: 2 heads go before accuracy is significantly lower (redundant or inert? 1 redundant, 1 inert)"
    )
    (line,) = answer(totals([with_p([1.0, 0.001, 0.001, 0.001, 0.001], [0.9, 0.8, 0.7, 0.6, 0.5])]), [])
    assert line == "c on test: already its first step makes accuracy significantly lower"
    assert answer(totals([with_p(None)]), []) == []
