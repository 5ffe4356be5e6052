"""Each sentence is said of a network that has it, names the heads that have it, and is not said of one without."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from layouts import layout_of, side_by_side
from mhprobe.backbones import attach
from mhprobe.errors import UserError
from mhprobe.lab.headbench.canvas import draw_images
from mhprobe.lab.headbench.plants import grow
from mhprobe.pages.looking import sentences as module
from mhprobe.pages.looking.sentences import (
    ENDS,
    SHARE,
    Facts,
    Sentence,
    measure_facts,
    room,
    rule_for,
    sentences,
    value_in_words,
)
from models import tiny_vit

IMAGES = 16


@functools.cache
def grown() -> tuple[nn.Module, dict[str, tuple[int, ...]]]:
    """A network whose heads were written by hand, and which head is what."""
    canvas, plants = grow("vit", 0)
    attach(canvas.model)
    return canvas.model, {plant.name: plant.heads for plant in plants}


@functools.cache
def known_of(images: int) -> Facts:
    """What is seen of it on the first of its photographs."""
    seen = draw_images(IMAGES, 5)
    return measure_facts(grown()[0], seen.images[:images], seen.objects[:images])


def planted() -> tuple[Facts, dict[str, tuple[int, ...]]]:
    return known_of(IMAGES), grown()[1]


def sharp():
    """An untrained network whose heads look at few patches."""
    model = tiny_vit(img_size=32, depth=4)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight *= 30
    return model


@functools.cache
def untrained() -> Facts:
    """What is seen of a network that no rule is near to: of other seeds a head may look at bright patches."""
    model = tiny_vit(seed=1, img_size=32, depth=4)
    seen = draw_images(IMAGES, 5)
    return measure_facts(model, seen.images, seen.objects)


def tell(name: str, known: Facts) -> Sentence | None:
    """The sentence of a rule; None where it has no text."""
    told = getattr(module, name)(known)
    return told if told is not None and told.text else None


@pytest.mark.parametrize(
    ("name", "plants", "says"),
    [
        ("offset", ["positional", "previous"], "one fixed place"),
        ("itself", ["itself"], "look at the patch itself"),
        ("sinks", ["sink_no_op", "sink_broadcast"], "rest on one token"),
        ("twins", ["duplicate"], "twins"),
        ("reach", ["itself", "previous"], "are local"),
        ("salient", ["object"], "what is salient"),
    ],
)
def test_a_plant_gets_its_sentence_and_an_untrained_network_does_not(name, plants, says):
    known, heads = planted()
    told = tell(name, known)
    assert (
        says in told.text
        and "95 % interval" in told.text
        and ("chance" in told.text or "even" in told.text)
    )
    for plant in plants:
        assert set(heads[plant]) <= set(told.heads), plant
    assert len(told.heads) < known.layout.num_heads / 2  # not everything is called so
    assert tell(name, untrained()) is None


def test_a_head_that_was_made_even_is_called_so_and_its_sharp_neighbours_are_not():
    model = sharp()
    with torch.no_grad():
        model.blocks[2].attn.qkv.weight.unflatten(0, (3, 3, -1))[0, 1] = (
            0  # its queries say nothing
        )
        model.blocks[2].attn.qkv.bias.zero_()
    told = tell("even", measure_facts(model, draw_images(IMAGES, 5).images))
    assert told.heads == (7,) and "block 2 head 1" in told.text and "95 % interval" in told.text


def test_heads_that_training_changed_most_are_told_with_the_range_of_untrained_ones():
    """One head is sharp, as training makes heads; all others are those of an untrained network."""
    model = tiny_vit(img_size=32, depth=4)
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.unflatten(0, (3, 3, -1))[:2, 2] *= 30
    images = draw_images(IMAGES, 5).images
    told = tell(
        "untrained", measure_facts(model, images, twin=lambda: tiny_vit(1, img_size=32, depth=4))
    )
    assert told.heads[0] == 5 and "block 1 head 2" in told.text and "95 % interval" in told.text
    assert "untrained heads" in told.text
    same = measure_facts(
        tiny_vit(img_size=32, depth=4), images, twin=lambda: tiny_vit(img_size=32, depth=4)
    )
    assert tell("untrained", same) is None  # a network is not unlike itself


def test_a_sink_that_writes_nothing_is_called_a_no_op_and_one_that_writes_is_not():
    known, heads = planted()
    role = known.measures["sinks"]["role"]
    assert role[list(heads["sink_no_op"])].tolist() == [1] and role[
        list(heads["sink_broadcast"])
    ].tolist() == [2]
    told = tell("sinks", known)
    silent = int((role[list(told.heads)] == 1).sum())
    loud = len(told.heads) - silent
    assert (
        silent > 0 < loud
        and f"{silent} of them {'is a no-op' if silent == 1 else 'are no-ops'} that add"
        in told.text
    )
    assert f"; {loud} of them {'copies' if loud == 1 else 'copy'} the token's content" in told.text


RULES = ("offset", "itself", "sinks", "reach", "far", "even")


def test_fewer_photographs_name_no_more_heads_of_a_planted_network():
    """Of each rule, and with the same photographs, from which some are taken away."""
    named = {
        count: [int(getattr(module, rule)(known_of(count)).claim.sure.sum()) for rule in RULES]
        for count in (2, 4)
    }
    whole = [int(getattr(module, rule)(planted()[0]).claim.sure.sum()) for rule in RULES]
    assert sum(whole) > 3  # there is something to name
    for count, few in named.items():
        assert all(less <= more for less, more in zip(few, whole, strict=True)), (count, few, whole)
    # the control: intervals that merely touch the limit would name more
    table = known_of(2).columns("attention_distance")
    touching = int((table["high"] >= module.GLOBAL * table["whole"]).sum())
    assert touching > named[2][RULES.index("far")]


# rules on how numbers stand to each other, by numbers


NAMES = ("attention_distance", "entropy", "sinks", "position")


def by_hand(
    values: torch.Tensor, uniform: float, spread: float = 0.01, layout=None, **twin
) -> Facts:
    layout = layout or layout_of(*[2] * (len(values) // 2))
    columns = {
        "value": values,
        "low": values - spread,
        "high": values + spread,
        "sink": values,
        "share": values / uniform,
        "chance": values,
    }
    columns |= {
        name: torch.full_like(values, uniform)
        for name in ("uniform", "whole", "reach", "write", "class_token")
    }
    columns |= {name: torch.zeros_like(values) for name in ("dy", "dx", "role")}
    columns["reach"] = torch.ones_like(values)
    return Facts(layout, 12, dict.fromkeys(NAMES, columns), twin, {})


def test_local_heads_are_told_from_global_ones():
    told = tell("reach", by_hand(torch.tensor([3.0, 9.0, 10.0, 12.0]), 10.0))
    assert told.heads == (0,) and "1 of 4 heads are local" in told.text
    assert "nearest, 3.00 (95 % interval 2.99 to 3.01; even attention 10)" in told.text
    wide = tell("far", by_hand(torch.tensor([3.0, 9.0, 10.0, 12.0]), 10.0))
    assert wide.heads == (3, 2) and "2 of 4 heads are global" in wide.text
    assert tell("reach", by_hand(torch.tensor([6.0, 9.0, 10.0, 12.0]), 10.0)) is None
    assert tell("far", by_hand(torch.tensor([3.0, 4.0, 5.0, 9.0]), 10.0)) is None


def test_a_reference_has_the_decimals_of_what_stands_against_it():
    """113.4 against 116.6 read as 113.4 against 120 would hide that the head does not reach it."""
    told = tell("far", by_hand(torch.tensor([113.4, 50.0]), 116.6, spread=0.2))
    assert "113.4 (95 % interval 113.2 to 113.6; even attention 116.6)" in told.text


LIMITS = {  # (rule, column it compares, limit, direction), of columns of which ``even`` is 10
    # binary, as is the gap: what the rule has is put in its place
    "offset": ("position", 0.875, 1),
    "itself": ("position", 0.875, 1),
    "reach": ("attention_distance", 5.0, -1),
    "far": ("attention_distance", 9.0, 1),
    "even": ("entropy", 8.75, 1),
}


@pytest.mark.parametrize("rule", LIMITS)
@pytest.mark.parametrize("gap", [0.0, 0.125])  # binary, so that the end touches exactly
def test_an_interval_that_touches_the_limit_is_not_beyond_it(rule, gap, monkeypatch):
    monkeypatch.setattr(module, "OFFSET", 0.875)
    monkeypatch.setattr(module, "NEARLY", 0.875)
    measure, limit, sign = LIMITS[rule]
    ends = torch.tensor([limit, limit - sign]).double()
    columns = {"value": ends + sign * 0.25}
    near, away = ends + sign * gap, ends + sign * 0.5
    columns |= {"low": near, "high": away} if sign > 0 else {"low": away, "high": near}
    known = by_hand(columns["value"], 10.0)
    table = {**known.measures[measure], **columns}
    table |= {name: torch.full((2,), float(rule == "offset")) for name in ("dy", "dx")}
    table["share"] = columns["value"] / 8 * 0.8  # of an even 10, without rounding it
    told = getattr(module, rule)(known._replace(measures={**known.measures, measure: table}))
    assert told.heads == ((0,) if gap else ())
    assert told.claim.needed.isnan().tolist() == [bool(gap), True]


def test_twins_that_touch_a_limit_are_none():
    def told(divergence: float, likeness: float):
        pairs = {name: torch.full((2, 2), divergence) for name in ENDS}
        outputs = {name: torch.full((2, 2), likeness) for name in ENDS}
        measures = {
            "js_distance": {**pairs, "null": torch.ones(2, 2)},
            "cka": {**outputs, "null": torch.zeros(2, 2)},
        }
        return tell("twins", Facts(layout_of(2), 12, measures, {}, {}))

    assert told(0.49, 0.51).heads == (0, 1)
    assert told(0.5, 0.51) is None and told(0.49, 0.5) is None


@functools.cache
def with_fewer(images: int) -> list[Sentence]:
    """What is said of the planted network on the first of its photographs."""
    return [rule(known_of(images)) for rule in SINGLE_RULES]


SINGLE_RULES = [getattr(module, rule) for rule in LIMITS]


@pytest.mark.parametrize("rule", [rule for rule in LIMITS if rule != "far"])
def test_fewer_photographs_do_not_name_more_heads(rule):
    """Not claimed of global heads.

    One of the planted network's lies so near the limit that 8 photographs name it and 16 leave it
    open.
    """
    place = list(LIMITS).index(rule)
    counts = [len(with_fewer(images)[place].heads) for images in (2, 4, 8, IMAGES)]
    assert counts == sorted(counts)
    assert counts[-1] > 0 or rule == "even"  # the planted network has none that is even


@pytest.mark.parametrize("rule", LIMITS)
def test_more_photographs_do_not_deny_a_head_that_fewer_name(rule):
    place = list(LIMITS).index(rule)
    all_of_them = with_fewer(IMAGES)[place].claim
    allowed = all_of_them.sure | ~all_of_them.needed.isnan()  # named, or left open
    denied = {head for head in range(len(allowed)) if not allowed[head]}
    assert denied, "a rule that denies no head would pass"
    for images in (2, 4, 8):
        assert not denied & {*with_fewer(images)[place].heads}


def test_the_ends_of_an_interval_do_not_read_alike():
    columns = {
        name: torch.tensor([share])
        for name, share in zip(ENDS, (0.9722, 0.9708, 0.9741), strict=True)
    }
    assert (
        value_in_words(columns, 0, SHARE, "by chance 1 %")
        == "97.2 % (95 % interval 97.1 % to 97.4 %; by chance 1 %)"
    )
    assert (
        value_in_words({**columns, "low": torch.tensor([0.86])}, 0, SHARE)
        == "97 % (95 % interval 86 % to 97 %)"
    )
    assert (
        value_in_words(dict.fromkeys(ENDS, torch.tensor([1.0])), 0, SHARE)
        == "100 % (95 % interval 100 % to 100 %)"
    )
    one_photograph = {
        **columns,
        "low": torch.tensor([torch.nan]),
        "high": torch.tensor([torch.nan]),
    }
    assert value_in_words(one_photograph, 0, SHARE) == "97 % (95 % interval nan % to nan %)"


def test_distance_that_rises_with_depth_is_told_and_shuffled_blocks_are_not():
    rising = torch.arange(16, dtype=torch.float64)
    told = tell("depth", by_hand(rising, 10.0))
    assert "farther the deeper" in told.text and "correlation with depth of 1 " in told.text
    falling = tell("depth", by_hand(rising.flip(0), 10.0))
    assert "less far the deeper" in falling.text
    enough = tell("depth", by_hand(10 + rising / 20, 10.0))
    assert (
        "in the first 2 blocks 1.01 times as far as even attention, in the last 2 blocks 1.07 times"
        in enough.text
    )
    assert (
        tell("depth", by_hand(10 + rising / 1000, 10.0)) is None
    )  # in perfect order, from 1.0002 to 1.0014
    twice = tell(
        "depth", by_hand(torch.arange(26, dtype=torch.float64), 10.0, layout=side_by_side(6))
    )
    assert "in the first 2 blocks 0.35 times" in twice.text  # heads 0 to 7
    with pytest.raises(UserError, match="4 blocks and 12 photographs"):
        tell("depth", by_hand(torch.arange(14, dtype=torch.float64), 10.0, layout=side_by_side(3)))
    shuffled = rising.view(8, 2)[[3, 6, 0, 5, 7, 1, 4, 2]].flatten()
    assert tell("depth", by_hand(shuffled, 10.0)) is None


def test_even_heads_are_those_near_the_largest_entropy():
    told = tell("even", by_hand(torch.tensor([9.95, 9.0, 5.0, 9.4]), 10.0))
    assert told.heads == (0,) and "1 of 4 heads" in told.text
    near = tell("even", by_hand(torch.tensor([4.6149, 2.0]), 4.6152, spread=0.0001))
    assert (
        "entropy is 4.6149 (95 % interval 4.6148 to 4.6150; even attention 4.6152) nats"
        in near.text
    )
    assert tell("even", by_hand(torch.tensor([9.0, 8.0]), 10.0)) is None


def test_heads_are_unlike_untrained_ones_only_beyond_all_of_them():
    values = torch.tensor([3.0, 5.0, 9.0, 12.0])
    twin = {name: {"value": torch.tensor([4.0, 9.5])} for name in NAMES}
    told = tell("untrained", by_hand(values, 10.0, **twin))
    assert told.heads == (3, 0) and "untrained heads 4 to 9.5" in told.text  # 2.5 beyond, and 1
    assert (
        "2 of 4 heads look as heads of an untrained network do, in all 4 measures of this "
        "comparison (block 0 head 1, block 1 head 0)" in told.text
    )
    # a wide interval reaches into the range, which does not show that the head lies in it
    unsure = tell("untrained", by_hand(values, 10.0, spread=1.5, **twin))
    assert unsure.heads == (3,) and "look as heads of" not in unsure.text
    same = {name: {"value": torch.tensor([2.0, 13.0])} for name in NAMES}
    assert tell("untrained", by_hand(values, 10.0, **same)) is None


def test_what_could_not_be_told_says_with_how_many_photographs_it_could():
    values = torch.tensor([9.5, 9.9, 5.0, 9.4])
    wide = by_hand(values, 10.0, spread=0.16)  # .95 of 10 lies inside of the first's and the last's
    last = sentences(wide)[-1].text
    assert (
        last.startswith("Could not be told from 12 photographs")
        and "2 more heads may or may not spread their attention nearly evenly" in last
    )
    claim = module.even(wide).claim
    assert (
        claim.needed[3] == 31
    )  # 12 photographs reach .16 far; .1 needs (.16 / .1)^2 = 2.56 times as many
    assert (
        claim.needed[1].isnan()
        and claim.needed[2].isnan()
        and claim.sure.tolist() == [False, True, False, False]
    )
    assert "which heads look at what is salient" in last  # no masks
    unmasked = measure_facts(tiny_vit(), torch.randn(2, 3, 16, 16))
    assert "with --masks FOLDER the page says which heads" in sentences(unmasked)[-1].text
    close = sentences(by_hand(torch.tensor([9.5001, 5.0, 5.0, 5.0]), 10.0, spread=0.16))[-1].text
    assert (
        "(more than 10,000 photographs would tell)" in close and "about 10,000" not in close
    )  # 30 millions
    assert (
        "2 more heads may or may not spread their"
        not in sentences(by_hand(values, 10.0, spread=0.01))[-1].text
    )


def test_more_photographs_than_there_were_would_tell_also_where_an_interval_is_longer_on_one_side():
    columns = {
        name: torch.tensor([value])
        for name, value in (("value", 0.9), ("low", 0.4), ("high", 0.95))
    }
    assert module.claim_above("rest", columns, 0.5, images=12).needed.tolist() == [13]


def test_one_photograph_says_nothing_beyond_itself():
    model = tiny_vit()
    found = measure_facts(model, torch.randn(1, 3, 16, 16))
    last = sentences(found)[-1].text
    assert "1 photograph:" in last and "at least 2" in last
    rising = by_hand(torch.arange(16, dtype=torch.float64), 10.0)
    assert any("farther the deeper" in each.text for each in sentences(rising))
    assert not any(
        "farther the deeper" in each.text for each in sentences(rising._replace(images=1))
    )
    assert (
        "changes with depth (8 blocks and 1 photograph, expected at least 5 blocks and 2 "
        "photographs)" in sentences(rising._replace(images=1))[-1].text
    )


def test_a_function_that_is_marked_is_a_rule(monkeypatch):
    monkeypatch.setattr(module, "_rules", {**module._rules})
    known = by_hand(torch.tensor([3.0, 9.0]), 10.0)
    assert not any("There are" in each.text for each in sentences(known))
    rule_for("how many heads there are")(
        lambda facts: Sentence(f"There are {facts.layout.num_heads} heads.")
    )
    assert "There are 2 heads." in [each.text for each in sentences(known)]


def test_a_sink_whose_role_is_not_known_is_not_told():
    """All its attention on one token is no sink before it is clear what the head does with it."""

    def told(*roles: float):
        known = by_hand(torch.tensor([0.9, 0.8, 0.9, 0.8]), 0.01)
        table = {**known.measures["sinks"], "role": torch.tensor(roles)}
        return tell("sinks", known._replace(measures={**known.measures, "sinks": table}))

    assert told(0, 0, 0, 0) is None
    assert told(0, 2, 0, 1).heads == (1, 3)
    assert set(told(1, 2, 2, 1).heads) == {0, 1, 2, 3}


def test_a_head_is_global_by_the_whole_image_that_it_could_look_at():
    """Stages differ in pixels: the farthest look in pixels may be a near one for its grid."""
    known = by_hand(torch.tensor([9.5, 17.0, 9.9, 19.0]), 10.0)
    table = {
        **known.measures["attention_distance"],
        "whole": torch.tensor([10.0, 20.0, 10.0, 20.0]),
        "uniform": torch.tensor([10.0, 17.0, 10.0, 19.0]),  # of a window
    }
    told = tell("far", known._replace(measures={**known.measures, "attention_distance": table}))
    assert told.heads == (2, 0, 3)  # by share, .99, .95 and .95; in pixels it would be 3, 2, 0
    assert "look more than 90 % as far" in told.text and "even attention 10" in told.text


def test_twins_write_more_alike_than_chance():
    """Outputs with a CKA of .6 are alike, but not where heads of other images reach as much."""

    def told(null: float):
        pairs = {name: torch.full((2, 2), 0.1) for name in ENDS}
        outputs = {name: torch.full((2, 2), 0.6) for name in ENDS}
        measures = {
            "js_distance": {**pairs, "null": torch.ones(2, 2)},
            "cka": {**outputs, "null": torch.full((2, 2), null)},
        }
        return tell("twins", Facts(layout_of(2), 12, measures, {}, {}))

    assert told(0.59).heads == (0, 1)
    assert told(0.6) is None and told(0.7) is None


def test_the_memory_of_the_measures_is_said_where_it_is_worth_it(monkeypatch):
    model = sharp()
    assert room(model, 12, False) == ""
    monkeypatch.setattr("mhprobe.recording.measuring.WORTH_SAYING", 1)
    assert room(model, 12, True) == ", 0.0 GiB beside the network"
