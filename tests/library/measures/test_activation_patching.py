from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import Block, Donors, HeadBatch, HeadLayout, HeadSite, Patched
from mhprobe.measures.activation_patching import ActivationPatching, NothingToRestore
from mhprobe.measures.attribution_patching import AttributionPatching
from mhprobe.stats.significance import t_quantile
from models import images_for, labels_for, tiny_vit

LAYOUT = HeadLayout(
    (HeadSite("a", 0, 0, 4, 1),),
    tuple(Block(f"blocks.{i}", 0, f"blocks.{i}.norm2") for i in range(2)),
)


def batch_of(measure, clean, corrupt, paired=None, donor=None, **effect) -> HeadBatch:
    (need,) = measure.needs
    count = len(clean)
    paired = torch.ones(count, dtype=torch.bool) if paired is None else paired
    return HeadBatch(
        z=(torch.zeros(count, 1, measure.layout.num_heads, 1),),
        logits=torch.zeros(count, 2),
        valid=torch.ones(count, dtype=torch.bool),
        patched={need: Patched(clean, corrupt, paired, effect, donor)},
    )


def drawn(count: int = 200, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    clean, corrupt = (
        4 + torch.randn(count, generator=generator),
        torch.randn(count, generator=generator),
    )
    shares = torch.tensor([0.0, 0.1, 0.5, -0.2])
    noise = 0.3 * torch.randn(count, 4, generator=generator)
    return clean.double(), corrupt.double(), ((clean - corrupt)[:, None] * shares + noise).double()


def test_value_is_the_share_of_the_way_with_its_interval():
    clean, corrupt, x = drawn()
    measure = ActivationPatching(LAYOUT, estimates=["exact"])
    measure.update(batch_of(measure, clean, corrupt, exact=x))
    found = measure.columns()
    way = clean - corrupt
    torch.testing.assert_close(found["value"], x.mean(0) / way.mean())
    torch.testing.assert_close(found["effect"], x.mean(0))
    torch.testing.assert_close(found["size"], x.abs().mean(0) / way.mean())
    times = torch.randint(0, 200, (4000, 200), generator=torch.Generator().manual_seed(1))
    resampled = (
        x[times].mean(1) / way[times].mean(1)[:, None]
    )  # the bootstrap agrees with the delta method
    half = (found["high"] - found["low"]) / 2
    torch.testing.assert_close(half, 1.96 * resampled.std(0), rtol=0.1, atol=0)
    assert (
        (found["value"] - torch.tensor([0.0, 0.1, 0.5, -0.2])).abs() < 1.5 * half
    ).all()  # three standard errors
    assert (found["p_holm"] < 0.05).tolist() == [False, True, True, True]


def with_donors(
    images: int,
    donors: int,
    seed: int,
    heads: int = 4,
    shared: float = 1.0,
    use: Tensor | None = None,
):
    """Pairs of images and donors, both drawn anew: donor (B,), clean, corrupt, x (B, heads); every head's share is .5.

    shared: how much of a head's effect on an image is its donor's. use: (donors,) how often each is
    drawn.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    donor = torch.multinomial(
        torch.ones(donors) if use is None else use, images, True, generator=generator
    )
    clean, corrupt = 4 + normal(images), normal(images) + shared * normal(donors)[donor]
    x = (
        0.5 * (clean - corrupt)[:, None]
        + normal(images, heads)
        + shared * normal(donors, heads)[donor]
    )
    return donor, clean, corrupt, x


def of_pool(donors: int, layout: HeadLayout = LAYOUT) -> ActivationPatching:
    """A measure that was shown so many donors."""
    measure = ActivationPatching(layout, donors=donors, estimates=["exact"])
    pixels = torch.arange(donors).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).float()
    measure.pool.add(torch.arange(donors), [pixels, torch.arange(donors) % 2])
    measure.end_select()
    assert isinstance(next(iter(measure.needs)).donors, Donors)
    return measure


MANY = HeadLayout((HeadSite("a", 0, 0, 100, 1),))  # each head is a draw of its own


def covered(columns) -> float:
    return ((columns["low"] <= 0.5) & (columns["high"] >= 0.5)).double().mean().item()


def test_intervals_hold_the_truth_over_draws_of_donors():
    inside, naive = [], []
    for seed in range(30):
        donor, clean, corrupt, x = with_donors(200, 20, seed, heads=100)
        measure, plain = of_pool(20, MANY), of_pool(20, MANY)
        for rows in torch.arange(200).split(64):
            measure.update(
                batch_of(measure, clean[rows], corrupt[rows], donor=donor[rows], exact=x[rows])
            )
        inside.append(covered(measure.columns()))
        plain.update(
            batch_of(plain, clean, corrupt, exact=x)
        )  # as if no two pairs had the same donor
        naive.append(covered(plain.columns()))
    # heads of a seed share donors' uses and the way: as if of 600 draws
    assert sum(inside) / 30 == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / 600) ** 0.5)
    assert sum(naive) / 30 < 0.75  # negative control: ten images share a donor


def test_intervals_hold_where_a_few_donors_serve_most_images():
    inside, naive = [], []
    for seed in range(30):
        donor, clean, corrupt, x = with_donors(
            300, 20, seed, heads=100, use=torch.arange(1, 21) ** -0.6
        )
        measure = of_pool(20, MANY)
        measure.update(batch_of(measure, clean, corrupt, donor=donor, exact=x))
        got = measure.columns()
        inside.append(covered(got))
        reach = (
            (got["high"] - got["value"]) * 2.0930 / t_quantile(measure._freedom)
        )  # as if they served equally many
        naive.append(covered({"low": got["value"] - reach, "high": got["value"] + reach}))
    assert sum(inside) / 30 == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / 600) ** 0.5)
    assert sum(naive) / 30 < 0.935


def test_intervals_hold_where_the_images_of_a_batch_are_each_others_donors():
    inside, naive = [], []
    for seed in range(30):
        measure, plain = (ActivationPatching(MANY, estimates=["exact"]) for _ in range(2))
        generator = torch.Generator().manual_seed(seed)
        for number in range(6):
            image = torch.randn(32, 100, generator=generator, dtype=torch.float64)
            donor, clean, corrupt, x = with_donors(
                32, 32, 1000 * seed + number, heads=100, shared=0.0
            )
            x = (
                x + 2 * image + 2 * image[donor]
            )  # what an image brings into its pair and into those it gives to
            measure.update(batch_of(measure, clean, corrupt, donor=donor, exact=x))
            plain.update(batch_of(plain, clean, corrupt, exact=x))
        inside.append(covered(measure.columns()))
        naive.append(covered(plain.columns()))
    assert sum(inside) / 30 == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / 600) ** 0.5)
    assert sum(naive) / 30 < 0.9


def test_errors_are_the_clustered_ones_by_hand():
    measure = of_pool(8)
    donor, clean, corrupt, x = with_donors(60, 8, 1)
    donor = donor.clamp(max=6)  # the last is nobody's
    measure.update(batch_of(measure, clean, corrupt, donor=donor, exact=x))
    got = measure.columns()
    way = clean - corrupt
    residual = x - got["value"] * way[:, None]
    by_donor = torch.stack([residual[donor == d].sum(0) for d in range(7)])
    error = (by_donor.square().sum(0) * 7 / 6).sqrt() / way.sum()
    served = donor.bincount().double()
    freedom = float(served.square().sum() ** 2 / served.pow(4).sum() - 1)
    reach = stats.t.ppf(0.975, freedom)
    torch.testing.assert_close((got["high"] - got["value"]) / reach, error, rtol=1e-9, atol=0)
    assert int(got["donors"]) == 7 and int(got["pairs"]) == 60


def test_images_without_a_twin_do_not_count():
    clean, corrupt, x = drawn()
    paired = torch.arange(200) < 150
    some = ActivationPatching(LAYOUT, estimates=["exact"])
    some.update(batch_of(some, clean, corrupt, paired, exact=x))
    fewer = ActivationPatching(LAYOUT, estimates=["exact"])
    fewer.update(batch_of(fewer, clean[:150], corrupt[:150], exact=x[:150]))
    torch.testing.assert_close(some.compute(), fewer.compute())
    assert int(some.columns()["pairs"]) == 150 and int(some.columns()["images"]) == 200
    none = ActivationPatching(LAYOUT, estimates=["exact"])
    none.update(batch_of(none, clean, corrupt, paired & False, exact=x))
    with pytest.raises(UserError, match="none of 200 images has a corrupted twin"):
        none.compute()


def test_estimates_are_held_against_what_is_exact():
    clean, corrupt, x = drawn()
    measure = ActivationPatching(LAYOUT)
    atp = x * torch.tensor([1.0, 1.0, 0.1, 1.0]).double() + 0.01  # the best head is underrated
    measure.update(batch_of(measure, clean, corrupt, exact=x, atp=atp, graddrop=x.abs()))
    found = measure.columns()
    torch.testing.assert_close(found["difference"], found["atp"] - found["value"])
    assert found["places"].tolist() == [0, -1, 1, 0]
    assert found["spearman_graddrop"] == pytest.approx(1) and found[
        "spearman_atp"
    ] == pytest.approx(0.8)
    cheap = AttributionPatching(LAYOUT)
    cheap.update(batch_of(cheap, clean, corrupt, atp=atp))
    torch.testing.assert_close(cheap.compute(), found["atp"])
    assert "graddrop" not in cheap.columns()


@pytest.mark.filterwarnings("ignore::mhprobe.measures.activation_patching.NothingToRestore")
@pytest.mark.parametrize("depth", [1, 2])
def test_in_a_network_of_one_block_graddrop_alone_is_missing_and_says_why(depth):
    model = tiny_vit(depth=depth)
    measure = ActivationPatching(mhprobe.attach(model).layout)
    measure.update(mhprobe.record(model, images_for(model, 6), labels_for(6), needs=measure.needs))
    missing = {name for name, column in measure.columns().items() if column.isnan().all()}
    dropped = {"graddrop", *(f"spearman_graddrop{end}" for end in ("", "_low", "_high"))}
    assert (
        (missing & dropped == dropped and "sees 1 of this" in measure.empty)
        if depth == 1
        else not measure.empty
    )
    assert "value" not in missing and "atp" not in missing


def test_p_is_corrected_for_how_many_heads_there_are():
    """Holm: the smallest p counts as often as there are heads, the largest once."""
    generator = torch.Generator().manual_seed(4)
    clean, corrupt = (
        4 + torch.randn(200, generator=generator),
        torch.randn(200, generator=generator),
    )
    clean, corrupt, noise = (
        clean.double(),
        corrupt.double(),
        torch.randn(200, 4, generator=generator).double(),
    )
    x = (noise - noise.mean(0)) / noise.std(0)
    x[:, 0] += 2.3 / 200**0.5  # standard errors from 0: p = .02

    def p(effects):
        site = HeadSite("a", 0, 0, effects.shape[1], 1)
        measure = ActivationPatching(HeadLayout((site,)), estimates=["exact"])
        measure.update(batch_of(measure, clean, corrupt, exact=effects))
        return measure.columns()["p_holm"]

    alone = torch.cat([p(x[:, [head]]) for head in range(4)])
    together, first = p(x), int(alone.argmin())
    assert alone[first] < 0.05 < 4 * alone[first] < 1
    assert float(together[first]) == pytest.approx(4 * float(alone[first]), rel=1e-6)
    assert float(together.max()) >= float(alone.max())


def test_it_warns_where_nothing_is_lost():
    clean, _, x = drawn()
    measure = ActivationPatching(LAYOUT, estimates=["exact"])
    measure.update(batch_of(measure, clean, clean.roll(1), exact=x))
    with pytest.warns(NothingToRestore, match="there is nothing to restore"):
        measure.compute()


def test_donors_are_of_the_selection_images():
    model = tiny_vit()
    mhprobe.attach(model)
    x, labels = images_for(model, 12), labels_for(12)
    measure = ActivationPatching(mhprobe.attach(model).layout, donors=5, estimates=["exact"])
    measure.select(mhprobe.record(model, x, labels, set()))
    measure.end_select()
    (need,) = measure.needs
    assert need.donors is not None and len(need.donors.labels) == 5
    assert all((x == image).flatten(1).all(1).any() for image in need.donors.images)
    measure.reset()
    (need,) = measure.needs
    assert need.donors is None


@pytest.mark.parametrize(
    ("options", "words"),
    [({"donors": 1}, "donors"), ({"estimates": ["graddrop"]}, "first of estimates")],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        ActivationPatching(LAYOUT, **options)
