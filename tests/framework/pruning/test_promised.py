"""As many heads go as can be promised on images that were set aside, and none where nothing can be."""

from __future__ import annotations

import json

import pytest
import torch

import mhprobe
import mhprobe.prune
import runs
from mhprobe.backbones import layout_of
from mhprobe.framework.run import image_data, networks
from mhprobe.heads import KINDS
from mhprobe.masking.base import Evaluate, Order, Scores
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.knapsack import Knapsack
from mhprobe.masking.parts.curve import CurveSpec, Splits, curve_on_splits
from mhprobe.pruning.given import Choice
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.promised import promise_of
from mhprobe.report import tables
from mhprobe.report.report import Report, Result, Sample
from mhprobe.report.runs.run import measured_on
from mhprobe.stats.promise import Guarantee, kept_promise
from mhprobe.surgery.costs import costs
from models import images_for
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
    source = OnPath(InOrder(), guarantee=Guarantee(points), **options)
    return source.promise(
        model, Calibration(lost), Calibration(lost), lambda: pytest.fail("no batch is needed")
    )


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
    assert (
        (promise.steps, promise.heads) == (1, 3)
        and choice.mask[:3].all()
        and not choice.mask[3:].any()
    )
    with pytest.raises(
        mhprobe.UserError, match=r"from 0 to 3 removed, got 2.*Ask for 3, or take units=head"
    ):
        promised(units="layer", remove=2)


class Scored(Calibration):
    """Units of low score cost nothing, the others 60 images each."""

    def __init__(self, score_A):
        super().__init__((60 * (score_A > 0.6)).int().tolist())
        self.score_A = score_A

    def measure(self, make, mask, column="value"):
        return self.score_A


@pytest.mark.parametrize("target", [None, {"flops": 0.7}, {"memory": 0.8}])
def test_heads_and_neurons_go_as_far_as_can_be_promised(target):
    model = network("vit")
    layout, image = mhprobe.attach(model, units=KINDS).layout, images_for(model, 1)
    images = Scored(torch.rand(layout.num_heads, generator=torch.Generator().manual_seed(0)))
    source = OnPath(Knapsack(measure=lambda layout: None), target=target, guarantee=Guarantee(1.0))
    source.check(model, rounds=1)
    choice, promise = source.promise(model, images, images, lambda: image)
    masks = promise.curve.traces[0].mask
    assert promise.heads + promise.neurons == choice.mask.sum() and promise.heads > 0
    assert 2 < len(masks) <= 33 and torch.equal(masks.int().cummax(0).values > 0, masks)
    right = images(masks).right
    assert promise.steps == kept_promise(right[0], right[1:]) > 0
    if target is None:  # all the way, but for the last unit
        assert masks[-1].sum() > 0.9 * layout.num_heads and promise.steps < len(masks) - 1
        assert promise.neurons > 0 and not (masks[promise.steps] & (images.score_A > 0.6)).any()
    else:
        ((unit, share),) = target.items()
        left = costs(model, layout, image, target)[unit](masks)
        assert left[-1] <= share < left[-2]
    with pytest.raises(mhprobe.UserError, match="it counts heads; for heads and neurons"):
        OnPath(source.order, remove=3, guarantee=Guarantee(1.0)).check(model, rounds=1)
    with pytest.raises(mhprobe.UserError, match="order: expected gates on heads alone"):
        OnPath(InOrder(), guarantee=Guarantee(1.0)).check(model, rounds=1)


@pytest.mark.slow
def test_the_command_promises_a_mix(trained, tmp_path):
    folder, mix = (
        tmp_path / "run",
        ("gates.units=[head,neuron]", "prune/order=knapsack", "prune.target={flops:0.6}"),
    )
    mhprobe.prune.run(config(tmp_path, trained, "prune.guarantee.points=40", *mix), folder)
    asked = json.loads((folder / "pruned.json").read_text())["made"]["guarantee"]
    last = runs.rows(folder / "tables" / "pruning.csv")
    assert int(last[0]["neurons"]) - int(last[-1]["neurons"]) == asked["neurons"] > 0
    assert int(last[0]["heads"]) - int(last[-1]["heads"]) == asked["heads"]
    rows = runs.rows(folder / "tables" / "masking_curves.csv")
    assert sum(int(row["promised"]) for row in rows) == asked["steps"] + 1
    assert int(rows[asked["steps"]]["heads_masked"]) == asked["heads"] + asked["neurons"]
    going = f"{asked['heads']} of 6 heads and {asked['neurons']} neurons can go with the promise, of 95 % confidence"
    page = (folder / "report.html").read_text().replace("\xa0", " ")
    assert going in page
    counts = (int(last[row][units]) for units in ("heads", "neurons") for row in (-1, 0))
    assert (
        "{} of {} heads and {} of {} neurons are those that pruning keeps".format(*counts) in page
    )
    assert "Measures at a glance" not in page  # kept or not: no measure, which had a highest head
    assert json.loads((folder / "metrics.json").read_text())["prune/neurons"] == int(
        last[-1]["neurons"]
    )


@pytest.mark.slow
def test_a_promise_of_neurons_alone_names_no_heads(trained, tmp_path):
    folder, mix = (
        tmp_path / "run",
        ("gates.units=[neuron]", "prune/order=knapsack", "prune.target={flops:0.8}"),
    )
    mhprobe.prune.run(config(tmp_path, trained, "prune.guarantee.points=40", *mix), folder)
    asked = json.loads((folder / "pruned.json").read_text())["made"]["guarantee"]
    assert asked["neurons"] > 0 and "heads" not in asked
    assert "heads" not in runs.rows(folder / "tables" / "promise.csv")[0]
    assert json.loads((folder / "results.json").read_text())["results"]["promise"][
        "label"
    ].startswith("neurons that")
    page = (folder / "report.html").read_text().replace("\xa0", " ")
    assert f"{asked['neurons']} neurons can go with the promise, of 95 % confidence" in page
    assert "of 0 heads" not in page


def test_where_the_first_step_costs_too_much_nothing_goes():
    choice, promise = promised(lost=(60, 0, 0, 0, 0, 0))
    assert not choice.mask.any() and promise.steps == promise.heads == 0


def test_too_few_images_are_refused_with_how_many_it_takes():
    assert Guarantee(1.0).images_needed == 332 and Guarantee(0.1).images_needed > 3000
    with pytest.raises(
        mhprobe.UserError, match=r"600 calibration images are too few .* expected at least 3\d+"
    ):
        promised(points=0.1)


def config(folder, trained, *overrides):
    own = (
        "data.limit_val=null",
        "data.val_fraction=0.3",
        "data.calibration_fraction=0.5",
        "prune=order",
    )
    return runs.config(
        "prune", folder, f"weights={trained.folder / 'model.safetensors'}", *own, *overrides
    )


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
    assert (
        "can go with the promise, of 95 % confidence, that new images lose at most 40 points"
        in (folder / "report.html").read_text().replace("\xa0", " ")
    )


@pytest.mark.slow
def test_where_nothing_can_be_promised_there_is_a_curve_and_no_network(trained, tmp_path):
    folder = tmp_path / "run"
    cfg = config(
        tmp_path, trained, "prune.guarantee.points=2", "prune.units=layer", "prune/order=hurt_most"
    )
    with pytest.raises(
        mhprobe.UserError, match="at no step of the path it can be promised"
    ) as error:
        mhprobe.prune.run(cfg, folder)
    assert "\n" not in str(error.value)
    assert (
        not list(folder.glob("pruned.*")) and (folder / "tables" / "masking_curves.csv").is_file()
    )
    assert "No head can go with the promise" in (folder / "report.html").read_text()


def test_heads_that_are_given_go_all_or_none():
    def asked(heads):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[heads] = True
        return promise_of(
            Choice(mask),
            Calibration((0, 0, 0, 60, 60, 60)),
            Guarantee(1.0),
            layout_of(network("vit")),
        )

    kept, broken = asked([0, 2]), asked([0, 3])
    assert (kept.steps, kept.heads, kept.images) == (1, 2, IMAGES)
    assert (broken.steps, broken.heads) == (0, 0)  # not even head 0, which costs nothing
    assert kept.curve.chosen_on is None


@pytest.mark.slow
def test_the_command_promises_heads_that_are_given_or_removes_none(trained, tmp_path):
    where = (
        "data.limit_val=null",
        "data.val_fraction=0.3",
        "data.calibration_fraction=0.5",
        "prune=given",
    )
    asked = (f"weights={trained.folder / 'model.safetensors'}", *where, "prune.heads=[1,4]")
    mhprobe.prune.run(
        runs.config("prune", tmp_path, *asked, "prune.guarantee.points=60"), tmp_path / "kept"
    )
    made = json.loads((tmp_path / "kept" / "pruned.json").read_text())["made"]
    assert made["guarantee"]["heads"] == 2 and made["set_aside_in_training"] is False
    assert [
        row["promised"] for row in runs.rows(tmp_path / "kept" / "tables" / "masking_curves.csv")
    ] == ["1", "1"]
    page = (tmp_path / "kept" / "report.html").read_text().replace("\xa0", " ")
    assert (
        "2 of 6 heads can go with the promise" in page
        and "it holds if they did not choose the heads" in page
    )
    every = (*asked[:-1], "prune.heads=[0,1,2,3,4]", "prune.guarantee.points=2")
    with pytest.raises(mhprobe.UserError, match="without these heads it cannot be promised"):
        mhprobe.prune.run(runs.config("prune", tmp_path, *every), tmp_path / "broken")
    assert not list((tmp_path / "broken").glob("pruned.*"))
    # all of the list were to go: of fewer nothing is known
    page = (tmp_path / "broken" / "report.html").read_text()
    assert "It cannot be promised that without the heads of the list new images lose" in page
    assert "No head can go" not in page and "chose neither" not in page


def curve_file(path, *, chosen_on, chosen_by):
    row = {"curve": "greedy", "step": 1, "heads_masked": 2, "masked": "1 4", "chosen_on": chosen_on}
    tables.write_csv(path, tables.from_rows([{**row, "chosen_by": chosen_by, "split": "test"}]))
    return f"prune.heads={path}"


@pytest.mark.slow
def test_heads_that_the_calibration_images_chose_are_not_promised(trained, tmp_path):
    """An order chosen on all validation images, of which half are set aside afterwards, broke 27 % of its promises."""
    asked = (
        f"weights={trained.folder / 'model.safetensors'}",
        "data.limit_val=null",
        "data.val_fraction=0.3",
    )
    asked += ("prune=given", "prune.step=1", "prune.guarantee.points=60")
    aside = "data.calibration_fraction=0.5"
    digests = {
        name: image_data.build_images(
            runs.config("prune", tmp_path, *asked, *more, "prune.heads=[1]")
        )
        for name, more in {"before": (), "after": (aside,)}.items()
    }
    for data, split in [("after", "val"), ("before", "train"), ("after", "test")]:
        seen = curve_file(
            tmp_path / f"{data}_{split}.csv",
            chosen_on=split,
            chosen_by=digests[data].images_of(split),
        )
        mhprobe.prune.run(
            runs.config("prune", tmp_path, *asked, aside, seen), tmp_path / f"{data}_{split}"
        )
    for chosen_by in (digests["before"].images_of("val"), ""):
        seen = curve_file(tmp_path / "seen.csv", chosen_on="validation", chosen_by=chosen_by)
        with pytest.raises(
            mhprobe.UserError, match=r"that chose these heads may be among the calibration images"
        ):
            mhprobe.prune.run(
                runs.config("prune", tmp_path, *asked, aside, seen), tmp_path / "refused"
            )
    # nor may the images that decided how far a path was followed decide it again
    again = [
        f"weights={tmp_path / 'after_val' / 'pruned.safetensors'}",
        *asked[1:-2],
        asked[-1],
        aside,
    ]
    with pytest.raises(mhprobe.UserError, match="it can be used once"):
        mhprobe.prune.run(
            runs.config("prune", tmp_path, *again, "prune.heads=[0]"), tmp_path / "again"
        )


@pytest.mark.slow
def test_numbers_on_images_that_chose_the_heads_are_marked(trained, tmp_path, capsys, caplog):
    asked = (f"weights={trained.folder / 'model.safetensors'}", "prune=given", "prune.step=1")
    for on in ("test", "validation"):
        seen = curve_file(tmp_path / f"{on}.csv", chosen_on=on, chosen_by="0" * 16)
        mhprobe.prune.run(runs.config("prune", tmp_path, *asked, seen), tmp_path / on)
        said, too_good = capsys.readouterr().out, on == "test"
        assert ("test images chose the heads" in said) == too_good and (
            "McNemar's p" in said
        ) != too_good
        assert (tmp_path / on / "outcomes.safetensors").exists() != too_good
        last = runs.rows(tmp_path / on / "tables" / "pruning.csv")[-1]
        assert (last["p"] == "nan") == too_good
        assert json.loads((tmp_path / on / "pruned.json").read_text())["chosen_by"] == [
            f"{on}:{'0' * 16}"
        ]
        # the table of the heads that are left, and the smaller network, pass it on
        kept = f"prune.heads={tmp_path / on / 'tables' / 'kept_heads.csv'}"
        mhprobe.prune.run(
            runs.config("prune", tmp_path, *asked[:2], kept), tmp_path / f"{on}_again"
        )
        assert ("test images chose the heads" in capsys.readouterr().out) == too_good
        caplog.clear()
        cfg = runs.config(
            "probe",
            tmp_path,
            f"weights={tmp_path / on / 'pruned.safetensors'}",
            "measure=[entropy]",
        )
        networks.build_classifier(cfg, image_data.build_images(cfg))
        assert ("test images chose the heads of this network" in caplog.text) == too_good


def test_an_order_by_a_table_of_test_images_is_chosen_on_them(tmp_path):
    layout = layout_of(network("vit"))
    for images in ("test", "validation"):
        report = Report(tmp_path / images, layout)
        table = tables.per_head(layout, {"value": torch.arange(6.0)})
        report.add({"gate_importance": Result(table, of=Sample(10, images))})
    measured = {
        name: measured_on(ByScore(table=str(tmp_path / name / "tables" / "gate_importance.csv")))
        for name in ("test", "validation")
    }
    assert measured == {"test": "test", "validation": None}
    assert measured_on(InOrder()) is None
    (tmp_path / "alone.csv").write_text("head,value\n0,1\n")
    assert measured_on(ByScore(table=str(tmp_path / "alone.csv"))) is None
    spec = CurveSpec("by_table", "head", InOrder())
    both = Calibration((0, 0, 0, 60, 60, 60)), Calibration((0, 0, 0, 60, 60, 60))
    for chosen_on, split in [("test", "test"), (None, "validation")]:
        curve = curve_on_splits(layout, spec, *both, splits=Splits(chosen_on=chosen_on))[-1]
        assert (curve.chosen_on, curve.optimistic, curve.traces[0].p is None) == (
            split,
            split == "test",
            split == "test",
        )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("prune=given", "prune.heads=[1]", "data.calibration_fraction=0"),
            "expected data.calibration_fraction",
        ),
        (("prune=given", "prune.heads=[1]", "prune.rounds=2"), "prune.rounds: a guarantee"),
        (
            ("prune=given", "prune.heads=[1]", "prune.guarantee.points=0.01"),
            "are too few to promise",
        ),
        (("data.calibration_fraction=0",), "expected data.calibration_fraction above 0"),
        (("prune.target={heads:3}", "prune.remove=3"), "remove: target says how far to go"),
        (("prune.rounds=2", "prune.remove=4"), "prune.rounds: a guarantee"),
        (("prune.tune_epochs=1",), "prune.tune_epochs: a guarantee"),
        (("prune.guarantee.points=0.01",), "are too few to promise"),
    ],
)
def test_what_cannot_be_promised_is_refused_before_the_work(tmp_path, overrides, words):
    asked = (
        "weights=random",
        "data.calibration_fraction=0.5",
        "prune=order",
        "prune.guarantee.points=40",
    )
    cfg = runs.config("prune", tmp_path, *asked, *overrides)
    with pytest.raises(mhprobe.UserError, match=words) as error:
        mhprobe.prune.run(cfg, tmp_path / "run")
    assert "\n" not in str(error.value) and not list(tmp_path.glob("run/pruned.*"))
