"""A study says first what it will do and how long, and draws each figure as soon as it can."""

from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace

import pytest
import torch
from test_papers import settings

import mhprobe
import mhprobe.study
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Ablation
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.random import Random
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.measures.entropy import Entropy
from mhprobe.questions import plan
from models import images_for, labels_for, tiny_vit


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
    steps = plan.steps(asked, {**MEASURES, "no such": UserError("it is none")})
    assert steps == [
        plan.Step(("svcca", "js"), (quick, unfit)),
        plan.Step((), (own,)),
        plan.Step(("drop",), (slow,)),
        plan.Step(("alone",), (slower,)),
        plan.Step((), (curved,)),
    ]
    assert steps[-1].curves == ("head_max",)
    slow = plan.Question("slow", dict, ("drop",))
    assert plan.steps([slow, own], MEASURES) == [plan.Step((), (own,)), plan.Step(("drop",), (slow,))]
    assert plan.steps([], MEASURES) == []


def test_an_estimate_looks_at_few_images():
    assert [plan.sample(images, 256) for images in (5, 40, 1_000, 10_000, 50_000)] == [5, 8, 20, 200, 256]


def test_a_greedy_curve_asks_for_every_unit_at_every_step_and_a_random_one_for_its_repeats():
    layout = mhprobe.attach(tiny_vit(depth=2)).layout
    heads = layout.num_heads
    greedy, chance = CurveSpec("a", "head", KeepBest()), CurveSpec("b", "head", Random(repeats=3))
    assert plan.forwards(greedy, layout, None, 7, 100) == heads * (heads + 1) // 2 * 7 + (heads + 1) * (7 + 100)
    assert plan.forwards(greedy, layout, 1, 7, 100) == heads * 7 + 2 * 107
    assert plan.forwards(chance, layout, None, 7, 100) == 3 * (heads + 1) * 100


@pytest.mark.parametrize("make", [Entropy, AblationDelta])
def test_the_time_of_an_image_is_the_time_of_looking_at_it(make, monkeypatch):
    """By a clock that only a walk, 0.05 s an image, and the measure, 0.02 s, set forward."""
    model = tiny_vit()
    measure = make(mhprobe.attach(model).layout)
    images, labels = images_for(model, 3), labels_for(3)
    passed = [0.0]
    monkeypatch.setattr(plan.time, "perf_counter", lambda: passed[0])

    def walk():
        for index in range(3):
            passed[0] += 0.05
            valid = torch.ones(1, dtype=torch.bool)
            yield Batch(images[index : index + 1], labels[index : index + 1], torch.tensor([index]), valid)

    def update(*batch, looked=measure.update):
        passed[0] += 0.02
        looked(*batch)

    assert plan.seconds_per_image(model, {"it": measure}, walk, walk) == pytest.approx(0.05)
    monkeypatch.setattr(measure, "update", update)
    assert plan.seconds_per_image(model, {"it": measure}, walk, walk) == pytest.approx(0.07)
    assert measure.images == 0 or int(torch.as_tensor(measure.images)) == 0  # it has forgotten them


def test_what_no_measure_can_look_at_has_no_estimate():
    model = tiny_vit()
    layout = mhprobe.attach(model).layout

    class Refuses(Entropy):
        def update(self, batch):
            raise UserError("no")

    one = Batch(images_for(model, 1), labels_for(1), torch.tensor([0]), torch.ones(1, dtype=torch.bool))
    assert plan.seconds_per_image(model, {"it": Refuses(layout)}, lambda: [one], lambda: [one]) is None


def test_the_cost_of_measures_is_said_of_both_networks(monkeypatch):
    network, twin, sizes = object(), object(), {"test": 100}
    material = SimpleNamespace(missing=lambda names, control: {"it": names}, model=network, twin=lambda: twin,
                               data=SimpleNamespace(sizes=sizes))  # fmt: skip
    for seconds, words in (
        ({network: 1.2, twin: 0.6}, "about 2 min and about 60 s for the freshly initialised network"),
        ({network: None, twin: None}, "not estimated"),
    ):
        monkeypatch.setattr(plan, "seconds_per_image", lambda model, *_, seconds=seconds: seconds[model])
        assert plan._cost_of_measures(material, ["it"], {"test": None, "val": None}) == words


def test_figures_are_on_disk_before_what_they_do_not_need_is_measured(tmp_path, caplog, monkeypatch):
    folder, seen = tmp_path / "run", {}

    def finished():
        file = folder / "finished.json"
        return set(json.loads(file.read_text())) if file.exists() else set()

    from mhprobe.questions.masking import Masking

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
        mhprobe.study.run(settings("vit", "byun_kim", tmp_path, wanted, "paper.masking.join=null"), folder)
    assert seen == {
        "measures that mask": {"figure_2", "table_1", "covering_map"},
        "curves": {"figure_2", "table_1", "covering_map", "single_heads"},
    }
    lines = [record.getMessage() for record in caplog.records]
    first = next(
        index for index, line in enumerate(lines) if line.startswith("plan, with times estimated from 8 of 40")
    )
    steps = lines[first + 1 : first + 5]
    assert re.fullmatch(r"  1\. measure svcca: about \d+ s; then draw figure_2, table_1", steps[0])
    assert steps[1] == "  2. images that figures look at themselves: not estimated; then draw covering_map"
    assert re.fullmatch(r"  3\. measure ablation_delta: about \d+ s; then draw single_heads", steps[2])
    assert re.match(r"  4\. masking curves head_max, .*: about \d+ s at most, .*; then draw figure_8", steps[3])
    assert all(lines.index(f"{key}: done") > first for key in ("figure_2", "single_heads", "figure_8"))

    caplog.clear()
    with caplog.at_level(logging.INFO):
        mhprobe.study.run(settings("vit", "byun_kim", tmp_path, "figures=[2,3]"), folder)
    assert "  1. measure svcca: measured before; then draw figure_3" in [r.getMessage() for r in caplog.records]
