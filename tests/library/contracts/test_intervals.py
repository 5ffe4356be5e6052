"""The 95 % intervals of measures: against slow ones, their width, and how often they hold what they are about.

Coverage is simulated for each way to an interval: hundreds of sets of images are drawn anew, all in
one measure, as heads (or pairs, or layers) that have nothing to do with each other. Images are the
unit: the tokens of one are alike.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_measures import LAYOUT, MEASURES, build, random_batch, selected
from torch import Tensor

import mhprobe
from mhprobe.errors import UserError
from mhprobe.framework.questions.measured import measured
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, Patching
from mhprobe.measures.attention_range import AttentionRange
from mhprobe.measures.base import Measure
from mhprobe.measures.cca import CCA
from mhprobe.measures.cka import CKA
from mhprobe.measures.entropy import Entropy
from mhprobe.measures.js_distance import JSDistance
from mhprobe.measures.layer_similarity import LayerSimilarity
from mhprobe.measures.no_op import NoOp
from mhprobe.measures.object_attention import ObjectAttention
from mhprobe.measures.output_frequency import OutputFrequency
from mhprobe.measures.parts.image_sums import MeanOverImages
from mhprobe.measures.parts.jackknife import NoInterval, affordable, fold_of, jackknife
from mhprobe.measures.position import Position
from mhprobe.measures.procrustes import Procrustes
from mhprobe.measures.pwcca import PWCCA
from mhprobe.measures.sinks import Sinks
from mhprobe.measures.svcca import SVCCA
from mhprobe.stats.intervals import REAL, SHARE, SIZE, interval, p_of_interval
from models import images_for, labels_for, tiny_swin, tiny_vit
from oracles import cca, cka, intervals, procrustes, pwcca, svcca

pytestmark = [
    pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages"),
]

SIMILARITIES = {
    "svcca": (SVCCA, svcca.similarity),
    "cca": (CCA, cca.similarity),
    "pwcca": (PWCCA, pwcca.similarity),
    "cka": (CKA, cka.similarity),
    "cka debiased": (partial(CKA, debiased=True), cka.debiased),
    "procrustes": (Procrustes, procrustes.similarity),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Sums(MeanOverImages):
    """Rows of numbers per image, as they are given."""

    def __init__(self, rows: int, within=REAL, function=None, numbers: int = 2) -> None:
        self.numbers = numbers
        super().__init__(HeadLayout((HeadSite("a", 0, 0, rows, 1),)))
        self.within, self.options = within, () if function is None else (function,)

    def update(self, batch) -> None: ...

    def take(self, *numbers_BR: Tensor | float) -> Sums:
        self.add_images(slice(None), *numbers_BR)
        self.images += len(numbers_BR[0])
        return self

    def finish(self) -> dict[str, Tensor]:
        return self.over_images(*self.options)


def batch_of(z: list[Tensor] | None = None, attn: list[Tensor] | None = None) -> HeadBatch:
    images = len((z or attn or ())[0])
    valid = torch.ones(images, dtype=torch.bool)
    return HeadBatch(
        z=tuple(z or ()), attn=tuple(attn or ()), logits=torch.zeros(images, 2), valid=valid
    )


def related(
    pairs: int, images: int, seed: int = 0, width: int = 2, tokens: int = 3
) -> list[Tensor]:
    """Per pair (images, tokens, 2, width): two heads that share a part of what they see; tokens of an image are alike.

    All pairs follow one law, and have nothing else in common.
    """
    shared = normal(pairs, images, 1, width, seed=seed) + 0.3 * normal(
        pairs, images, tokens, width, seed=seed + 1
    )
    own = normal(pairs, images, 1, 2, width, seed=seed + 2)
    own = own + 0.3 * normal(pairs, images, tokens, 2, width, seed=seed + 3)
    maps = normal(2, width, width, seed=99)
    return list(0.7 * own + torch.einsum("pntc,hcd->pnthd", shared, maps))


def layers(count: int, heads: int, width: int = 2) -> HeadLayout:
    return HeadLayout(
        tuple(HeadSite(f"s{number}", 0, number, heads, width) for number in range(count))
    )


def covered(low: Tensor, high: Tensor, truth: float | Tensor) -> float:
    return ((low <= truth) & (truth <= high)).double().mean().item()


def within_binomial_error(share: float, draws: int) -> bool:
    """Three standard deviations of a share of ``draws`` draws that is truly .95."""
    return abs(share - 0.95) < 3 * (0.95 * 0.05 / draws) ** 0.5


def shares(images: int, draws: int, seed: int = 0) -> Tensor:
    """Many near 0, a few near 1; mean .1."""
    return (
        torch.rand(
            images, draws, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        ** 9
    )


NUMBERS = {  # of an image and a draw: where the mean lies, how to draw, the true mean
    "a size": (SIZE, lambda n, r: sum(normal(n, r, seed=s).square() for s in range(4)), 4.0),
    "a share near 0": (SHARE, shares, 0.1),
    "a share near 1": (SHARE, lambda n, r: 1 - shares(n, r), 0.9),
    "a difference": (REAL, lambda n, r: normal(n, r).square() - normal(n, r, seed=1).square(), 0.0),
}


@pytest.mark.parametrize("of", NUMBERS)
def test_a_mean_over_images_lies_in_its_interval_as_often_as_is_said(of):
    within, draw, truth = NUMBERS[of]
    got = Sums(4000, within).take(draw(100, 4000), 1.0).columns()
    assert within_binomial_error(covered(got["low"], got["high"], truth), 4000)


def test_without_its_scale_a_skewed_share_would_be_missed_too_often():
    plain, scaled = (
        Sums(4000, within).take(shares(60, 4000), 1.0).columns() for within in (REAL, SHARE)
    )
    assert within_binomial_error(covered(scaled["low"], scaled["high"], 0.1), 4000)
    assert covered(plain["low"], plain["high"], 0.1) < 0.935


def test_images_of_many_queries_count_as_one_each():
    """A ratio of sums: a text with more words has more weight, and says as much as any other text."""
    words = torch.randint(5, 60, (100, 4000), generator=torch.Generator().manual_seed(2)).double()
    level = 3 + normal(100, 4000) + words / 30  # long texts have larger values
    got = Sums(4000, SIZE).take(level * words, words).columns()
    mean, square = 32.0, 32.0**2 + (55**2 - 1) / 12  # of the words: 5 to 59
    truth = 3 + square / mean / 30
    assert within_binomial_error(covered(got["low"], got["high"], truth), 4000)
    # as if each word were an image
    many, error = words.sum(0), level.std(0) / words.sum(0).sqrt()
    naive = interval(got["value"], error, int(many.min()), SIZE)
    assert covered(*naive, truth) < 0.6


def test_a_function_of_four_sums_lies_in_its_interval_as_often_as_is_said():
    a, b = (sum(normal(100, 4000, seed=s + more).square() for s in range(4)) for more in (0, 4))
    special = 1.0 + torch.randint(0, 3, (100, 4000), generator=torch.Generator().manual_seed(3))
    measure = Sums(4000, SIZE, lambda s: s[0] / s[1] / (s[2] / s[3]), numbers=4)
    got = measure.take((a + b) * special, special, b + 4, 1.0).columns()
    assert within_binomial_error(covered(got["low"], got["high"], 1.0), 4000)


def looking_at(share: Tensor, grid: tuple[int, int], seed: int = 0) -> Tensor:
    """(B, 1, H, T, T): each query looks at itself with the image's and head's probability (B, H), else at the first."""
    tokens = grid[0] * grid[1]
    generator = torch.Generator().manual_seed(seed)
    itself = (
        torch.rand(*share.shape, tokens, generator=generator, dtype=torch.float64)
        < share[..., None]
    )
    key = torch.where(itself, torch.arange(tokens), 0)
    return torch.nn.functional.one_hot(key, tokens).double()[:, None]


def test_a_favourite_offset_lies_in_its_interval_as_often_as_is_said():
    layout = HeadLayout((HeadSite("a", 0, 0, 1000, 1, grid=(2, 3), pixels=(8.0, 8.0)),))
    measure = Position(layout)
    measure.update(batch_of(attn=[looking_at(1 - shares(80, 1000), (2, 3))]))
    got = measure.columns()
    truth = 0.9 + 0.1 / 6  # the first token looks at itself anyway
    assert (got["dy"] == 0).all() and (got["dx"] == 0).all()
    assert within_binomial_error(covered(got["low"], got["high"], truth), 1000)


def test_the_range_of_attention_lies_in_its_interval_as_often_as_is_said():
    layout = HeadLayout((HeadSite("a", 0, 0, 500, 1, grid=(1, 6), pixels=(8.0, 8.0)),))
    decay = normal(60, 1, 500, 1, 1).exp()
    steps = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    attn = (-decay * steps).softmax(-1)
    measure = AttentionRange(layout)
    measure.update(batch_of(attn=[attn]))
    got = measure.columns()
    assert within_binomial_error(covered(got["low"], got["high"], got["value"].mean()), 500)


@pytest.mark.parametrize("name", ["svcca", "cka", "procrustes"])
def test_a_similarity_lies_in_its_interval_as_often_as_is_said(name):
    # of heads all of whose directions are related: with some at the level of noise it is 97 to 98 %
    draws = 250
    measure = SIMILARITIES[name][0](layers(draws, 2), null_draws=1)
    measure.update(batch_of(related(draws, 60)))
    got = {
        column: part[0::2, 1::2].diagonal()
        for column, part in measure.columns().items()
        if part.dim() == 2
    }
    # what as many images give on average
    assert within_binomial_error(covered(got["low"], got["high"], got["value"].mean()), draws)
    # as if the tokens of an image had nothing to do with each other: half as wide
    half = (got["high"] - got["low"]) / 4
    assert covered(got["value"] - half, got["value"] + half, got["value"].mean()) < 0.9


def test_the_likeness_of_two_layers_lies_in_its_interval_as_often_as_is_said():
    draws = 200
    measure = LayerSimilarity(layers(2 * draws, 1), null_draws=1)
    pairs = related(draws, 60)
    measure.update(batch_of([pair[:, :, [head]] for pair in pairs for head in (0, 1)]))
    got = {
        column: part[0::2, 1::2].diagonal()
        for column, part in measure.columns().items()
        if part.dim() == 2
    }
    assert within_binomial_error(covered(got["low"], got["high"], got["value"].mean()), draws)


def test_half_of_the_images_make_every_interval_wider_by_the_root_of_two():
    """All measures at once; where values are not a mean, a fold of ten says how wide, give or take a quarter."""
    ratios, made = {}, {}
    for name in MEASURES:
        measures = [selected(build(name, LAYOUT)) for _ in range(3)]
        if measures[0].no_interval:
            continue
        needs = frozenset(
            need for measure in measures for need in measure.needs if not isinstance(need, str)
        )
        if any(isinstance(need, Patching) for need in needs):
            continue  # its error is by donor, and there are as many donors
        if needs not in made:  # what is asked for by a word is in every batch
            made[needs] = [
                alike(random_batch(images, needs=needs)) for images in (range(80), range(80, 160))
            ]
        for measure, batches in zip(
            measures, (made[needs], made[needs][:1], made[needs][1:]), strict=True
        ):
            for batch in batches:
                measure.update(batch)
        widths = [width(measure.columns(), measure.kind) for measure in measures]
        if len(widths[0]) < 2:
            continue  # a single one says little; on this grid output_frequency has no value
        ratios[name] = ((widths[1] + widths[2]) / 2 / widths[0]).log().mean().exp().item()
    assert len(ratios) > 20
    assert {
        name: ratio for name, ratio in ratios.items() if abs(ratio / 2**0.5 - 1) > 0.3
    } == {}  # of several widths
    assert np.mean(list(ratios.values())) == pytest.approx(2**0.5, rel=0.05)


def alike(batch: HeadBatch) -> HeadBatch:
    """With heads and layers that share something: where they share nothing similarity is chance, which falls with n."""
    shared = batch.z[0][:, :, :1].clone()
    for z in batch.z:
        z += z.mean(1, keepdim=True) + 2 * shared
    for stream in batch.stream or ():
        for part in stream[1:]:
            part += 2 * batch.stream[0].before
    return batch


def width(columns: dict[str, Tensor], kind: str) -> Tensor:
    wide = columns["high"] - columns["low"]
    return wide[wide > 0] if kind == "per_head" else wide[wide.triu(1) > 0]


def fed(measure: Measure, z: list[Tensor], size: int = 7) -> Measure:
    for part in zip(*(each.split(size) for each in z), strict=True):
        measure.update(batch_of(list(part)))
    return measure


@pytest.mark.parametrize("name", SIMILARITIES)
def test_the_jackknife_of_a_similarity_is_that_of_leaving_folds_of_images_out(name):
    kind, similarity = SIMILARITIES[name]
    (z,) = related(1, 40)
    measure = fed(kind(layers(1, 2), null_draws=1), [z])
    got = measure.columns()
    x, y = (z[:, :, head].numpy() for head in (0, 1))

    def of(images: np.ndarray) -> float:
        return similarity(x[images].reshape(-1, 2), y[images].reshape(-1, 2))

    low, high = intervals.left_out(of, fold_of(batch_of([z])).tolist(), measure.within)
    assert float(got["value"][0, 1]) == pytest.approx(of(np.arange(40)), rel=1e-9)
    # derivatives of the oracle's scale are differences: six digits
    assert (float(got["low"][0, 1]), float(got["high"][0, 1])) == pytest.approx(
        (low, high), rel=1e-5
    )
    assert got["low"][0, 0] == got["value"][0, 0] == got["high"][0, 0] == 1


def test_the_range_of_attention_has_the_jackknife_of_leaving_folds_of_images_out():
    layout = HeadLayout((HeadSite("a", 0, 0, 2, 1, grid=(2, 3), pixels=(8.0, 8.0)),))
    attn = (3 * normal(30, 1, 2, 6, 6)).softmax(-1)

    def of(images: np.ndarray, head: int) -> float:
        measure = AttentionRange(layout)
        measure.update(batch_of(attn=[attn[images]]))
        return float(measure.compute()[head])

    measure = AttentionRange(layout)
    measure.update(batch_of(attn=[attn]))
    got, folds = measure.columns(), fold_of(batch_of(attn=[attn])).tolist()
    for head in range(2):
        expected = intervals.left_out(partial(of, head=head), folds, SIZE)
        assert (float(got["low"][head]), float(got["high"][head])) == pytest.approx(
            expected, rel=1e-5
        )
    assert int(got["folds"]) == len(set(folds))


SKEWED = ("gate_importance", "fisher")  # sizes and squares of slopes, of which few are large


def test_means_have_the_interval_of_one_number_per_image():
    """Every measure of heads whose value is the mean of what single images give, found by trying."""
    found = []
    batches = [random_batch(range(image, image + 1)) for image in range(12)]
    for name in MEASURES:
        whole = selected(build(name, LAYOUT))
        if (
            whole.no_interval
            or whole.kind != "per_head"
            or not all(isinstance(need, str) for need in whole.needs)
        ):
            continue
        values = []
        for batch in batches:
            whole.update(batch)
            single = selected(build(name, LAYOUT))
            single.update(batch)
            values.append(single.compute().tolist())
        columns = whole.columns()
        if not np.allclose(np.mean(values, 0), columns["value"], rtol=1e-9, equal_nan=True):
            continue
        found.append(name)
        for head in columns["value"].isfinite().nonzero()[:, 0].tolist():
            slow = intervals.of_skewed if name in SKEWED else intervals.of_mean
            expected = slow([each[head] for each in values], whole.within)
            got = float(columns["low"][head]), float(columns["high"][head])
            # derivatives of the oracle's scale are differences: six digits
            assert got == pytest.approx(expected, rel=1e-5, abs=1e-9), name
    assert len(found) > 8


def test_a_ratio_has_the_interval_of_the_slow_way():
    x, w = normal(30, 2).square(), 1 + normal(30, 2, seed=1).square()
    for within in (REAL, SIZE):
        got = Sums(2, within).take(x * w, w).columns()
        for row in range(2):
            low, high = intervals.of_ratio((x * w)[:, row].tolist(), w[:, row].tolist(), within)
            assert (float(got["low"][row]), float(got["high"][row])) == pytest.approx(
                (low, high), rel=1e-6
            )


def test_one_image_or_one_fold_has_no_interval_and_no_spread_has_no_width():
    one = Sums(2, SHARE).take(torch.full((1, 2), 0.5), 1.0).columns()
    assert one["low"].isnan().all() and one["high"].isnan().all() and (one["value"] == 0.5).all()
    for value in (0.0, 0.5, 1.0):
        same = Sums(2, SHARE).take(torch.full((9, 2), value), 1.0).columns()
        assert (same["low"] == value).all() and (same["high"] == value).all()
    single = jackknife(torch.ones(3), lambda fold: torch.ones(3), torch.tensor([0, 7, 0]))
    assert single["low"].isnan().all()
    one = torch.ones(1)
    assert interval(one, one, 0)[0].isnan() and p_of_interval(one, one, 0).isnan()


def test_an_interval_does_not_show_the_rounding_of_its_sums():
    """Images that differ in the eighth digit, and whose sums are made in another order."""
    level = 2.8332 * (1 + 1e-8 * normal(9, 500))
    whole, by_image = Sums(500).take(level, 1.0), Sums(500)
    for image in level.flip(0):
        by_image.take(image[None], 1.0)
    torch.testing.assert_close(by_image.columns()["low"], whole.columns()["low"], rtol=1e-9, atol=0)
    wide = Sums(1).take(torch.tensor([[2.8], [2.9]]), 1.0).columns()
    assert float(wide["high"] - wide["low"]) == pytest.approx(12.7062 * 0.1, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "count", "few"), [(Entropy, 1, True), (Entropy, 2, False), (AttentionRange, 3, True)]
)
def test_an_interval_that_few_images_cannot_have_is_said_beside_the_table(kind, count, few):
    model = tiny_vit()
    measure = kind(mhprobe.attach(model).layout)
    measure.update(mhprobe.record(model, images_for(model, count), needs={"attn"}))
    columns = measure.columns()
    assert columns["low"].isnan().all() == few
    material = SimpleNamespace(
        names=["it"], slopes_of="loss", about=lambda _: measure, control=lambda _: None
    )
    material.columns = lambda _: columns
    for part in measured(material).values():
        said = f"image{'s' * (count > 1)} gave no low, high: the interval of a mean, a test and a chance level take 2"
        assert (said in part.about and "which 13 images nearly always fill" in part.about) == few


@pytest.mark.parametrize("name", MEASURES)
def test_every_column_that_one_image_leaves_empty_is_named_beside_the_table(name):
    measure = selected(build(name, LAYOUT))
    measure.update(random_batch(range(1), needs=measure.needs))
    try:
        columns = measure.columns()
    except UserError as refused:
        assert "more images" in str(refused) or "of 1 images" in str(refused)
        return
    material = SimpleNamespace(
        names=["it"], slopes_of="loss", about=lambda _: measure, control=lambda _: None
    )
    material.columns = lambda _: columns
    about = measured(material)["it"].about
    empty = [key for key, column in columns.items() if column.isnan().all() and key not in about]
    assert set(empty) <= (set() if columns["value"].isfinite().any() else {"low", "high"})


@pytest.mark.parametrize(
    ("make", "kind", "columns", "why"),
    [
        (
            tiny_swin,
            NoOp,
            "gradient_cls, gradient_registers",
            "there are no such tokens in the network",
        ),
        (
            tiny_vit,
            NoOp,
            "gradient_registers, gradient_high_norm",
            "or none of such a norm in these images",
        ),
        (
            partial(tiny_vit, img_size=8),
            OutputFrequency,
            "value, null, block_input",
            "share no frequency but 0",
        ),
        (partial(tiny_vit, img_size=4), OutputFrequency, "value, null", "or it is of one token"),
        (tiny_vit, OutputFrequency, "", ""),
        (
            tiny_vit,
            JSDistance,
            "null, ratio, p",
            "and between layers (pairs=stage or all); null needs two",
        ),
        (
            tiny_swin,
            ObjectAttention,
            "cls, held_out",
            "the network has no class token, no patch can meet",
        ),
        (tiny_swin, Entropy, "class_query", "the network has no class token"),
        (tiny_swin, Sinks, "class_token", "the network has no class token"),
        (tiny_vit, Entropy, "", ""),
    ],
)
def test_why_no_head_has_a_number_is_said_beside_the_table(make, kind, columns, why):
    """Once an empty column, and a map without a colour; of one image low and high are empty for another reason."""
    model = make()
    measure = kind(mhprobe.attach(model).layout)
    objects = (images_for(model, 1)[:, 0] > 0).long()
    measure.update(
        mhprobe.record(
            model, images_for(model, 1), labels_for(1), needs=measure.needs, objects=objects
        )
    )
    material = SimpleNamespace(
        names=["it"], slopes_of="loss", about=lambda _: measure, control=lambda _: None
    )
    material.columns = lambda _: measure.columns()
    about = measured(material)["it"].about
    assert (
        f" No head has a number in {columns}" in about and why in about
        if why
        else "No head" not in about
    )


def test_fewer_than_five_folds_have_no_interval():
    def of(folds: int) -> Tensor:
        return jackknife(
            torch.ones(2), lambda fold: torch.full((2,), 1.0 + fold), torch.ones(folds).long()
        )["low"]

    assert of(4).isnan().all() and of(5).isfinite().all()


def test_the_p_of_an_interval_is_that_of_students_test():
    from scipy import stats

    x = normal(12, 3) + torch.tensor([0.0, 0.5, 2.0])
    error = x.std(0) / 12**0.5
    low, _ = interval(x.mean(0), error, 11)
    expected = stats.ttest_1samp(x.numpy(), 0.0).pvalue
    np.testing.assert_allclose(
        p_of_interval(x.mean(0), x.mean(0) - low, 11).numpy(), expected, rtol=1e-6
    )


def test_intervals_that_take_too_much_memory_are_left_out_with_a_word():
    assert affordable("svcca", 64, None, 768**2 * 12) == 8  # the heads of a ViT-B, layer by layer
    assert affordable("layer_similarity", 8, None, 4608**2) == 8  # all layers of a ViT-S at once
    assert affordable("svcca", 5, None, 768**2) == 5  # no more folds than there are
    with pytest.warns(
        NoInterval, match="svcca: low and high stay empty: .* 5.1 GiB, more than 2. interval=true"
    ):
        assert affordable("svcca", 64, None, 9216**2) == 1  # all heads of a ViT-B at once
    assert affordable("svcca", 64, True, 9216**2) == 8  # asked for
    (z,) = related(1, 40)
    without = fed(SVCCA(layers(1, 2), null_draws=1, interval=False), [z]).columns()
    assert without["low"].isnan()[0, 1] and without["value"].isfinite().all()
