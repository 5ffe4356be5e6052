"""HeadBench: plants are what they say, and a measure that knows is told from one that does not."""

from __future__ import annotations

import pytest
import torch

from drawn import assert_nothing_is_clipped
from mhprobe.backbones.blank import Blank
from mhprobe.errors import UserError
from mhprobe.headbench import world
from mhprobe.headbench.bench import Row, bench
from mhprobe.headbench.entries import entries
from mhprobe.headbench.grow import grow, known
from mhprobe.measures.base import Measure
from mhprobe.report.figures import headbench
from mhprobe.stats.auroc import auroc


class Oracular(Measure):
    """Knows which head is dead: it looks for columns of W_O that are zero. Enters as a user's measure would."""

    needs = frozenset({"weights"})
    kind = "per_head"

    def update(self, batch) -> None:
        self.alive = torch.cat([part.output.abs().sum((1, 2)) for part in batch.weights]).double()
        self.images += batch.valid.sum()

    def finish(self):
        return {"value": self.alive}


class Blind(Oracular):
    def finish(self):
        return {"value": torch.zeros_like(self.alive)}


def test_auroc_counts_pairs_and_halves_ties():
    assert auroc(torch.tensor([2.0, 3.0]), torch.tensor([1.0])) == 1
    assert auroc(torch.tensor([1.0]), torch.tensor([1.0, 1.0])) == 0.5
    assert auroc(torch.tensor([0.0]), torch.tensor([1.0, torch.nan])) == 0


def test_images_change_where_they_are_told_to_and_nowhere_else():
    whole, other = world.draw(8, 3), world.draw(8, 3, marked=(world.draw(8, 3).marks + 1) % 4)
    corner = torch.zeros(32, 32, dtype=torch.bool)
    corner[:4, :4] = True
    changed = (whole.images != other.images).any(1).any(0)
    assert changed[corner].any() and not changed[~corner].any()
    shown = world.draw(8, 3, shown=(whole.labels + 1) % 4)
    changed = (whole.images != shown.images).any(1)
    assert (changed <= whole.objects.bool()).all() and changed.any()


@pytest.mark.parametrize("family", ["vit", "swin"])
def test_a_blank_model_passes_the_stream_on_and_has_nothing_that_was_drawn(family):
    torch.manual_seed(0)
    blank = Blank(family, grid=8, patch=4, classes=3)
    torch.manual_seed(1)  # timm draws what it starts from
    for one, other in zip(blank.model.parameters(), Blank(family, 8, 4, 3).model.parameters(), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        blank.embed(torch.randn(blank.widths()[0], 3 * 4 * 4))
        last = 1 if family == "swin" else len(blank.layout.sites) - 1  # behind it Swin merges tokens
        before, _ = blank.around_first_norm(0, torch.randn(2, 3, 32, 32))
        torch.manual_seed(1)
        images = torch.randn(2, 3, 32, 32)
        (first, _), (later, _) = (blank.around_first_norm(site, images) for site in (0, last))
    assert torch.equal(first, later) and not torch.equal(first, before)


def test_plants_are_found_by_their_files_and_name_plants_and_signs_that_there_are():
    plants = known()
    assert len(plants) >= 11
    for plant in plants.values():
        assert set(plant.like) <= set(plants) and plant.question.endswith("?")
        assert set(plant.signs.values()) <= {1, -1}
        assert {detector.partition(".")[0] for detector in plant.signs} <= set(entries(None))


def test_unknown_measures_and_classes_are_refused():
    with pytest.raises(UserError, match="headbench: no measures nonsense; there are "):
        entries(["nonsense"])
    with pytest.raises(UserError, match=r"headbench: cannot import 'nowhere\.Nothing'"):
        entries(None, ["nowhere.Nothing"])
    with pytest.raises(UserError, match="is no measure"):
        entries([], ["torch.nn.Linear"])
    assert set(entries(["entropy"], [f"{__name__}.Blind"])) == {"entropy", "blind"}


def test_the_figure_clips_nothing():
    rows = [Row(f, p, m, 1, 0.97, 0.9, 1.0, 10) for f in ("vit", "swin") for p in known() for m in ("entropy", "no_op")]
    assert_nothing_is_clipped(headbench.draw(rows))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vit", "swin"])
def test_interventions_confirm_the_plants(family):
    canvas, planted = grow(family, 0)
    assert {each.name for each in planted} == set(known())
    assert [each.name for each in planted if not each.verified] == []
    heads = [head for each in planted for head in each.heads]
    assert len(set(heads)) == len(heads)  # no head is two things
    site, head = next((site, head) for flat, (site, head, _) in enumerate(canvas.layout) if flat not in heads)
    for each in planted:  # a head that is nothing in particular passes for hardly any
        if each.name not in ("sink_no_op", "dead") and each.plant.heads == 1:
            assert not each.plant.verified(canvas, site, [head]), each.name


@pytest.mark.slow
def test_a_measure_that_knows_is_told_from_one_that_does_not():
    rows = bench({"oracular": Oracular, "blind": Blind}, ["vit"], [0], images=4)
    found = {(row.plant, row.measure): row for row in rows}
    assert found["dead", "oracular"].auroc == 0  # nothing was expected of it: read as large for planted heads
    assert found["dead", "blind"].auroc == 0.5
    assert found["dead", "oracular"].direction == 0 and found["dead", "oracular"].seeds == 1
