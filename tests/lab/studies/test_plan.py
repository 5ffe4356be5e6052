"""A study says first what it will do and how long, and draws each figure as soon as it can."""

from __future__ import annotations

import functools
import json
import logging
import re
from types import SimpleNamespace

import pytest
import torch
from test_papers import settings

import mhprobe
import mhprobe.study
from mhprobe.errors import UserError
from mhprobe.framework.questions import plan
from mhprobe.heads import Ablation
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.random import Random
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.measures.activation_norm import ActivationNorm
from mhprobe.measures.cka import CKA
from mhprobe.measures.entropy import Entropy
from mhprobe.recording.measuring import record_bytes
from models import tiny_vit


def looks(*needs):
    return SimpleNamespace(needs=frozenset(needs), select_needs=None)


MEASURES = {
    "svcca": looks("z"),
    "js": looks("attn"),
    "drop": looks(Ablation(((0,),))),
    "alone": looks(Ablation(((1,),))),
}


def test_every_figure_is_drawn_in_the_first_step_after_which_it_can_be():
    curved, slow, slower, own, quick, unfit = asked = [
        plan.Question("curved", dict, ("svcca",), ("head_max",)),
        plan.Question("slow", dict, ("drop", "svcca")),
        plan.Question("slower", dict, ("alone", "drop")),
        plan.Question("own", dict),
        plan.Question("quick", dict, ("js",)),
        plan.Question("unfit", dict, ("no such",)),
    ]
    steps = plan.planned_steps(asked, {**MEASURES, "no such": UserError("it is none")})
    assert steps == [
        plan.PlannedStep(("svcca", "js"), (quick, unfit)),
        plan.PlannedStep((), (own,)),
        plan.PlannedStep(("drop",), (slow,)),
        plan.PlannedStep(("alone",), (slower,)),
        plan.PlannedStep((), (curved,)),
    ]
    assert steps[-1].curves == ("head_max",)
    slow = plan.Question("slow", dict, ("drop",))
    assert plan.planned_steps([slow, own], MEASURES) == [
        plan.PlannedStep((), (own,)),
        plan.PlannedStep(("drop",), (slow,)),
    ]
    assert plan.planned_steps([], MEASURES) == []


def test_an_estimate_looks_at_few_images():
    assert [plan.sample(images, 256) for images in (5, 40, 1_000, 10_000, 50_000)] == [
        5,
        8,
        20,
        200,
        256,
    ]


def test_a_greedy_curve_asks_for_every_unit_at_every_step_and_a_random_one_for_its_repeats():
    layout = mhprobe.attach(tiny_vit(depth=2)).layout
    heads = layout.num_heads
    greedy, chance = CurveSpec("a", "head", KeepBest()), CurveSpec("b", "head", Random(repeats=3))
    assert plan.forwards(greedy, layout, None, 7, 100) == heads * (heads + 1) // 2 * 7 + (
        heads + 1
    ) * (7 + 100)
    assert plan.forwards(greedy, layout, 1, 7, 100) == heads * 7 + 2 * 107
    assert plan.forwards(chance, layout, None, 7, 100) == 3 * (heads + 1) * 100


def _waits(clock, seconds: float) -> None:
    clock[0] += seconds


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """It stands still but for ``_waits``."""
    now = [0.0]
    monkeypatch.setattr(plan.time, "perf_counter", lambda: now[0])
    return now


def shown(material, measure):
    return functools.partial(plan._shown, model=material.model, measures={"it": measure})


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
@pytest.mark.parametrize("make", [ActivationNorm, AblationDelta])
def test_the_time_of_measures_is_that_of_looking_at_all_images(make, material, clock, monkeypatch):
    """A second an image: of 21 test images it is shown 8."""
    measure = make(material.layout)

    def update(batch, looked=measure.update):
        _waits(clock, len(batch.valid))
        looked(batch)

    monkeypatch.setattr(measure, "update", update)
    assert plan._cost(material, shown(material, measure)) == "about 21 s"
    assert clock == [8]
    assert measure.images == 0 or int(torch.as_tensor(measure.images)) == 0  # it has forgotten them


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_a_curve_is_timed_by_forward_passes_of_the_second_walk(material, clock, monkeypatch):
    seconds = iter((100, 4))  # the first walk starts everything
    monkeypatch.setattr(
        type(material.model), "forward", lambda self, images: _waits(clock, next(seconds))
    )
    assert plan.forward_seconds(material) == pytest.approx(4 / 8)


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_what_no_measure_can_look_at_has_no_estimate(material):
    class Refuses(Entropy):
        def update(self, batch):
            raise UserError("no")

    assert plan._cost(material, shown(material, Refuses(material.layout))) == "not estimated"


def test_the_cost_of_measures_is_said_of_both_networks(monkeypatch):
    network, twin = object(), object()
    costs = {network: "about 2 min", twin: "about 60 s"}
    ours = SimpleNamespace(missing=lambda names: {"it": names}, model=network, name="")
    control = SimpleNamespace(missing=lambda names: {"it": names}, model=twin, name="untrained")
    material = SimpleNamespace(trained=ours, untrained_network=control)
    monkeypatch.setattr(plan, "_cost", lambda material, ask: costs[ask.keywords["model"]])
    rooms = {network: ", 0.4 GiB beside the network", twin: ""}
    monkeypatch.setattr(plan, "_room", lambda material, model, measures: rooms[model])
    words = (
        "about 2 min, 0.4 GiB beside the network and about 60 s for the freshly initialised network"
    )
    assert plan._cost_of_measures(material, ["it"]) == words
    ours.missing = control.missing = lambda names: {}
    assert plan._cost_of_measures(material, ["it"]) == "measured before"


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_memory_is_said_before_it_is_taken_if_it_is_much(material, monkeypatch):
    measures = {"entropy": Entropy(material.layout)}
    assert plan._room(material, material.model, measures) == ""
    monkeypatch.setattr("mhprobe.recording.measuring.WORTH_SAYING", 1)
    held = record_bytes(material.model, measures.values(), material.data.eval_batch_size)
    assert held > 0 and plan._room(material, material.model, measures).endswith(
        "beside the network"
    )
    one = record_bytes(material.model, measures.values(), 1)
    monkeypatch.setattr("mhprobe.recording.measuring.MOST_BY_ROWS", 8 * one)
    in_pieces = record_bytes(material.model, measures.values(), material.data.eval_batch_size)
    assert one < in_pieces <= 8 * one < held, "a batch is recorded in pieces"
    measures["cka"] = CKA(material.layout)
    assert record_bytes(material.model, measures.values(), 1) > one + measures["cka"].bytes_kept / 2


def looks_at_all(material, clock):
    for batch in material.walk()():
        _waits(clock, len(batch.images))
    _waits(clock, 3)  # draws


def looks_at_two_splits_side_by_side(material, clock):
    for batch, _ in zip(material.walk(20)(), material.walk(20, "val")(), strict=True):
        _waits(clock, len(batch.images))


def looks_at_one_batch(material, clock):
    _waits(clock, len(material.data.some("train", 10).images))


def looks_at_single_images(material, clock):
    _waits(clock, 4 * len(material.data.chosen("test", [3, 1, 2])))


def looks_at_none(material, clock):
    _waits(clock, 5)


def refuses_at_the_end(material, clock):
    looks_at_all(material, clock)
    raise UserError("all are right")


def counts_its_images(material, clock):
    looks_at_all(material, clock)
    raise RuntimeError("8 of 21 images were seen")


def refuses_at_once(material, clock):
    raise UserError("no")


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
@pytest.mark.parametrize(
    ("panel", "words", "least"),
    [
        (looks_at_all, "about 24 s", 11),
        (looks_at_two_splits_side_by_side, "about 20 s", 8),
        (looks_at_one_batch, "about 10 s", 8),
        (looks_at_single_images, "about 12 s", 4),
        (looks_at_none, "not estimated", 5),
        (refuses_at_the_end, "at least 24 s", 11),
        (counts_its_images, "at least 24 s", 11),
        (refuses_at_once, "not estimated", 0),
    ],
)
def test_a_figure_that_looks_at_images_itself_is_timed_on_few_of_them(
    material, panel, words, least, clock
):
    """A second an image: of 21 test images it is shown 8."""
    assert plan._cost(material, lambda few: panel(few, clock) or {}) == words
    assert clock == [least]


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_what_an_estimate_learns_of_few_images_is_not_taken_for_what_all_of_them_say(
    material, tmp_path
):
    """A question that measures by itself is shown 8 images; its columns and files of them are gone afterwards."""
    material.measures, material.store = {"entropy": Entropy(material.layout)}, tmp_path / "kept"
    images = []

    def ask(shown):
        images.append(int(shown.columns("entropy")["images"]))
        shown.kept("other", lambda: {"images": torch.tensor(8)})

    plan._cost(material, ask)
    assert (
        images == [8] and not material.measurements.trained.columns and not material.store.exists()
    )
    material.store = None
    assert int(material.columns("entropy")["images"]) == 21


def test_every_figure_that_looks_at_images_itself_has_a_time_of_its_own_in_the_plan(
    tmp_path, caplog
):
    kinds = "~paper.figures.judged.panel.kinds.gradient_rollout"
    cfg = settings("vit", "rollout", tmp_path, "figures=[judged,segmentation]", kinds)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(UserError, match="no object masks"),
    ):  # of digits
        mhprobe.study.run(cfg, tmp_path / "run")
    lines = [record.getMessage() for record in caplog.records]
    (line,) = (line for line in lines if "figures look at themselves" in line)
    assert re.search(r": judged about \d+ (s|min), segmentation not estimated; then draw", line)
    table = (tmp_path / "run" / "tables" / "judged_areas.csv").read_text()
    assert all(
        row.endswith(",40") for row in table.splitlines()[1:]
    )  # the figure itself is of all images


def test_figures_are_on_disk_before_what_they_do_not_need_is_measured(
    tmp_path, caplog, monkeypatch
):
    folder, seen = tmp_path / "run", {}

    def finished():
        file = folder / "finished.json"
        return set(json.loads(file.read_text())) if file.exists() else set()

    from mhprobe.framework.questions.masking import Masking

    update, curve = AblationDelta.update, Masking.curve

    def measured(self, batch):
        seen["measures that mask"] = finished()
        return update(self, batch)

    def masked(self, *args):
        seen.setdefault("curves", finished())
        return curve(self, *args)

    monkeypatch.setattr(Masking, "curve", masked)
    monkeypatch.setattr(AblationDelta, "update", measured)
    wanted = "figures=[2,table_1,8,covering_map,single_heads]"
    with caplog.at_level(logging.INFO):
        mhprobe.study.run(settings("vit", "byun_kim", tmp_path, wanted), folder)
    assert seen == {
        "measures that mask": {"figure_2", "table_1", "covering_map"},
        "curves": {"figure_2", "table_1", "covering_map", "single_heads"},
    }
    lines = [record.getMessage() for record in caplog.records]
    first = next(
        index
        for index, line in enumerate(lines)
        if line.startswith("plan, with times estimated from 8 of 40")
    )
    steps = lines[first + 1 : first + 5]
    assert re.fullmatch(r"  1\. measure svcca: about \d+ s; then draw figure_2, table_1", steps[0])
    own = r"  2. images that figures look at themselves: covering_map about \d+ (s|min); then draw covering_map"
    assert re.fullmatch(own, steps[1])
    assert re.fullmatch(
        r"  3\. measure ablation_delta: about \d+ s; then draw single_heads", steps[2]
    )
    assert re.match(
        r"  4\. masking curves head_max, .*: about \d+ s at most, .*; then draw figure_8", steps[3]
    )
    assert all(
        lines.index(f"{key}: done") > first for key in ("figure_2", "single_heads", "figure_8")
    )

    caplog.clear()
    with caplog.at_level(logging.INFO):
        mhprobe.study.run(settings("vit", "byun_kim", tmp_path, "figures=[2,3]"), folder)
    assert "  1. measure svcca: measured before; then draw figure_3" in [
        r.getMessage() for r in caplog.records
    ]
