"""Redundant or inert: a curve of six heads whose answer can be read off."""

from __future__ import annotations

import pytest
import torch

from mhprobe.masking.join import Similarity, join


def rows(masked: list[str], accuracy: list[float], p_holm: list[float]) -> list[dict]:
    return [
        {"curve": "c", "split": "test", "step": k, "masked": m, "accuracy": a, "p_holm": p}
        for k, (m, a, p) in enumerate(zip(masked, accuracy, p_holm, strict=True))
    ]


CURVE = rows(["", "0", "0 1", "0 1 2", "0 1 2 3 4"], [0.9, 0.9, 0.895, 0.88, 0.5], [1.0, 1.0, 0.5, 0.2, 0.001])
NORM = torch.tensor([1.0, 0.1, 1.0, 1.0, 2.0, 1.0])


def similarity(pairs: dict[tuple[int, int], float]) -> Similarity:
    value = torch.full((6, 6), torch.nan, dtype=torch.float64).fill_diagonal_(1.0)
    for (a, b), number in pairs.items():
        value[a, b] = value[b, a] = number
    return Similarity(value, torch.full((6, 6), 0.2, dtype=torch.float64))


def test_phases_part_at_the_first_drop_of_more_than_a_point():
    found = {row["head"]: (row["step"], row["phase"]) for row in join(CURVE, {"s": similarity({})}, NORM)}
    assert found == {0: (1, "before"), 1: (2, "before"), 2: (3, "at"), 3: (4, "after"), 4: (4, "after")}


def test_a_significant_drop_counts_if_it_is_down():
    down = [{**row, "p_holm": 0.01 if row["step"] == 2 else row["p_holm"]} for row in CURVE]
    assert {row["head"]: row["phase"] for row in join(down, {"s": similarity({})}, NORM)}[1] == "at"
    up = [{**row, "accuracy": 0.95} if row["step"] == 2 else row for row in down]
    assert {row["head"]: row["phase"] for row in join(up, {"s": similarity({})}, NORM)}[1] == "before"


def test_likeness_is_to_heads_that_are_kept_at_the_drop():
    # 0 is most like 1, but 1 goes before the drop too; 2 and 3 are still there
    s = similarity({(0, 1): 0.99, (0, 2): 0.7, (0, 3): 0.5, (2, 3): 0.4, (3, 1): 0.8})
    found = {row["head"]: row for row in join(CURVE, {"s": s}, NORM)}
    assert (found[0]["kept_s"], found[0]["similarity_s"], found[0]["null_s"]) == (2, 0.7, pytest.approx(0.2))
    assert (found[1]["kept_s"], found[1]["similarity_s"]) == (3, 0.8)
    assert (found[2]["kept_s"], found[2]["similarity_s"]) == (0 + 3, 0.4)  # itself is no kept head
    assert found[4]["kept_s"] == "" and found[4]["similarity_s"] == ""


@pytest.mark.parametrize(
    ("value", "norm", "verdict"),
    [(0.61, 1.0, "redundant"), (0.59, 1.0, "neither"), (0.59, 0.49, "inert"), (0.61, 0.49, "both")],
)
def test_verdicts_at_their_thresholds(value, norm, verdict):
    # (0.6 - 0.2) / (1 - 0.2) = 0.5; the median norm is 1
    norms = torch.tensor([norm, 1.0, 1.0, 1.0, 1.0, 1.0])
    row = join(CURVE, {"s": similarity({(0, 5): value})}, norms)[0]
    assert (row["head"], row["verdict"], row["write_share"]) == (0, verdict, pytest.approx(norm))


def test_any_similarity_makes_a_head_redundant():
    low, high = similarity({(0, 5): 0.3}), similarity({(0, 5): 0.9})
    assert join(CURVE, {"a": low, "b": high}, NORM)[0]["verdict"] == "redundant"
    no_null = Similarity(high.value, None)
    assert join(CURVE, {"b": no_null}, NORM)[0]["null_b"] == ""


def test_a_curve_without_a_drop_is_all_before():
    flat = [{**row, "accuracy": 0.9, "p_holm": 1.0} for row in CURVE]
    found = join(flat, {"s": similarity({(0, 5): 0.9, (0, 2): 0.95})}, NORM)
    assert {row["phase"] for row in found} == {"before"}
    assert found[0]["kept_s"] == 5  # the only one that is there at the end
