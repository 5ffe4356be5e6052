"""As many heads go as can be promised on images that were set aside, and none where nothing can be."""

from __future__ import annotations

import json

import pytest
import torch

import mhprobe
import mhprobe.prune
import runs
from mhprobe.masking.base import Evaluate, Order, Scores
from mhprobe.stats.promise import Guarantee, kept_promise
from mhprobe.surgery.given import Choice
from mhprobe.surgery.promised import Promised, promise_of
from pruned import network

IMAGES = 600


class Calibration(Evaluate):
    """Each head costs as many images as its number says; images are lost for good."""

    images = IMAGES

    def __init__(self, lost):
        self.lost = torch.tensor(lost)

    def __call__(self, masks, images=None):
        right = torch.arange(IMAGES)[None] >= (masks.int() * self.lost).sum(1, keepdim=True)
        return Scores(right, (~right).double())


class InOrder(Order):
    """The units as they come."""

    def paths(self, units, layout, evaluate, steps=None):
        return [units.path(list(range(units.steps(steps))))]


def promised(lost=(0, 0, 0, 60, 60, 60), points=1.0, **options):
    model = network("vit")
    mhprobe.attach(model)
    source = Promised(InOrder(), Guarantee(points), **options)
    return source.choose(model, Calibration(lost), Calibration(lost))


def test_the_longest_prefix_that_keeps_the_promise_goes():
    choice, promise = promised()
    assert choice.mask.tolist() == [True] * 3 + [False] * 3
    assert (promise.steps, promise.heads, promise.images) == (3, 3, IMAGES)
    right = Calibration((0, 0, 0, 60, 60, 60))(promise.curve.traces[0].mask).right
    assert promise.steps == kept_promise(right[0], right[1:])
    assert promise.curve.chosen_on == "train" and not promise.curve.optimistic
    assert len(promise.curve.step) == 6  # the path ends before the last head goes


def test_no_more_than_asked_for_goes():
    assert promised(remove=2)[1].steps == 2
    choice, promise = promised(units="layer")
    assert (promise.steps, promise.heads) == (1, 3) and choice.mask[:3].all() and not choice.mask[3:].any()
    with pytest.raises(mhprobe.UserError, match=r"takes 3 heads, got 2.*units=head"):
        promised(units="layer", remove=2)


def test_where_the_first_step_costs_too_much_nothing_goes():
    choice, promise = promised(lost=(60, 0, 0, 0, 0, 0))
    assert not choice.mask.any() and promise.steps == promise.heads == 0


def test_too_few_images_are_refused_with_how_many_it_takes():
    assert Guarantee(1.0).images_needed == 332 and Guarantee(0.1).images_needed > 3000
    with pytest.raises(mhprobe.UserError, match=r"600 calibration images can never .* 3\d+ are the least"):
        promised(points=0.1)


def config(folder, trained, *overrides):
    own = ("data.limit_val=null", "data.val_fraction=0.3", "data.calibration_fraction=0.5", "prune=order")
    return runs.config("prune", folder, f"weights={trained.folder / 'model.safetensors'}", *own, *overrides)


@pytest.mark.slow
def test_the_command_promises_and_says_so(trained, tmp_path, capsys):
    folder = tmp_path / "run"
    mhprobe.prune.run(config(tmp_path, trained, "prune.guarantee.points=40"), folder)
    made = json.loads((folder / "pruned.json").read_text())["made"]
    asked = made["guarantee"]
    assert (asked["points"], asked["confidence"]) == (40, 0.95) and 0 < asked["heads"] < 6
    assert made["set_aside_in_training"] is False
    rows = runs.rows(folder / "tables" / "masking_curves.csv")
    assert sum(int(row["promised"]) for row in rows) == asked["steps"] + 1
    assert {(row["split"], row["chosen_on"]) for row in rows} == {("calibration", "train")}
    last = [row for row in rows if row["promised"] == "1"][-1]
    assert int(last["heads_masked"]) == asked["heads"]
    kept = runs.rows(folder / "tables" / "kept_heads.csv")
    assert last["masked"].split() == [row["head"] for row in kept if row["kept"] == "0"]
    assert (folder / "figures" / "masking_curves.png").stat().st_size
    said = " ".join(capsys.readouterr().out.split())
    assert f"{asked['heads']} of 6 heads can go with the promise, of 95 % confidence" in said
    assert "do not say that their training set these images aside" in said
    assert "can go with the promise, of 95 % confidence, that new images lose at most 40 points" in (
        folder / "report.html"
    ).read_text().replace("\xa0", " ")


@pytest.mark.slow
def test_where_nothing_can_be_promised_there_is_a_curve_and_no_network(trained, tmp_path):
    folder = tmp_path / "run"
    cfg = config(tmp_path, trained, "prune.guarantee.points=2", "prune.units=layer", "prune/order=hurt_most")
    with pytest.raises(mhprobe.UserError, match="at no step of the path it can be promised") as error:
        mhprobe.prune.run(cfg, folder)
    assert "\n" not in str(error.value)
    assert not list(folder.glob("pruned.*")) and (folder / "tables" / "masking_curves.csv").is_file()
    assert "No head can go with the promise" in (folder / "report.html").read_text()


def test_heads_that_are_given_go_all_or_none():
    def asked(heads):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[heads] = True
        return promise_of(Choice(mask), Calibration((0, 0, 0, 60, 60, 60)), Guarantee(1.0))

    kept, broken = asked([0, 2]), asked([0, 3])
    assert (kept.steps, kept.heads, kept.images) == (1, 2, IMAGES)
    assert (broken.steps, broken.heads) == (0, 0)  # not even head 0, which costs nothing
    assert kept.curve.chosen_on is None


@pytest.mark.slow
def test_the_command_promises_heads_that_are_given_or_removes_none(trained, tmp_path):
    where = ("data.limit_val=null", "data.val_fraction=0.3", "data.calibration_fraction=0.5", "prune=given")
    asked = (f"weights={trained.folder / 'model.safetensors'}", *where, "prune.heads=[1,4]")
    mhprobe.prune.run(runs.config("prune", tmp_path, *asked, "prune.guarantee.points=60"), tmp_path / "kept")
    made = json.loads((tmp_path / "kept" / "pruned.json").read_text())["made"]
    assert made["guarantee"]["heads"] == 2 and made["set_aside_in_training"] is False
    assert [row["promised"] for row in runs.rows(tmp_path / "kept" / "tables" / "masking_curves.csv")] == ["1", "1"]
    every = (*asked[:-1], "prune.heads=[0,1,2,3,4]", "prune.guarantee.points=2")
    with pytest.raises(mhprobe.UserError, match="without these heads it cannot be promised"):
        mhprobe.prune.run(runs.config("prune", tmp_path, *every), tmp_path / "broken")
    assert not list((tmp_path / "broken").glob("pruned.*"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("prune=given", "prune.heads=[1]", "data.calibration_fraction=0"), "expected data.calibration_fraction"),
        (("prune=given", "prune.heads=[1]", "prune.rounds=2"), "prune.rounds: a guarantee"),
        (("prune=given", "prune.heads=[1]", "prune.guarantee.points=0.01"), "can never show"),
        (("data.calibration_fraction=0",), "expected data.calibration_fraction above 0"),
        (("prune.target={heads:3}",), "prune.target: a guarantee is of the heads that go in one round"),
        (("prune.rounds=2", "prune.remove=4"), "prune.rounds: a guarantee"),
        (("prune.tune_epochs=1",), "prune.tune_epochs: a guarantee"),
        (("prune.guarantee.points=0.01",), "can never show"),
    ],
)
def test_what_cannot_be_promised_is_refused_before_the_work(tmp_path, overrides, words):
    asked = ("weights=random", "data.calibration_fraction=0.5", "prune=order", "prune.guarantee.points=40")
    cfg = runs.config("prune", tmp_path, *asked, *overrides)
    with pytest.raises(mhprobe.UserError, match=words) as error:
        mhprobe.prune.run(cfg, tmp_path / "run")
    assert "\n" not in str(error.value) and not list(tmp_path.glob("run/pruned.*"))
