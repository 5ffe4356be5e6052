"""Each sentence is said of a network that has it, names the heads that have it, and is not said of one without."""

from __future__ import annotations

import functools

import pytest
import torch

from layouts import layout_of
from mhprobe.backbones import attach
from mhprobe.headbench import world
from mhprobe.headbench.grow import grow
from mhprobe.looking.facts import Facts, facts
from mhprobe.looking.sentences import rules, sentences
from models import tiny_vit

IMAGES = 16


@functools.cache
def planted() -> tuple[Facts, dict[str, tuple[int, ...]]]:
    """A network whose heads were written by hand, and which head is what."""
    canvas, plants = grow("vit", 0)
    attach(canvas.model)
    seen = world.draw(IMAGES, 5)
    return facts(canvas.model, seen.images, seen.objects), {plant.name: plant.heads for plant in plants}


@functools.cache
def untrained() -> Facts:
    model = tiny_vit(img_size=32, depth=4)
    seen = world.draw(IMAGES, 5)
    return facts(model, seen.images, seen.objects)


def rule(name: str):
    return next(each for each in rules() if each.__name__.endswith(f".{name}"))


@pytest.mark.parametrize(
    ("name", "plants", "says"),
    [
        ("offset", ["positional", "previous"], "one fixed place"),
        ("itself", ["itself"], "a patch looks at itself"),
        ("sinks", ["sink_no_op", "sink_broadcast"], "rest on one token"),
        ("twins", ["duplicate"], "twins"),
        ("salient", ["object"], "what is salient"),
    ],
)
def test_a_plant_gets_its_sentence_and_an_untrained_network_does_not(name, plants, says):
    known, heads = planted()
    (told,) = rule(name).tell(known)
    assert says in told.text and "95 % interval" in told.text and ("chance" in told.text or "even" in told.text)
    for plant in plants:
        assert set(heads[plant]) <= set(told.heads), plant
    assert len(told.heads) < known.layout.num_heads / 2  # not everything is called so
    assert [each.text for each in rule(name).tell(untrained()) if each.text] == []


def test_a_sink_that_writes_nothing_is_called_a_no_op_and_one_that_writes_is_not():
    known, heads = planted()
    role = known.found["sinks"]["role"]
    assert role[list(heads["sink_no_op"])].tolist() == [1] and role[list(heads["sink_broadcast"])].tolist() == [2]
    (told,) = rule("sinks").tell(known)
    silent = int((role[list(told.heads)] == 1).sum())
    assert f"{silent or 'None'} of them" in told.text and 0 < silent < len(told.heads)


# rules on how numbers stand to each other, by numbers


NAMES = ("attention_distance", "entropy", "sinks", "position")


def by_hand(values: torch.Tensor, uniform: float, spread: float = 0.01, **twin) -> Facts:
    layout = layout_of(*[2] * (len(values) // 2))
    columns = {"value": values, "low": values - spread, "high": values + spread, "sink": values, "chance": values}
    columns |= {name: torch.full_like(values, uniform) for name in ("uniform", "reach", "write", "class_token")}
    columns |= {name: torch.zeros_like(values) for name in ("dy", "dx", "role")}
    return Facts(layout, 12, dict.fromkeys(NAMES, columns), twin, {})


def test_local_heads_are_told_from_global_ones():
    (told,) = rule("reach").tell(by_hand(torch.tensor([3.0, 9.0, 10.0, 12.0]), 10.0))
    assert told.heads == (0,) and "1 of 4 heads are local" in told.text
    assert "2 are global" in told.text and "(95 % interval 3 to 3; even attention 10)" in told.text
    assert [each.text for each in rule("reach").tell(by_hand(torch.tensor([6.0, 9.0, 10.0, 12.0]), 10.0))] == [""]


def test_distance_that_rises_with_depth_is_told_and_shuffled_blocks_are_not():
    rising = torch.arange(16, dtype=torch.float64)
    (told,) = rule("depth").tell(by_hand(rising, 10.0))
    assert "farther the deeper" in told.text and "correlation with depth of 1 " in told.text
    (falling,) = rule("depth").tell(by_hand(rising.flip(0), 10.0))
    assert "less far the deeper" in falling.text
    shuffled = rising.view(8, 2)[[3, 6, 0, 5, 7, 1, 4, 2]].flatten()
    assert rule("depth").tell(by_hand(shuffled, 10.0)) == []


def test_even_heads_are_those_near_the_largest_entropy():
    (told,) = rule("even").tell(by_hand(torch.tensor([9.95, 9.0, 5.0, 9.6]), 10.0))
    assert told.heads == (0,) and "1 of 4 heads" in told.text
    assert [each.text for each in rule("even").tell(by_hand(torch.tensor([9.0, 8.0]), 10.0))] == [""]


def test_heads_are_unlike_untrained_ones_only_beyond_all_of_them():
    values = torch.tensor([3.0, 5.0, 9.0, 12.0])
    twin = {name: {"value": torch.tensor([4.0, 9.5])} for name in NAMES}
    (told,) = rule("untrained").tell(by_hand(values, 10.0, **twin))
    assert set(told.heads) == {0, 3} and "from 4 to 9.5" in told.text
    same = {name: {"value": torch.tensor([2.0, 13.0])} for name in NAMES}
    assert rule("untrained").tell(by_hand(values, 10.0, **same)) == []


def test_what_could_not_be_told_says_with_how_many_photographs_it_could():
    values = torch.tensor([9.7, 9.9, 5.0, 9.6])
    wide = by_hand(values, 10.0, spread=0.16)  # .97 of 10 lies inside of the first's and the last's
    last = sentences(wide)[-1].text
    assert (
        last.startswith("Could not be told from 12 photographs")
        and "2 more heads may or may not look nearly everywhere alike" in last
    )
    claim = rule("even").tell(wide)[0].claim
    assert claim.needed[3] == 31  # 12 photographs reach .16 far; .1 needs (.16 / .1)^2 = 2.56 times as many
    assert claim.needed[1].isnan() and claim.needed[2].isnan() and claim.sure.tolist() == [False, True, False, False]
    assert "which heads look at what is salient" in last  # no masks
    assert "2 more heads may or may not look nearly" not in sentences(by_hand(values, 10.0, spread=0.01))[-1].text


def test_one_photograph_says_nothing_beyond_itself():
    model = tiny_vit()
    found = facts(model, torch.randn(1, 3, 16, 16))
    last = sentences(found)[-1].text
    assert "1 photograph:" in last and "at least 2" in last


def test_rules_are_found_by_their_being_there():
    from pathlib import Path

    import mhprobe.looking.sentences as package

    files = {path.stem for path in Path(package.__file__).parent.glob("*.py")} - {"__init__"}
    assert {each.__name__.rpartition(".")[2] for each in rules()} == files
    assert len({each.ORDER for each in rules()}) == len(rules())
