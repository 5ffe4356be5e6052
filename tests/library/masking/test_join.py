"""Redundant or inert: a curve of six heads whose answer can be read off."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from mhprobe.masking.base import Path, Scores
from mhprobe.masking.parts.trace import Curve, Points, Trace, totals, trace
from mhprobe.masking.redundant_or_inert import (
    Likeness,
    MaskedHead,
    Similarities,
    _bar,
    control,
    masked_heads,
)
from mhprobe.report.measured import verdicts_on_curves
from mhprobe.report.tables import masked_heads as table_of

OTHERS = len(Points._fields) - 1  # than the number of heads


def curve(
    masked: list[set[int]], accuracy: list[float], p: list[float] | None, width: float = 0.004
) -> Curve:
    mask = torch.tensor([[head in heads for head in range(6)] for heads in masked])
    right = torch.tensor(accuracy, dtype=torch.float64)
    change = right - right[0]
    points = Points(mask.sum(1).double(), *[right] * OTHERS)
    points = points._replace(difference=change, difference_low=change - width)
    path = Path(None, mask[1:] & ~mask[:-1], ("",) * (len(masked) - 1))
    found = None if p is None else torch.tensor(p, dtype=torch.float64)
    trace = Trace(path, tuple(range(len(masked))), mask, points, found)
    return Curve("c", "test", "exact", "validation", False, (trace,))


def with_p(
    p: list[float] | None, accuracy: list[float] | None = None, width: float = 0.004
) -> Curve:
    return curve(MASKED, accuracy or [0.9, 0.9, 0.895, 0.88, 0.5], p, width)


MASKED = [set(), {0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3, 4}]
CURVE = with_p([1.0, 1.0, 0.5, 0.01, 0.001])  # Holm: 0.03 at the third step
NORM = torch.tensor([1.0, 0.1, 1.0, 1.0, 2.0, 1.0])


def similarity(pairs: dict[tuple[int, int], float]) -> Similarities:
    value = torch.full((6, 6), torch.nan, dtype=torch.float64).fill_diagonal_(1.0)
    for (a, b), number in pairs.items():
        value[a, b] = value[b, a] = number
    draws = 0.2 + torch.linspace(-0.02, 0.02, 60, dtype=torch.float64).expand(6, 6, 60)
    return Similarities(value, draws.mean(-1), draws)


def plain(like: Likeness | None) -> tuple[int, float, float] | None:
    return None if like is None else (like.kept, like.similarity, pytest.approx(like.null))


def phases(found) -> dict[int, str]:
    return {head.head: head.phase for head in found}


def test_phases_part_at_the_first_significant_drop():
    found = masked_heads(CURVE, {"s": similarity({})}, NORM)
    assert [(head.head, head.step) for head in found] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)]
    assert phases(found) == {0: "before", 1: "before", 2: "at", 3: "after", 4: "after"}
    fallen = [0.9, 0.9, 0.88, 0.88, 0.5]
    early = masked_heads(with_p([1.0, 1.0, 0.01, 0.01, 0.001], fallen), {"s": similarity({})}, NORM)
    assert phases(early)[1] == "at"
    up = with_p([1.0, 1.0, 0.01, 0.01, 0.001], [0.9, 0.9, 0.95, 0.88, 0.5])
    assert phases(masked_heads(up, {"s": similarity({})}, NORM))[1] == "before"  # better is no drop


def test_a_loss_that_is_significant_but_shown_to_be_small_ends_nothing():
    small = with_p([1.0, 1.0, 0.01, 0.01, 0.001])  # half a point at the second step
    assert bool(small.worse[2])
    assert phases(masked_heads(small, {"s": similarity({})}, NORM))[1] == "before"


def test_a_drop_of_a_point_that_may_be_chance_lets_no_head_go_and_needs_none():
    """With few images a point is noise: it is not known whether these heads can go."""
    noisy = with_p([1.0, 0.4, 0.4, 0.3, 0.001], [0.9, 0.88, 0.88, 0.88, 0.5])
    assert bool(noisy.falls[1])
    assert (
        list(phases(masked_heads(noisy, {"s": similarity({})}, NORM)).values())
        == ["undecided"] * 3 + ["at"] * 2
    )
    few = with_p([1.0, 1.0, 0.5, 0.01, 0.001], width=0.05)  # a step that changes nothing, unshown
    assert set(phases(masked_heads(few, {"s": similarity({})}, NORM)).values()) == {
        "undecided",
        "at",
        "after",
    }


def test_how_many_heads_can_go_is_one_number_wherever_it_is_said():
    """The totals, the phases and the closing line, on a curve that at once falls a point that may be chance."""
    noisy = with_p([1.0, 0.4, 0.4, 0.3, 0.001], [0.9, 0.88, 0.88, 0.88, 0.5])
    heads = masked_heads(noisy, {"s": similarity({(0, 5): 0.9})}, NORM)
    (found,) = totals([noisy])
    assert (found.heads_within_1_point, found.heads_shown_within_1_point) == (0, 0)
    assert list(phases(heads).values()).count("before") == 0
    (line,) = verdicts_on_curves([found], heads)
    assert line == "c on test: 0 heads are shown to cost less than one point of accuracy"
    heads = masked_heads(CURVE, {"s": similarity({(0, 5): 0.9})}, NORM)
    (found,) = totals([CURVE])
    assert found.heads_shown_within_1_point == list(phases(heads).values()).count("before") == 2
    (line,) = verdicts_on_curves([found], heads)
    assert line.startswith("c on test: 2 heads are shown to cost less than one point of accuracy (")
    counts = line.partition(" (")[2].partition(";")[0].rstrip(")").split(", ")
    assert sum(int(count.split()[0]) for count in counts) == 2, (
        "of each of them it is said what it is"
    )


def test_no_count_of_heads_that_can_go_grows_with_fewer_images():
    """Heads of a planted network that cost more and more, judged on subsets of its images."""
    heads, images, generator = 40, 16000, torch.Generator().manual_seed(0)
    cost_K = torch.linspace(0, 0.2, heads + 1, dtype=torch.float64) ** 1.5
    mask = torch.ones(heads + 1, heads, dtype=torch.bool).tril(-1)
    path = Path(None, mask[1:] & ~mask[:-1], ("",) * heads)
    first_lost = torch.rand(images, generator=generator, dtype=torch.float64)
    won = torch.rand(heads + 1, images, generator=generator) < 0.002
    won[0] = False  # the whole network
    right = (torch.rand(images, generator=generator) < 0.9) & (first_lost >= cost_K[:, None]) | won
    similar = {"s": Similarities(torch.eye(heads).double())}

    def counts(some: torch.Tensor) -> list[float]:
        def evaluate(masks):
            of = right[masks.sum(1)][:, some]
            return Scores(of, (~of).double())

        curve = Curve("c", "test", "", "validation", False, trace([path], evaluate))
        (found,) = totals([curve])
        judged = masked_heads(curve, similar, torch.linspace(0.1, 2, heads))
        can_go = [head for head in judged if head.phase == "before"]
        inert = sum(head.inert for head in can_go)
        return [found.heads_shown_within_1_point, len(can_go), inert, curve.drop - 1]

    means = []
    for count in (16000, 4000, 1000, 250, 60):
        drawn = [torch.randperm(images, generator=generator)[:count] for _ in range(8)]
        means.append(torch.tensor([counts(some) for some in drawn]).double().mean(0))
    shown, can_go, inert, ring = torch.stack(means, 1).tolist()
    for falling in (shown, can_go, inert):
        assert falling == sorted(falling, reverse=True) and falling[0] > 2 > falling[-1]
    assert ring == sorted(ring) and ring[-1] > 2 * ring[0]  # the control: a count that would grow


def test_without_a_test_the_drop_is_of_more_than_a_point():
    found = masked_heads(with_p(None), {"s": similarity({})}, NORM)
    assert phases(found) == {0: "before", 1: "before", 2: "at", 3: "after", 4: "after"}


def test_likeness_is_to_heads_that_are_kept_at_the_drop():
    # 0 is most like 1, but 1 goes before the drop too; 2 and 3 are still there
    s = similarity({(0, 1): 0.99, (0, 2): 0.7, (0, 3): 0.5, (2, 3): 0.4, (3, 1): 0.8})
    found = {head.head: plain(head.likeness["s"]) for head in masked_heads(CURVE, {"s": s}, NORM)}
    assert found[0] == (2, 0.7, 0.2) and found[1] == (3, 0.8, 0.2)
    assert found[2] == (3, 0.4, 0.2)  # itself is no kept head
    assert found[4] is None


def test_the_largest_similarity_is_read_against_the_null_of_the_largest():
    value = similarity({(0, 2): 0.7, (0, 3): 0.5}).value
    draws = torch.full((6, 6, 3), 0.2, dtype=torch.float64)
    draws[0, 2], draws[0, 3] = (
        torch.tensor([0.1, 0.3, 0.2]),
        torch.tensor([0.3, 0.1, 0.2]),
    )  # 0.2 each, the larger 0.27
    draws[0, 1] = 0.9  # of a head that is gone
    like = masked_heads(CURVE, {"s": Similarities(value, draws.mean(-1), draws)}, NORM)[0].likeness[
        "s"
    ]
    largest = torch.tensor([0.3, 0.3, 0.2], dtype=torch.float64)
    assert (like.kept, like.null) == (2, pytest.approx(float(largest.mean())))
    assert like.error == pytest.approx(float(largest.std()) / 3**0.5)
    assert like.p == 1 / 4  # above all three: more can not be said with three
    # a measure without draws: the largest of its chance levels, and no test
    without = masked_heads(CURVE, {"s": Similarities(value, draws.mean(-1))}, NORM)[0]
    assert (
        without.likeness["s"].null == pytest.approx(0.2)
        and math.isnan(without.p)
        and not without.redundant
    )


@pytest.mark.parametrize(
    ("value", "norm", "verdict"),
    [(0.4, 1.0, "redundant"), (0.21, 1.0, "neither"), (0.21, 0.49, "inert"), (0.4, 0.49, "both")],
)
def test_verdicts_at_their_thresholds(value, norm, verdict):
    norms = torch.tensor([norm, 1.0, 1.0, 1.0, 1.0, 1.0])
    s = similarity({(0, 5): value, (3, 5): 0.3})  # 3 can not go
    head = masked_heads(CURVE, {"s": s}, norms)[0]
    assert (head.head, head.verdict, head.write_share) == (0, verdict, pytest.approx(norm))


def test_the_median_of_an_even_number_of_heads_lies_between_the_two_middle_ones():
    norms = torch.tensor([0.9, 1.0, 1.0, 3.0, 3.0, 3.0])  # half the median is 1
    head = masked_heads(CURVE, {"s": similarity({(0, 5): 0.4})}, norms)[0]
    assert (head.head, head.write_share, head.inert) == (0, pytest.approx(0.45), True)


def test_heads_that_are_alike_by_chance_are_called_alike_as_rarely_as_the_level_says():
    """40 heads that were masked, 20 that are kept, and nothing between them but the law that the null is drawn from."""
    generator = torch.Generator().manual_seed(0)
    masked = [set(), *[set(range(k + 1)) for k in range(40)]]
    mask = torch.tensor([[head in heads for head in range(60)] for heads in masked])
    points = Points(
        mask.sum(1).double(), *[torch.linspace(1, 0.5, 41, dtype=torch.float64)] * OTHERS
    )
    trace = Trace(
        Path(None, mask[1:] & ~mask[:-1], ("",) * 40),
        tuple(range(41)),
        mask,
        points,
        torch.ones(41).double(),
    )
    path, found = Curve("c", "test", "exact", "validation", False, (trace,)), []
    for _ in range(50):
        draws = 0.2 + 0.02 * torch.randn(60, 60, 11, generator=generator, dtype=torch.float64)
        heads = masked_heads(
            path, {"s": Similarities(draws[..., 0], None, draws[..., 1:])}, torch.ones(60)
        )
        found.append(any(head.alike for head in heads))
    # of such lists, those that hold anything are all false: at most 5 %, give or take two standard
    # errors of 50 draws
    assert sum(found) / 50 <= 0.05 + 2 * (0.05 * 0.95 / 50) ** 0.5


def test_any_similarity_makes_a_head_redundant_and_pays_for_the_others():
    low, high = similarity({(0, 5): 0.2, (3, 5): 0.2}), similarity({(0, 5): 0.9, (3, 5): 0.2})
    both = masked_heads(CURVE, {"a": low, "b": high}, NORM)[0]
    alone = masked_heads(CURVE, {"b": high}, NORM)[0]
    assert both.verdict == "redundant" and both.p == pytest.approx(2 * alone.p)
    assert masked_heads(CURVE, {"b": Similarities(high.value)}, NORM)[0].likeness["b"].null is None


def test_a_head_that_is_no_more_alike_than_needed_ones_is_not_redundant():
    pairs = {
        (0, 5): 0.6,
        (1, 5): 0.9,
        (2, 5): 0.7,
        (3, 5): 0.8,
        (4, 5): 0.5,
    }  # 2, 3 and 4 can not go
    found = {head.head: head for head in masked_heads(CURVE, {"s": similarity(pairs)}, NORM)}
    assert all(head.alike for head in found.values())
    assert [head for head in found if found[head].redundant] == [
        1,
        3,
    ]  # 3 stands above the other needed ones
    assert found[0].bar == found[1].bar == pytest.approx(found[3].standing)
    assert found[3].bar == pytest.approx(found[2].standing)
    chance = masked_heads(
        CURVE,
        {"s": similarity({**pairs, (1, 5): 0.21, (3, 5): 0.2, (2, 5): 0.2, (4, 5): 0.2})},
        NORM,
    )
    assert chance[1].standing > chance[1].bar and not chance[1].alike and not chance[1].redundant


def test_the_bar_leaves_the_level_share_of_many_heads_above_it():
    heads = [
        MaskedHead("c", "t", n, n, "after", {"s": Likeness(9, n / 100)}, 0, 1, 1, False, False)
        for n in range(40)
    ]
    own = MaskedHead("c", "t", 40, 0, "before", {"s": Likeness(9, 0.375)}, 0.0, 1, 1, False, False)
    assert _bar([*heads, own], own, 0.05) == pytest.approx(0.37)  # 38 and 39 are above: 2 of 40
    assert _bar(heads[:19], own, 0.05) == pytest.approx(0.18)  # of few, all
    assert math.isnan(_bar([own], own, 0.05))


def test_heads_that_can_not_go_are_the_control():
    def heads(before: list[float], after: list[float]) -> list[MaskedHead]:
        phases = [(value, "before") for value in before] + [(value, "after") for value in after]
        return [
            MaskedHead(
                "c",
                "test",
                n,
                n,
                phase,
                {"s": Likeness(9, value, 0.1)},
                0.01,
                1.0,
                1.0,
                True,
                False,
            )
            for n, (value, phase) in enumerate(phases)
        ]

    assert control(heads([0.5, 0.6, 0.7, 0.8], [0.1, 0.2, 0.3, 0.4])) == pytest.approx(
        1 / 70
    )  # 1 of 8 over 4
    assert control(heads([0.1, 0.4], [0.2, 0.3])) > 0.3
    assert math.isnan(control(heads([0.5], [])))


def test_a_curve_without_a_drop_is_all_before():
    level = with_p([1.0] * 5, [0.9] * 5)
    found = masked_heads(level, {"s": similarity({(0, 5): 0.9, (0, 2): 0.95})}, NORM)
    assert set(phases(found).values()) == {"before"}
    assert found[0].likeness["s"].kept == 5  # the only one that is there at the end


def test_the_table_has_a_row_per_head_and_nothing_where_nothing_was_compared():
    s = similarity({(0, 2): 0.7})
    found = masked_heads(CURVE, {"s": s, "t": Similarities(s.value)}, NORM)
    table = table_of(found)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["head"] for row in rows] == [0, 1, 2, 3, 4]
    assert (rows[0]["kept_s"], rows[0]["similarity_s"], rows[0]["null_t"], rows[0]["p_t"]) == (
        2,
        0.7,
        "",
        "",
    )
    assert (
        rows[0]["null_s"] == pytest.approx(0.2)
        and 0 < rows[0]["null_error_s"] < 0.01
        and rows[0]["p"] < 0.05
    )
    assert {
        rows[4][f"{column}_s"] for column in ("kept", "similarity", "null", "null_error", "p")
    } == {""}
    assert dataclasses.asdict(found[0])["redundant"] == (
        rows[0]["verdict"] in ("redundant", "both")
    )
    assert (
        rows[0]["standing"] == pytest.approx(0.7) and rows[0]["bar"] == ""
    )  # t has no null; no control


def test_the_answer_is_a_line_per_tested_curve():
    heads = masked_heads(CURVE, {"s": similarity({(0, 5): 0.9, (3, 5): 0.3})}, NORM)
    (line,) = verdicts_on_curves(totals([CURVE]), heads)
    start = (
        "c on test: 2 heads are shown to cost less than one point of accuracy (1 redundant, 1 inert"
    )
    assert line.startswith(start)
    heads = masked_heads(
        CURVE, {"s": similarity({(0, 5): 0.9, (1, 5): 0.25, (3, 5): 0.95, (4, 5): 0.9})}, NORM
    )
    (line,) = verdicts_on_curves(totals([CURVE]), heads)
    assert (
        "; of 3 needed heads 2 resemble a kept head more than chance; heads that can go resemble"
        in line
    )
    assert "kept heads no more than needed ones, p = " in line
    (line,) = verdicts_on_curves(
        totals([with_p([1.0, 0.001, 0.001, 0.001, 0.001], [0.9, 0.8, 0.7, 0.6, 0.5])]), []
    )
    assert line == "c on test: 0 heads are shown to cost less than one point of accuracy"
    assert verdicts_on_curves(totals([with_p(None)]), []) == []
