"""Grafts: heads of trained networks, changed by grades; a measure is found to need the grade that it was made to."""

from __future__ import annotations

import copy
import csv
import math

import pytest
import torch

import mhprobe
from drawn import assert_nothing_is_clipped
from mhprobe.errors import UserError
from mhprobe.headbench import main
from mhprobe.lab.headbench import sensitivity as module
from mhprobe.lab.headbench.bench import entries
from mhprobe.lab.headbench.grafts import GRADES, Graft, known_grafts
from mhprobe.lab.headbench.network import TrainedNetwork, digits
from mhprobe.lab.headbench.sensitivity import half_reached, places, sensitivities
from mhprobe.measures.base import Measure
from mhprobe.report.figures import headbench
from models import tiny_vit


@pytest.fixture(scope="module")
def trained() -> TrainedNetwork:
    return TrainedNetwork(0)


def test_grafts_are_found_by_their_names_and_name_measures_that_there_are():
    kinds = known_grafts()
    assert len(kinds) >= 5
    for graft in kinds.values():
        assert len(graft.amounts) == GRADES and graft.question.endswith("?")
        assert set(graft.signs.values()) <= {1, -1} and graft.low < graft.high
        assert {detector.partition(".")[0] for detector in graft.signs} <= set(entries(None))


def test_images_that_train_verify_choose_and_measure_are_different_ones():
    """But for digits that the set itself has twice."""
    parts = [{image.numpy().tobytes() for image in part.images} for part in digits()]
    train, verify, choose, look = parts
    for one, other in ((train, look), (verify, look), (choose, look), (verify, choose)):
        assert len(one & other) <= 2
    assert min(map(len, parts)) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("name", known_grafts())
def test_interventions_confirm_a_graft_and_neither_the_heads_before_nor_others(trained, name):
    graft = known_grafts()[name]
    weights = copy.deepcopy(trained.model.state_dict())
    site, heads, others = next(places(trained, name, graft))
    grown = list(graft.grown(trained, site, heads))
    assert len(grown) == GRADES and not any(each.model._forward_pre_hooks for each in grown)
    torch.testing.assert_close(trained.model.state_dict(), weights, rtol=0, atol=0)
    shown = [graft.shown(each, trained, site, heads) for each in (trained, *grown)]
    assert shown[0] < graft.low and shown[-1] > graft.high, shown
    assert shown[1:] == sorted(shown[1:]) or name == "stand_in", shown
    assert graft.verified(trained, grown[-1], site, heads, others)
    assert not graft.verified(grown[-1], grown[-1], site, heads, others)  # it was there before
    assert not graft.verified(trained, trained, site, heads, others)  # it never came
    assert not graft.verified(trained, grown[-1], site, heads, heads)  # others have it, too


# the search for the grade, on networks, grafts and measures that a test makes up


class Marked(Graft):
    """Head 0 of the first layer writes more at every grade; a second head, too, from the third on."""

    question = "is it marked?"
    signs = {"weight_of": 1, "weight_of.turned": -1, "weight_of.nothing": 1}  # noqa: RUF012
    amounts = (1, 2, 3, 4, 5)
    low, high = 0.5, 0.6

    def grown(self, network, site, heads):
        for amount in self.amounts:
            copied = network.copied()
            with torch.no_grad():
                at = network.layout.flat(site, heads[0])
                copied.model.marks[at] = amount
            yield copied

    def shown(self, network, before, site, heads):
        return float(network.model.marks[network.layout.flat(site, heads[0])] > 0)


class WeightOf(Measure):
    """Sees marks above a threshold that other heads of the network reach."""

    needs = frozenset({"weights"})
    name = "weight_of"

    def update(self, batch):
        self.images += batch.valid.sum()

    def finish(self):
        marks = self.layout.marks.double() + self.layout.others
        value = torch.where(marks > 2.5, marks, 0 * marks)
        return {
            "value": value,
            "turned": -value,
            "nothing": torch.where(marks > 3.5, marks, torch.nan),
        }


class Stub(TrainedNetwork):
    def __init__(self, seed):
        self.seed, self.right, self.family = seed, 1.0, "vit"
        self.model = tiny_vit(img_size=8, patch_size=4, num_classes=10)
        self.model.register_buffer("marks", torch.zeros(6))
        self.layout = mhprobe.attach(self.model).layout

    def gated(self):
        return self.model


@pytest.fixture
def run(monkeypatch):
    def go(makes=None, entered=(), seeds=range(3), graft=Marked, draws=2):
        monkeypatch.setattr(module, "TrainedNetwork", Stub)
        monkeypatch.setattr(module, "known_grafts", lambda: {"marked": graft()})
        scores = module._scores

        def knowing(network, *rest):
            object.__setattr__(network.layout, "marks", network.model.marks)
            object.__setattr__(network.layout, "others", torch.linspace(0, 0.4, 6))
            return scores(network, *rest)

        monkeypatch.setattr(module, "_scores", knowing)
        return sensitivities(makes or {"weight_of": WeightOf}, entered, seeds, draws)

    return go


def test_the_grade_from_which_on_a_measure_finds_half_is_the_one_that_it_needs(run):
    grades, found = run()
    by_name = {row.measure: row for row in found}
    assert by_name["weight_of"].direction == 1 and by_name["weight_of.turned"].direction == -1
    for name in ("weight_of", "weight_of.turned"):
        row = by_name[name]
        assert 1.5 <= row.low <= row.grade <= row.high <= 3 and row.chance == 0
        assert (row.grafts, row.networks) == (6, 3)
    points = [point for point in grades if point.measure == "weight_of"]
    assert [point.grade for point in points] == list(range(6)) and math.isnan(points[0].amount)
    assert [point.amount for point in points[1:]] == [1, 2, 3, 4, 5]
    assert points[0].found == points[1].found == 0 and points[3].found == points[5].found == 1
    assert all(point.low <= point.found <= point.high for point in points)
    assert_nothing_is_clipped(headbench.sensitivity(grades, found))


def test_names_of_measures_do_not_run_into_the_next_panel(run):
    _, found = run()
    long = [
        row._replace(graft=graft, measure=f"{row.measure}.against_and_more")
        for row in found
        for graft in "ab"
    ]
    figure = headbench.sensitivity([], long)
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert first.x1 < second.x0


def test_one_network_gives_no_interval_and_the_figure_none(run):
    grades, found = run(seeds=[0])
    row = next(row for row in found if row.measure == "weight_of")
    assert math.isfinite(row.grade) and row.networks == 1
    ends = [end for of in (*found, *grades) for end in (of.low, of.high)]
    assert all(map(math.isnan, ends))
    figure = headbench.sensitivity(grades, found)
    labels = [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]
    assert labels == [
        f"weight_of {row.grade:.1f}",
        f"weight_of.turned {row.grade:.1f}",
        "weight_of.nothing never",
    ]


def test_a_measure_without_a_number_has_not_found_it(run):
    grades, found = run()
    nothing = [point for point in grades if point.measure == "weight_of.nothing"]
    assert [point.numbers for point in nothing] == [
        0
    ] * 6  # nothing to tell the graft from: no other head has a number
    assert all(point.found == 0 and point.auroc == 0.5 for point in nothing)
    row = next(row for row in found if row.measure == "weight_of.nothing")
    assert math.isinf(row.grade) and math.isinf(row.high)


def test_a_measure_that_is_entered_is_asked_about_every_graft(run):
    class Mine(WeightOf):
        name = "mine"

    grades, found = run({"weight_of": WeightOf, "mine": Mine}, entered=["mine"])
    assert {row.measure for row in found} > {"mine"} and {row.graft for row in grades} == {"marked"}
    with pytest.raises(UserError, match="no graft names other"):
        run({"other": Mine})


def test_a_graft_that_is_not_verified_is_not_asked_about(run):
    class Everywhere(Marked):
        def shown(self, network, before, site, heads):
            return 1.0

    assert run(graft=Everywhere) == ([], [])


def test_networks_are_resampled_not_grafts():
    """One network finds all of its grafts at once and the other none: two networks say little, however many grafts."""

    trials = [
        module.Trial(
            network, "marked", [0.0] * 6, [{"m": module.Told(float(network == 0), True)}] * 6
        )
        for network in (0, 1)
        for _ in range(50)
    ]
    found_TG = torch.tensor([trial.scores[0]["m"].auroc for trial in trials], dtype=torch.float64)[
        :, None
    ]
    shares = module._resampled(found_TG, trials)[:, 0]
    assert {0.0, 0.5, 1.0} == set(shares.tolist())


def test_shares_that_fall_are_pooled():
    """By hand: neighbours that fall are given their mean."""
    assert half_reached(torch.tensor([0.6, 0.7])) == 0
    assert half_reached(torch.tensor([0.0, 1.0, 0.0, 0.5])) == 1  # 1 and 0 are pooled
    assert half_reached(torch.tensor([0.0, 0.25, 0.0, 0.875, 0.625])) == pytest.approx(
        2 + 0.375 / 0.625
    )


def test_a_half_that_is_pooled_from_other_shares_is_a_half():
    """7, 6 and 2 of 10 are one half in the mean, and a rounding error less in binary numbers."""
    assert sum([0.7, 0.6, 0.2]) / 3 < 0.5
    shares = torch.tensor([0.0, 0.7, 0.6, 0.2, 1.0, 1.0], dtype=torch.float64)
    assert half_reached(shares) == pytest.approx(1, abs=1e-9)
    shares[1] -= 1e-6
    assert half_reached(shares) == pytest.approx(
        3, abs=1e-5
    )  # less than one half by more than rounding


def test_the_command_refuses_before_the_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        "sys.argv", ["headbench", "--out", str(tmp_path / "out"), "--measures", "rarity"]
    )
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert "no graft names rarity" in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_writes_tables_and_the_figure_of_grafts(monkeypatch, capsys, tmp_path, run):
    run()  # networks, grafts and what they are told, of this file
    monkeypatch.setattr(
        "mhprobe.lab.headbench.bench.entries", lambda names, entered=(): {"weight_of": WeightOf}
    )
    given = ["--heads", "grafts", "--seeds", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["headbench", *given])
    main()
    with (tmp_path / "tables" / "headbench_sensitivity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["measure"] for row in rows} >= {"weight_of", "weight_of.turned"} and {
        row["networks"] for row in rows
    } == {"2"}
    assert (tmp_path / "tables" / "headbench_grades.csv").stat().st_size
    assert (tmp_path / "figures" / "headbench_sensitivity.png").stat().st_size
    assert "network 1: 100.0 % right" in capsys.readouterr().out
