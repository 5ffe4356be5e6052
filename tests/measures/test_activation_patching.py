from __future__ import annotations

import pytest
import torch

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, Patched
from mhprobe.measures.activation_patching import ActivationPatching, NothingToRestore
from mhprobe.measures.attribution_patching import AttributionPatching
from models import images_for, labels_for, tiny_vit

LAYOUT = HeadLayout((HeadSite("a", 0, 0, 4, 1),))


def batch_of(measure, clean, corrupt, paired=None, **effect) -> HeadBatch:
    (need,) = measure.needs
    count = len(clean)
    paired = torch.ones(count, dtype=torch.bool) if paired is None else paired
    return HeadBatch(
        z=(torch.zeros(count, 1, measure.layout.num_heads, 1),),
        logits=torch.zeros(count, 2), valid=torch.ones(count, dtype=torch.bool),
        patched={need: Patched(clean, corrupt, paired, effect)},
    )  # fmt: skip


def drawn(count: int = 200, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    clean, corrupt = 4 + torch.randn(count, generator=generator), torch.randn(count, generator=generator)
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
    resampled = x[times].mean(1) / way[times].mean(1)[:, None]  # the bootstrap agrees with the delta method
    half = (found["high"] - found["low"]) / 2
    torch.testing.assert_close(half, 1.96 * resampled.std(0), rtol=0.1, atol=0)
    assert ((found["value"] - torch.tensor([0.0, 0.1, 0.5, -0.2])).abs() < 1.5 * half).all()  # three standard errors
    assert (found["p_holm"] < 0.05).tolist() == [False, True, True, True]


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
    assert found["spearman_graddrop"] == pytest.approx(1) and found["spearman_atp"] == pytest.approx(0.8)
    cheap = AttributionPatching(LAYOUT)
    cheap.update(batch_of(cheap, clean, corrupt, atp=atp))
    torch.testing.assert_close(cheap.compute(), found["atp"])
    assert "graddrop" not in cheap.columns()


def test_p_is_corrected_for_how_many_heads_there_are():
    """Holm: the smallest p counts as often as there are heads, the largest once."""
    generator = torch.Generator().manual_seed(4)
    clean, corrupt = 4 + torch.randn(200, generator=generator), torch.randn(200, generator=generator)
    clean, corrupt, noise = clean.double(), corrupt.double(), torch.randn(200, 4, generator=generator).double()
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
    ("options", "words"), [({"donors": 1}, "donors"), ({"estimates": ["graddrop"]}, "first of estimates")]
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        ActivationPatching(LAYOUT, **options)
