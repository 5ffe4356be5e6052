"""Which heads go: those that somebody gives, or those off at a point of a masking path."""

from __future__ import annotations

import csv

import pytest
import timm
import torch

import mhprobe
import runs
from mhprobe.backbones import layout_of
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.run.sections import options_of_group as names_of
from mhprobe.masking.beam import Beam
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.fisher import Fisher
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec, curve_on_splits, known_orders
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.random import Random
from mhprobe.pruning.given import Given
from mhprobe.pruning.on_path import OnPath, removed_after
from mhprobe.pruning.rounds import prune
from mhprobe.report import tables
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.stats.promise import Guarantee
from mhprobe.surgery.costs import count_flops
from models import images_for, labels_for
from pruned import network, shown


@pytest.fixture
def model():
    return network("vit")  # 2 layers of 3 heads


def evaluate_of(model):
    mhprobe.attach(model)
    batch = Batch(
        images_for(model, 24), labels_for(24), torch.arange(24), torch.ones(24, dtype=torch.bool)
    )
    return Evaluator(model, lambda: [batch], 24)


@pytest.fixture
def evaluate(model):
    return evaluate_of(model)


def off(mask):
    assert mask.dtype == torch.bool
    return torch.nonzero(mask).flatten().tolist()


def given(model, heads, kept=None, **options):
    return off(Given(heads, kept=kept, **options).choose(model).mask)


def written(path, header, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


# given


def test_lists_and_files_name_heads(model, tmp_path):
    (tmp_path / "a.json").write_text("[4, 1]")
    (tmp_path / "a.txt").write_text("4\n1\n")
    for heads in ([4, 1], str(tmp_path / "a.json"), str(tmp_path / "a.txt")):
        assert given(model, heads) == [1, 4]


@pytest.mark.parametrize(
    "heads", [["a"], 3, [], [1.5], [True], [-1], [6], {"a": 1}, [[1]], None, "nowhere.txt"], ids=str
)
def test_what_is_no_list_of_heads_is_refused_in_a_line(model, heads):
    with pytest.raises(mhprobe.UserError, match=r"^heads: ") as error:
        given(model, heads)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize(
    "text",
    ["", " ", "{}", "[1.5]", "[1, ", "[true]", "[]", "one", "-1", "[" * 100_000],
    ids=lambda text: text[:9],
)
def test_a_file_that_lists_no_heads_is_refused_in_a_line(model, tmp_path, text):
    for name in ("b.json", "b.txt"):
        (tmp_path / name).write_text(text)
        with pytest.raises(mhprobe.UserError, match=r"^heads: .*b\.") as error:
            given(model, str(tmp_path / name))
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


CURVE = (
    ("curve", "split", "step", "heads_masked", "masked", "seed"),
    ("best", "test", 0, 0, "", ""),
    ("best", "test", 1, 2, "0 3", ""),
    ("best", "test", 2, 4, "0 1 3 4", ""),
    ("random", "test", 1, 2, "1 2", "7"),
    ("random", "test", 1, 2, "", "mean"),
)


def test_a_point_of_a_masking_curve_names_heads(model, tmp_path):
    table = written(tmp_path / "curves.csv", *CURVE)
    assert given(model, table, curve="best", step=2) == [0, 1, 3, 4]
    assert given(model, table, curve="best", remove=2) == [0, 3]
    assert given(model, table, curve="random", remove=2) == [1, 2]  # not the mean's row
    assert given(model, written(tmp_path / "one.csv", *CURVE[:4]), step=1) == [0, 3]
    for options, words in [
        ({"curve": "best", "remove": 3}, "no point with 3; the nearest is 2"),
        ({"curve": "best", "step": 9}, "no point with 9; the nearest is 2"),
        ({"curve": "best", "step": 0}, "names no head"),
        ({"curve": "best"}, "step .* or remove"),
        ({"curve": "best", "step": 1, "remove": 2}, "step .* or remove"),
        ({"step": 1}, "best, random, got None"),
        ({"curve": "worst", "step": 1}, "best, random, got worst"),
    ]:
        with pytest.raises(mhprobe.UserError, match=words):
            given(model, table, **options)
    for row, words in [
        (("b", "test", "one", 2, "0 3", ""), "column step"),
        (("b", "t", 1, 2, "0 x", ""), "masked.*'x'"),
        (("b", "t", 1, 3, "0 3", ""), "masked names 2 heads at this point, heads_masked says '3'"),
    ]:
        with pytest.raises(mhprobe.UserError, match=words):
            given(model, written(tmp_path / "bad.csv", CURVE[0], row), step=1)


def test_a_curve_says_whether_it_was_rescaled(model, tmp_path):
    for rescale, expected in [("0", False), ("1", True), ("True", True), ("False", False)]:
        rows = [(*CURVE[0], "rescale"), *((*row, rescale) for row in CURVE[1:4])]
        choice = Given(written(tmp_path / "c.csv", *rows), step=1).choose(model)
        assert choice.rescale is expected and off(choice.mask) == [0, 3]


def test_a_curve_of_another_model_with_as_many_heads_is_refused(model, tmp_path):
    images, labels = images_for(model, 6), labels_for(6)
    deeper = timm.create_model(
        "vit_tiny_patch16_224", embed_dim=12, depth=3, num_heads=2, num_classes=2
    )
    own, other = layout_of(model), layout_of(deeper)
    assert own.num_heads == other.num_heads
    rows = mhprobe.masking_curve(model, [(images, labels)], units="head", steps=2)
    assert {row["layout"] for row in rows} == {own.digest}
    header = tuple(rows[0])
    ours = written(tmp_path / "ours.csv", header, *(tuple(row.values()) for row in rows))
    assert len(given(model, ours, step=2)) == 2
    theirs = [{**row, "layout": other.digest} for row in rows]
    with pytest.raises(mhprobe.UserError, match=f"another model.*{own.digest}"):
        given(
            model,
            written(tmp_path / "theirs.csv", header, *(tuple(row.values()) for row in theirs)),
            step=2,
        )


def test_a_table_of_kept_heads_names_the_others(model, tmp_path):
    table = written(
        tmp_path / "kept.csv", ("head", "kept"), *[(head, int(head % 2)) for head in range(6)]
    )
    assert given(model, table) == [0, 2, 4]
    other = tables.per_head(layout_of(network("swin")), {"kept": torch.arange(10) % 2})
    with pytest.raises(mhprobe.UserError, match="another model"):
        given(model, str(tables.write_csv(tmp_path / "swin.csv", other)))
    scores = written(tmp_path / "scores.csv", ("head", "value"), (0, 1.0))
    with pytest.raises(mhprobe.UserError, match="prune/order=by_table"):
        given(model, scores)


def test_gates_that_are_closed_name_heads(model):
    gates = mhprobe.attach(model)
    with pytest.raises(mhprobe.UserError, match="no learned gates"):
        given(model, "gates")
    with torch.no_grad():
        gates.values.copy_(torch.tensor([0.0, 0.9, -0.2, 1.0, 0.0, 0.5]))
    assert given(model, "gates") == [0, 4]
    assert given(model, "gates", threshold=0.5) == [0, 2, 4, 5]
    decided = torch.tensor([0, 1, 0, 1, 0, 1]).bool()
    assert given(model, "gates", decided) == [0, 2, 4]  # the decision of the run that learned them
    assert given(model, "gates", decided, threshold=0.1) == [0, 4]
    with pytest.raises(mhprobe.UserError, match="keeps all 6 heads"):
        given(model, "gates", torch.ones(6, dtype=torch.bool))
    with torch.no_grad():
        gates.values.clamp_(min=0.25)
    with pytest.raises(mhprobe.UserError, match=r"at or below 0\.1; the nearest is 0\.25"):
        given(model, "gates", threshold=0.1)
    with pytest.raises(mhprobe.UserError, match="threshold: it is of heads=gates, got heads="):
        given(model, [0, 2], threshold=0.5)


def test_the_decision_of_learned_gates_is_of_heads_where_neurons_can_go_too():
    kept = torch.ones(6, dtype=torch.bool)
    kept[[0, 4]] = False
    model, _, judge = shown({"head", "neuron"}, network("vit"))
    result = prune(model, judge, Given("gates", kept=kept))
    assert off(result.gone) == [0, 4] and result.stages[-1].counted == "4 heads and 192 neurons"
    small = mhprobe.prune_heads(model, [0, 4])
    assert all(
        torch.equal(value, small.state_dict()[key])
        for key, value in result.model.state_dict().items()
    )
    mhprobe.attach(model, units={"neuron"})
    with pytest.raises(
        mhprobe.UserError, match=r"^heads: expected shape \(0,\), one entry per head"
    ):
        Given("gates", kept=kept).choose(model)


# on a path


def chosen(model, evaluate, order, part=1.0, left=1.0, **options):
    source = OnPath(order, **options)
    return source.choose(
        model, evaluate, lambda: images_for(model, 1), layout_of(model), left, part
    )[0].mask


ORDERS = {
    "greedy": KeepBest(),
    "beam": Beam(2),
    "importance": ByScore(measure=mhprobe.measures.GateImportance),
    "random": Random(repeats=2, seed=3),
    "fisher": Fisher(rearranged=False),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("remove", [1, 4])
def test_what_goes_is_what_is_off_at_that_point_of_the_curve(model, evaluate, name, remove):
    order = ORDERS[name]
    curves = curve_on_splits(
        layout_of(model), CurveSpec("c", "head", order), evaluate, evaluate, steps=remove
    )
    row = next(row for row in tables.curve_rows(curves) if row["step"] == remove)
    assert off(chosen(model, evaluate, order, remove=remove)) == [
        int(head) for head in row["masked"].split()
    ]


def test_targets_end_where_they_are_met(model, evaluate):
    image = images_for(model, 1)
    order = ORDERS["importance"]
    assert int(chosen(model, evaluate, order, target={"heads": 2}).sum()) == 4
    mask = chosen(model, evaluate, order, target={"flops": 0.9})
    one_less = mask.clone()
    one_less[off(mask)[0]] = False
    shares = [
        count_flops(mhprobe.prune_heads(model, m), image) / count_flops(model, image)
        for m in (mask, one_less)
    ]
    assert shares[0] <= 0.9 < shares[1]
    assert 0 < int(chosen(model, evaluate, order, target={"latency": 0.999}).sum()) <= 6


def test_floors_and_excluded_layers_keep_their_heads(model, evaluate):
    for order in ORDERS.values():
        mask = chosen(model, evaluate, order, remove=4, min_heads_per_layer=1)
        assert [int(part.sum()) for part in layout_of(model).split(mask)] == [2, 2]
        assert not chosen(model, evaluate, order, remove=3, exclude_layers=[-1])[3:].any()


def test_whole_layers_go_or_are_refused_with_what_fits(model, evaluate):
    order = ORDERS["greedy"]
    mask = chosen(model, evaluate, order, remove=3, units="layer")
    assert [int(part.sum()) for part in layout_of(model).split(mask)] in ([3, 0], [0, 3])
    with pytest.raises(
        mhprobe.UserError, match=r"from 0 to 3 removed, got 2\. Ask for 3, or take units=head\.$"
    ):
        chosen(model, evaluate, order, remove=2, units="layer")
    # all six would empty the network, and are refused
    with pytest.raises(
        mhprobe.UserError, match=r"from 3 to 6 removed, got 5\. Ask for 3, or take units=head\.$"
    ):
        chosen(model, evaluate, order, remove=5, units="layer")
    with pytest.raises(mhprobe.UserError, match=r"from 0 to 6 removed, got 2\. Take units=head\.$"):
        chosen(model, evaluate, order, remove=2, units="stage")
    promised = OnPath(order, units="stage", guarantee=Guarantee(points=1.0))
    path = order.paths(make_units("stage", layout_of(model)), layout_of(model), evaluate)[0]
    with pytest.raises(mhprobe.UserError, match=r"from 0 to 6 removed, got 5\. Take units=head\.$"):
        promised._short(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "remove=<how many heads>, or"),
        ({"remove": 1, "target": {"heads": 1}}, "^remove: target .* as well. Give one of the two"),
        ({"remove": 6}, r"1 to 5 can go, got 6; the nearest is 5"),
        (
            {"target": {"heads": 0}},
            r"^target.heads: of 6 heads 1 to 5 can stay, got 0; the nearest is 1",
        ),
        (
            {"target": {"heads": 6}},
            r"^target.heads: of 6 heads 1 to 5 can stay, got 6; the nearest is 5",
        ),
        (
            {"target": {"flops": 1.0}},
            r"^target: the whole network meets it: nothing would be removed. Ask for less",
        ),
        ({"target": {"heads": 1.5}}, "whole number of heads, got 1.5"),
        ({"target": {"flops": 0.01}}, r"prune.target: flops=0.01 can't be met: .* is left"),
        ({"target": {"flops": 1.5}}, "the amount left, from 0 to 1, got 1.5"),
        ({"target": {"wings": 1}}, "heads.*wings"),
        ({"remove": 5, "min_heads_per_layer": 1}, "^remove: 5 heads can't go: .* 2 is left"),
        ({"remove": 1, "exclude_layers": [5]}, "-2 to 1, got 5"),
        (
            {"remove": 1, "exclude_layers": [0, -1]},
            "of 2 layers 2 are excluded, so nothing is left to mask",
        ),
        ({"remove": 1, "units": "wing"}, "got 'wing'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(model, evaluate, options, words):
    with pytest.raises(mhprobe.UserError, match=words) as error:
        OnPath(ORDERS["importance"], **options).check(model, 1)
        chosen(model, evaluate, ORDERS["importance"], **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", [{"wings": 1}, {"flops": 1.5}, {"memory": -0.1}])
def test_a_target_that_is_none_is_refused_before_the_network_runs(model, target):
    with pytest.raises(mhprobe.UserError, match="masking target: "):
        OnPath(ORDERS["importance"], target=target).check(model, 1)


def test_rounds_go_equal_parts_of_the_way(model, evaluate):
    source, image, layout = (
        OnPath(ORDERS["importance"], remove=4),
        images_for(model, 1),
        layout_of(model),
    )
    first, _ = source.choose(model, evaluate, lambda: image, layout, 1.0, 1 / 2)
    assert int(first.mask.sum()) == 2
    smaller = mhprobe.prune_heads(model, first.mask)
    second, _ = source.choose(smaller, evaluate_of(smaller), lambda: image, layout, 1.0, 1.0)
    gone = removed_after(first.mask, second.mask)
    assert int(gone.sum()) == 4 and bool(gone[first.mask].all())


def test_a_flop_target_over_rounds_is_of_the_loaded_network(model, evaluate):
    source, image, layout = (
        OnPath(ORDERS["importance"], target={"flops": 0.8}),
        images_for(model, 1),
        layout_of(model),
    )

    def share(network):
        return count_flops(network, image) / count_flops(model, image)

    first, left = source.choose(model, evaluate, lambda: image, layout, 1.0, 1 / 2)
    smaller = mhprobe.prune_heads(model, first.mask)
    assert left == pytest.approx(share(smaller)) and 0.8 < left <= 0.9
    second, left = source.choose(smaller, evaluate_of(smaller), lambda: image, layout, left, 1.0)
    assert left == pytest.approx(share(mhprobe.prune_heads(smaller, second.mask))) and left <= 0.8


@pytest.mark.parametrize("target", [{"flops": 0.9}, {"heads": 4}], ids=str)
def test_a_round_that_went_farther_than_it_had_to_leaves_nothing_to_the_next(
    model, evaluate, target
):
    """A layer goes whole or not at all, so the first of two rounds meets the target of both."""
    source, image, layout = (
        OnPath(KeepBest(), "layer", target=target),
        images_for(model, 1),
        layout_of(model),
    )
    first, left = source.choose(model, evaluate, lambda: image, layout, 1.0, 1 / 2)
    assert (int(first.mask.sum()) == 3 and left < 0.9) or "heads" in target
    smaller = mhprobe.prune_heads(model, first.mask)
    second, after = source.choose(smaller, evaluate_of(smaller), lambda: image, layout, left, 1.0)
    assert not second.mask.any() and after == left


CLOSED = 1


def test_a_head_that_is_closed_already_costs_nothing_to_remove(model):
    """Its slope is not zero, it could be opened; but its removal changes no logit."""
    gates = mhprobe.attach(model)
    with torch.no_grad():
        gates.values[CLOSED] = 0.0
    evaluate, images = evaluate_of(model), images_for(model, 24)
    slopes = mhprobe.measure(model, [(images, labels_for(24))], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    assert (
        slopes.argmin() != CLOSED and slopes[CLOSED] > 0
    )  # the control: importance of the gate itself
    by_fisher = ByScore(measure=mhprobe.measures.Fisher)
    for order in (ORDERS["importance"], ORDERS["fisher"], Fisher(), by_fisher):
        assert off(chosen(model, evaluate, order, remove=1)) == [CLOSED]


def test_conf_has_every_order():
    targets = {
        runs.composed("prune", "prune=order", f"prune/order={name}").prune.order._target_
        for name in names_of("prune/order")
    }
    orders = {target.split(".")[-2] for target in targets if target.startswith("mhprobe.masking.")}
    assert orders == set(known_orders()) and len(targets) > len(
        orders
    )  # and methods that are shown the network


@pytest.mark.parametrize("point", [{"curve": "a"}, {"step": 3}, {"remove": 3}])
def test_a_point_of_a_curve_is_refused_beside_heads_that_are_of_none(tmp_path, model, point):
    (name,) = point
    table = written(tmp_path / "kept.csv", ("layer", "head", "kept"), ("0", "0", "0"))
    for heads in ([1], table):
        with pytest.raises(UserError, match=rf"^{name}: is of a table of masking curves") as error:
            Given(heads, **point).choose(model)
        assert "\n" not in str(error.value)
    assert Given([1]).choose(model).mask.sum() == 1  # negative control
