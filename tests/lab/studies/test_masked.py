"""Are heads that can go alike? Pairs are held against their own layers: which layers they are of must not matter."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from mhprobe.framework.questions.masking import Masking
from mhprobe.lab.papers.panels.masking import classes_at_steps, likeness
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec
from models import tiny_vit

SITE = torch.tensor([0] * 4 + [1] * 5)
GROUPS = {
    "before": torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 1], dtype=torch.bool),
    "at": torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 0], dtype=torch.bool),
    "kept": torch.tensor([0, 0, 0, 1, 0, 1, 1, 1, 0], dtype=torch.bool),
}
DRAWS = 4000


def similarity(seed: int = 0) -> torch.Tensor:
    """Symmetric, of heads of one layer; those of layer 0 are far more alike."""
    value = (
        torch.rand(9, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 10
    )
    value = (value + value.T) / 2 + torch.where(SITE[:, None] == 0, 0.8, 0.1)
    return value.masked_fill((SITE[:, None] != SITE) | torch.eye(9, dtype=torch.bool), torch.nan)


def names() -> list[str]:
    return [next(name for name, mask in GROUPS.items() if mask[head]) for head in range(9)]


def by_hand(value: torch.Tensor, labels: list[str]) -> dict[frozenset[str], float]:
    """How far the pairs of two groups stand above the mean of their layer's pairs, pair by pair."""
    found: dict[frozenset[str], list[float]] = {}
    for heads in (range(4), range(4, 9)):
        pairs = list(itertools.combinations(heads, 2))
        mean = sum(float(value[a, b]) for a, b in pairs) / len(pairs)
        for a, b in pairs:
            found.setdefault(frozenset((labels[a], labels[b])), []).append(
                float(value[a, b]) - mean
            )
    return {kind: sum(parts) / len(parts) for kind, parts in found.items()}


def test_numbers_and_p_are_those_of_all_ways_to_deal_the_heads_out():
    value, labels = similarity(), names()
    here, ways = by_hand(value, labels), []
    for one in set(itertools.permutations(labels[:4])):
        ways += [
            by_hand(value, [*one, *other]) for other in set(itertools.permutations(labels[4:]))
        ]
    rows = likeness(value, None, GROUPS, SITE, DRAWS, seed=0)
    assert {frozenset((row["group_a"], row["group_b"])) for row in rows} == set(here)
    for row in rows:
        kind = frozenset((row["group_a"], row["group_b"]))
        exact = sum(abs(way[kind]) >= abs(here[kind]) - 1e-12 for way in ways) / len(ways)
        assert row["above"] == pytest.approx(here[kind], abs=1e-12)
        assert row["p"] == pytest.approx(
            exact, abs=4 * (exact * (1 - exact) / DRAWS) ** 0.5 + 2 / DRAWS
        )  # 4 sd
        assert row["p_holm"] >= row["p"] and row["null"] == ""


def test_likeness_that_only_depends_on_the_layer_is_no_likeness_of_the_heads_that_go():
    value = torch.where(
        similarity().isnan(), torch.nan, torch.where(SITE[:, None] == 0, 0.8, 0.1).double()
    )
    for row in likeness(value, value, GROUPS, SITE, 100, seed=0):
        assert row["above"] == pytest.approx(0, abs=1e-12) and row["p"] == 1
    among = {
        row["group_a"]: row["mean"]
        for row in likeness(value, value, GROUPS, SITE, 1, 0)
        if row["group_a"] == row["group_b"]
    }
    assert (
        among["before"] > among["kept"] + 0.3
    )  # what a comparison without the layers would have called alike


def test_heads_that_are_alike_are_found():
    layers, heads = 6, 8
    site = torch.arange(layers).repeat_interleave(heads)
    before = torch.arange(layers * heads) % heads < 3
    groups = {"before": before, "at": torch.zeros_like(before), "kept": ~before}
    value = torch.rand(48, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 10
    value = (value + value.T) / 2 + 0.05 * (before[:, None] & before)
    value = value.masked_fill((site[:, None] != site) | torch.eye(48, dtype=torch.bool), torch.nan)
    found = {
        (row["group_a"], row["group_b"]): row
        for row in likeness(value, None, groups, site, 1000, seed=1)
    }
    assert ("at", "kept") not in found  # nobody went at the drop
    alike = found["before", "before"]
    assert (
        alike["above"] > alike["chance_high"] > 0 > alike["chance_low"] and alike["p_holm"] < 0.01
    )


def test_heads_that_nobody_compared_have_no_rows():
    assert likeness(torch.full((9, 9), torch.nan), None, GROUPS, SITE, 10, seed=0) == []


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
@pytest.mark.parametrize("select_on", ["validation", "test"])
def test_classes_along_a_curve_are_scored_as_the_curve_and_tested_where_it_is(
    material, tmp_path, select_on
):
    """The panel left out the curve's fill, and gave p on the images that had chosen the order."""
    specs = {fill: CurveSpec(fill, "head", KeepBest(), fill=fill) for fill in ("zero", "mean")}
    for weight in material.backbone.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # so that images of one class differ
    material.model.features_only, material.model.description = False, {"backbone": {"name": "tiny"}}
    material.masking, material.curve_names = (
        Masking(specs, tmp_path / "scores", select_on),
        tuple(specs),
    )
    curves = {curve.name: curve for curve in material.curves() if curve.split == "test"}
    tables = {name: result.table.dicts() for name, result in classes_at_steps(material).items()}
    assert set(curves) == set(tables) == set(specs)
    for name, curve in curves.items():
        for k, accuracy in enumerate(curve.points.accuracy.tolist()):
            rows = [row for row in tables[name] if row["step"] == k]
            right = sum(row["accuracy"] * row["images"] for row in rows)
            assert right / sum(row["images"] for row in rows) == pytest.approx(accuracy)
            assert (
                all(math.isnan(row["p"]) for row in rows)
                == curve.optimistic
                == (select_on == "test")
            )
    zero, mean = (curves[name].points.accuracy for name in ("zero", "mean"))
    assert not zero.equal(mean)  # the control: the fill matters
