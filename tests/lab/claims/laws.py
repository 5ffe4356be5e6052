"""Evidence drawn from a known law, per claim: of a population in which the claim's effect is the number that is given.

Heads, pairs of heads and images are drawn; six blocks of six heads, or 400 images. A law shares
nothing with the claim but the names of columns and orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import torch
from scipy.stats import norm, spearmanr
from torch import Tensor

from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.report.tables import Table

LAYOUT = layout_of(*[6] * 6)
HEADS = LAYOUT.num_heads
BLOCK = torch.arange(HEADS) // 6
EARLY, LATE = BLOCK < 3, BLOCK >= 3
THIRD = BLOCK // 2
INSIDE = (BLOCK[:, None] == BLOCK) & ~torch.eye(HEADS, dtype=torch.bool)
IMAGES, DRAWS = 400, 5


@dataclass
class Drawn:
    """Evidence from a draw.

    accuracy: of a mask, in the population; right images are drawn once for all masks.
    """

    random: torch.Generator
    tables: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    twin: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    paths: Mapping[str, Tensor] = field(default_factory=dict)
    accuracy: Callable[[Tensor], float] | None = None
    images: Mapping[str, Tensor] = field(default_factory=dict)
    elsewhere: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    runs: Mapping[str, SimpleNamespace] = field(default_factory=dict)
    layout: HeadLayout = LAYOUT

    def __post_init__(self) -> None:
        self.hard = torch.rand(IMAGES, generator=self.random)
        self.harder = torch.rand(DRAWS, IMAGES, generator=self.random)  # of validation images

    def columns(self, name):
        return self.tables[name]

    def control(self, name):
        if not self.twin:
            raise UserError("no twin.")
        return self.twin[name]

    def second(self, name):
        return self.elsewhere[name]

    def run(self, name):
        return self.runs[name]

    def path(self, name):
        return self.paths[name]

    def right(self, masks):
        assert self.accuracy is not None
        return torch.stack([self.hard < self.accuracy(mask) for mask in masks])

    def chosen(self, masks):
        assert self.accuracy is not None
        shares = [(self.harder < self.accuracy(mask)).double().mean(1) for mask in masks]
        return torch.stack(shares, 1)

    def of_images(self, name):
        return self.images[name]


Draw = Callable[[float, torch.Generator], Drawn]


class Law(NamedTuple):
    """draw: from an effect. true, false: effects in multiples of what matters, with the verdicts holds and ``word``."""

    draw: Draw
    true: float
    false: float
    word: str


LAWS: dict[str, Law] = {}


def law(
    *claims: str, true: float = 5, false: float = -5, word: str = "contradicted"
) -> Callable[[Draw], Draw]:
    def keep(draw: Draw) -> Draw:
        LAWS.update(dict.fromkeys(claims, Law(draw, true, false, word)))
        return draw

    return keep


def noise(random, *shape):
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def pair_noise(random, size):
    """Symmetric: half of the variance belongs to the heads, half to the pair."""
    of_head, of_pair = noise(random, HEADS), noise(random, HEADS, HEADS)
    return size * ((of_head[:, None] + of_head) / 2 + (of_pair + of_pair.T) / 2)


def closing(order):
    """(1, S + 1, A) masks that close heads, or sets of heads, one after the other."""
    steps = torch.zeros(len(order) + 1, HEADS, dtype=torch.bool)
    for step, heads in enumerate(order, 1):
        steps[step] = steps[step - 1]
        steps[step, heads] = True
    return steps[None]


def together(correlation, random, *shape):
    """Two normal values with this rank correlation (Kruskal, 1958)."""
    rho = 2 * math.sin(math.pi * correlation / 6)
    first = noise(random, *shape)
    return first, rho * first + math.sqrt(1 - rho**2) * noise(random, *shape)


# means over heads, and late against early


@law("entropy_falls_with_depth")
def _(effect, random):
    return Drawn(random, {"entropy": {"share": 0.7 - effect * LATE + 0.08 * noise(random, HEADS)}})


@law("covering_range_grows_with_depth", "distance_grows_with_depth")
def _(effect, random):
    value = 3 * (0.5 + effect * LATE + 0.15 * noise(random, HEADS))
    three = torch.full((HEADS,), 3.0)
    columns = {"value": value, "uniform": three, "whole": three}
    return Drawn(random, {"attention_range": columns, "attention_distance": columns})


@law("the_class_token_draws_attention")
def _(effect, random):
    even = torch.full((HEADS,), 0.015)
    return Drawn(
        random,
        {"token_kinds": {"cls": even + effect + 0.1 * noise(random, HEADS), "uniform_cls": even}},
    )


@law("special_attention_is_a_no_op")
def _(effect, random):
    return Drawn(random, {"no_op": {"value": 1 - effect + 0.5 * noise(random, HEADS)}})


@law("attention_is_a_low_pass_filter")
def _(effect, random):
    block = BLOCK.double()
    return Drawn(
        random,
        {
            "output_frequency": {
                "block_input": block,
                "value": block - effect + 0.2 * noise(random, HEADS),
            }
        },
    )


@law("high_norm_tokens_draw_attention")
def _(effect, random):
    even = torch.full((HEADS,), 0.01, dtype=torch.float64)
    columns = {
        "high_norm": even * 2 ** (effect + 2 * noise(random, HEADS)),
        "uniform_high_norm": even,
    }
    return Drawn(random, {"token_kinds": columns})


@law("late_blocks_carry_the_direct_effect", true=4, false=-4)
def _(effect, random):
    part = torch.where(THIRD == 2, (0.5 + effect) / 12, (0.5 - effect) / 24)
    return Drawn(
        random,
        {"logit_attribution": {"size": part * (1 + 0.3 * noise(random, HEADS)).clamp(min=0.01)}},
    )


# shares of heads


def flags(share, random, count=HEADS):
    return torch.rand(count, generator=random) < share


@law("most_heads_can_go", true=4, false=-4)
def _(effect, random):
    drop = torch.where(flags(0.5 + effect, random), 0.002, 0.03)
    columns = {"drop_low": drop - 0.004, "drop_high": drop + 0.004, "images": torch.tensor(IMAGES)}
    return Drawn(random, {"ablation_delta": columns})


@law("some_heads_are_positional", true=8, false=0, word="cannot be told")
def _(effect, random):
    value = torch.where(flags(effect, random), 0.95, 0.3)
    return Drawn(
        random,
        {"position": {"low": value - 0.01, "high": value + 0.01, "images": torch.tensor(IMAGES)}},
    )


@law("some_heads_are_sinks", true=8, false=0, word="cannot be told")
def _(effect, random):
    return Drawn(random, {"sinks": {"sink": torch.where(flags(effect, random), 0.9, 0.1)}})


@law("early_blocks_have_local_heads", true=6, false=0, word="cannot be told")
def _(effect, random):
    value = torch.where(flags(effect, random), 0.3, 0.8)
    columns = {
        "low": value - 0.05,
        "high": value + 0.05,
        "uniform": torch.ones(HEADS),
        "images": torch.tensor(IMAGES),
    }
    return Drawn(random, {"attention_distance": columns})


@law("late_heads_look_everywhere", true=5, false=-5)
def _(effect, random):
    value = torch.where(flags(0.5 + effect, random), 0.97, 0.5)
    columns = {
        "low": value - 0.05,
        "high": value + 0.05,
        "whole": torch.ones(HEADS),
        "images": torch.tensor(IMAGES),
    }
    return Drawn(random, {"attention_distance": columns})


@law("heads_have_class_roles", true=3, false=0, word="too small to matter")
def _(effect, random):
    has = flags(effect, random)[:, None]
    own = torch.where(has, torch.eye(10)[torch.arange(HEADS) % 10], torch.ones(HEADS, 10))
    columns = {"own": own, "own_error": torch.full_like(own, 0.05), "images": torch.tensor(IMAGES)}
    return Drawn(random, {"logit_attribution": columns})


@law("some_heads_are_nearly_equal", true=9, false=0, word="cannot be told")
def _(effect, random):
    value = torch.full((HEADS, HEADS), 0.4)
    for block in flags(effect, random, 6).nonzero().flatten().tolist():
        value[6 * block, 6 * block + 1] = value[6 * block + 1, 6 * block] = 0.99
    return Drawn(random, {"svcca": {"value": value}})


# pairs of heads


@law("heads_of_a_block_are_alike")
def _(effect, random):
    null = torch.full((HEADS, HEADS), 0.05)
    value = (null + effect + pair_noise(random, 0.15)).where(INSIDE, torch.nan)
    return Drawn(random, {"svcca": {"value": value, "null": null.where(INSIDE, torch.nan)}})


@law("likeness_falls_with_depth")
def _(effect, random):
    value = (0.4 + effect * EARLY[:, None] + pair_noise(random, 0.1)).where(INSIDE, torch.nan)
    return Drawn(random, {"svcca": {"value": value, "null": torch.full_like(value, 0.1)}})


@law("middle_blocks_are_least_alike")
def _(effect, random):
    value = (0.4 + effect * (THIRD != 1)[:, None] + pair_noise(random, 0.1)).where(
        INSIDE, torch.nan
    )
    return Drawn(random, {"svcca": {"value": value, "null": torch.full_like(value, 0.1)}})


@law("circuits_differ_from_initialisation")
def _(effect, random):
    trained, untrained = (0.3 + mean + pair_noise(random, 0.02) for mean in (effect, 0.0))
    return Drawn(
        random,
        {"weight_similarity": {"cosine_ov": -trained}},
        {"weight_similarity": {"cosine_ov": untrained}},
    )


@law("training_makes_outputs_unlike")
def _(effect, random):
    trained, untrained = (0.5 + mean + pair_noise(random, 0.1) for mean in (-effect, 0.0))
    return Drawn(random, {"cka": {"value": trained}}, {"cka": {"value": untrained}})


@law("heads_of_a_block_attend_alike")
def _(effect, random):
    value = torch.where(INSIDE, 0.3 * (1 - effect), 0.3) + pair_noise(random, 0.05)
    return Drawn(random, {"js_distance": {"value": value}})


@law("clusters_follow_blocks", true=3, false=0, word="cannot be told")
def _(effect, random):
    own = flags(effect + 5 / 35, random)[:, None]
    value = 1 + torch.rand(HEADS, HEADS, generator=random)
    for head in range(HEADS):
        among = (INSIDE[head] if own[head] else BLOCK[head] != BLOCK).nonzero().flatten()
        value[head, among[torch.randint(len(among), (), generator=random)]] = 0.5
    return Drawn(random, {"js_distance": {"value": value}})


@law("narrow_heads_are_more_alike")
def _(effect, random):
    """Against another network: the row of its table is an estimate of .2 with an error of .01."""
    null = torch.full((HEADS, HEADS), 0.1)
    value = (null + 0.2 + effect + pair_noise(random, 0.05)).where(INSIDE, torch.nan)
    other = 0.2 + 0.01 * float(noise(random, 1))
    ends = {"effect": other, "low": other - 0.0196, "high": other + 0.0196}
    row = {"claim": "heads_of_a_block_are_alike", "count": 60, **ends}
    wider = SimpleNamespace(rows=lambda kind: [row])
    return Drawn(random, {"svcca": {"value": value, "null": null}}, runs={"wider": wider})


# correlations over heads


def surely(value):
    """An interval that many images leave."""
    return {"low": value - 0.1, "high": value + 0.1, "images": torch.tensor(IMAGES)}


def correlated(first, second, against=0.0):
    """first, second: (table, column)."""

    def made(effect, random):
        x, y = together(effect + against, random, HEADS)
        tables = {first[0]: {first[1]: x}}
        tables[second[0]] = {second[1]: y}
        return Drawn(random, tables)

    return made


law("confidence_follows_relevance", true=2.9, false=-2.9)(
    correlated(("confidence", "value"), ("lrp_relevance", "value"))
)
law("importance_is_mostly_output_norm", true=2.3, false=-4)(
    correlated(("gate_importance", "value"), ("write_norm", "value"), 0.5)
)


@law("importance_agrees_between_data_sets", true=2.3, false=-4)
def _(effect, random):
    here, there = together(effect + 0.5, random, HEADS)
    return Drawn(
        random,
        {"gate_importance": {"value": here}},
        elsewhere={"gate_importance": {"value": there}},
    )


@law("importance_settles_early", true=2.4, false=-4)
def _(effect, random):
    early, late = together(effect + 0.5, random, HEADS)
    rows = [[1, 7, spearmanr(early, late).statistic], [0, 7, 0.0], [5, 7, 1.0], [1, 5, 1.0]]
    table = Table(["epoch_a", "epoch_b", "spearman"], rows)
    return Drawn(random, runs={"training": SimpleNamespace(tables={"settling_agreement": table})})


@law("similarity_does_not_tell_redundancy", true=0, false=2.9)
def _(effect, random):
    likeness, rise = together(effect, random, HEADS)
    value = torch.full((HEADS, HEADS), -9.0, dtype=torch.float64)
    for head in range(HEADS):
        value[head, 6 * BLOCK[head] + (head + 1) % 6] = likeness[head]
    return Drawn(
        random, {"svcca": {"value": value}, "ablation_delta": {"value": rise, **surely(rise)}}
    )


@law("relevant_heads_stay", true=2.9, false=-2.9)
def _(effect, random):
    relevance, stays = together(effect, random, HEADS)
    order = stays.argsort()[:, None].tolist()
    return Drawn(
        random, {"lrp_relevance": {"value": relevance}}, paths={"importance": closing(order)}
    )


@law("importance_predicts_cost", true=2.9, false=-2.9)
def _(effect, random):
    rise, stays = together(effect, random, HEADS)
    order = stays.argsort()[:, None].tolist()
    return Drawn(
        random,
        {"ablation_delta": {"value": rise, **surely(rise)}},
        paths={"importance": closing(order)},
    )


@law("specialised_heads_stay", true=4.5, false=-4.5)
def _(effect, random):
    named = torch.arange(HEADS) % 3 == 0
    order = (
        (math.sqrt(2) * norm.ppf(0.5 + effect) * named + noise(random, HEADS))
        .argsort()[:, None]
        .tolist()
    )
    ones = torch.ones(HEADS)
    tables = {
        "position": {"value": named.double()},
        "token_kinds": {"cls": 0 * ones},
        "attention_distance": {"value": ones, "uniform": ones, "whole": ones},
    }
    return Drawn(random, tables, paths={"importance": closing(order)})


@law("like_attention_gives_like_outputs", true=2.5, false=-2.5)
def _(effect, random):
    distance, likeness = together(-effect, random, HEADS, HEADS)
    return Drawn(random, {"js_distance": {"value": distance}, "cka": {"value": likeness}})


# accuracy without heads: each draw of validation images chooses masks of its own


WEIGHTS = torch.rand(HEADS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def name_of(mask):
    """A number per mask: no two have the same sum of these weights."""
    return (mask.double() @ WEIGHTS * 1e9).round().long()


def chosen(random, steps, masked):
    """(R, S + 1, A) masks of orders that close equally many heads a step, and their accuracy by name.

    masked: accuracy under a mask that is not empty, which differs from draw to draw by .01.
    """
    place = torch.rand(DRAWS, HEADS, generator=random).argsort(1)
    paths = place[:, None] < (torch.arange(steps + 1) * HEADS // steps)[:, None]
    accuracy = (masked + 0.01 * noise(random, DRAWS))[:, None].expand(-1, steps)
    return paths, dict(
        zip(name_of(paths[:, 1:]).flatten().tolist(), accuracy.flatten().tolist(), strict=True)
    )


def looked_up(*tables):
    table = {key: value for of in tables for key, value in of.items()}
    return lambda mask: table.get(int(name_of(mask)), 0.8)


@law(
    *("a_fifth_of_the_heads_goes", "two_fifths_of_the_heads_go", "some_heads_go_within_noise"),
    "a_third_goes_by_index",
    **{"true": 10, "false": -15},
)
def _(effect, random):
    by_score, accuracy = chosen(random, HEADS, 0.8 + effect)
    by_index, of_index = chosen(random, 6, 0.8 + effect)
    paths = {"importance": by_score, "head_max": by_index}
    return Drawn(random, paths=paths, accuracy=looked_up(accuracy, of_index))


@law("one_head_is_enough", true=10, false=-15)
def _(effect, random):
    return Drawn(random, accuracy=lambda mask: 0.8 + effect * bool(mask.any()))


@law("importance_beats_random", true=15, false=-15)
def _(effect, random):
    by_score, accuracy = chosen(random, HEADS, 0.8)
    at_random, without = chosen(random, HEADS, 0.8 - effect)
    paths = {"importance": by_score, "random": at_random}
    return Drawn(random, paths=paths, accuracy=looked_up(accuracy, without))


@law("index_beats_whole_layers", true=20, false=-20)
def _(effect, random):
    by_index, accuracy = chosen(random, 6, 0.8)
    by_layer, without = chosen(random, 6, 0.8 - effect)
    paths = {"head_max": by_index, "layer_max": by_layer}
    return Drawn(random, paths=paths, accuracy=looked_up(accuracy, without))


@law("the_worst_index_falls_first", true=15, false=-15)
def _(effect, random):
    best, accuracy = chosen(random, 6, 0.8)
    worst, without = chosen(random, 6, 0.8 - effect)
    paths = {"head_max": best, "head_min": worst}
    return Drawn(random, paths=paths, accuracy=looked_up(accuracy, without))


@law("one_kind_of_block_is_needed_most", true=7, false=0, word="too small to matter")
@law("early_blocks_are_needed_most", true=7, false=-7)
def _(effect, random):
    return Drawn(random, accuracy=lambda mask: 0.8 - effect * bool(mask[0]))


@law("pruned_beats_from_scratch", true=12, false=-12)
def _(effect, random):
    """The two agree on most images."""
    hard = torch.rand(IMAGES, generator=random)
    pruned, scratch = (
        SimpleNamespace(right=hard < 0.6 + more, images="these") for more in (effect, 0.0)
    )
    runs = {"pruned": pruned, "scratch": scratch}
    return Drawn(
        random, runs={name: SimpleNamespace(outcomes=lambda of=of: of) for name, of in runs.items()}
    )


# numbers of images


def areas(worse, better):
    def made(effect, random):
        of_image = noise(random, IMAGES)
        first = 0.4 + 0.1 * of_image + 0.1 * noise(random, IMAGES)
        return Drawn(random, images={better: 0.4 - effect + 0.1 * of_image, worse: first})

    return made


law("rollout_beats_raw_attention")(areas("attention", "rollout"))
law("relevance_maps_beat_rollout")(areas("rollout", "relevance_map"))
law("gradients_beat_rollout")(areas("rollout", "gradient_rollout"))
law("rollout_beats_chance")(areas("random", "rollout"))


@law("compact_heat_is_right", true=5, false=-5)
def _(effect, random):
    right = flags(0.6, random, IMAGES).double()
    heat = math.sqrt(2) * norm.ppf(0.5 + effect) * right + noise(random, IMAGES)
    return Drawn(random, images={"heat": heat, "right": right})


def paired(name, other, size):
    """Numbers of images, and others that lie below them by the effect; one image in five has none."""

    def made(effect, random):
        of_image = noise(random, IMAGES).masked_fill(
            torch.rand(IMAGES, generator=random) < 0.2, torch.nan
        )
        first = 0.5 + effect + size * (of_image + noise(random, IMAGES))
        return Drawn(random, images={name: first, other: 0.5 + size * of_image})

    return made


law("single_heads_beat_fixed_offsets")(paired("best_head", "best_offset", 0.2))
law("high_norm_tokens_lose_their_place")(paired("high_norm_error", "other_error", 0.3))
