"""Measures of attention by rows: a few queries of one block at a time, and the numbers of whole matrices.

The rows come from queries and keys of attention that stays fused, and are shared by all measures
that are asked together. The model is in float64, so what is left are roundings of sums.
"""

from __future__ import annotations

import hydra
import pytest
import torch

import mhprobe
from mhprobe.data.batch import Batch
from mhprobe.framework.run.members import members
from mhprobe.heads.attention import Paired
from mhprobe.measures.parts import places
from mhprobe.recording import measuring
from models import images_for, labels_for, make_loud, tiny_registers, tiny_swin

IMAGES = 7
SAME = {"rtol": 1e-9, "atol": 1e-10, "equal_nan": True}  # as in test_measures.py
pytestmark = pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages")


@pytest.fixture(scope="module", params=[tiny_registers, tiny_swin])
def case(request):
    """A model in float64, its images with object masks, and the columns of all measures from whole matrices."""
    torch.manual_seed(0)
    model = request.param().double().eval()
    make_loud(model, 0.4)
    layout = mhprobe.attach(model).layout
    images = images_for(model, IMAGES, dtype=torch.float64)
    objects = torch.randint(0, 3, (IMAGES, *images.shape[2:]))
    batch = Batch.whole(images, labels_for(IMAGES), objects)
    found = {}
    for name, measure in built(layout).items():
        parts = (batch.images, batch.labels)
        if measure.select_needs is not None:
            measure.select(mhprobe.record(model, *parts, measure.select_needs))
            measure.end_select()
        measure.update(mhprobe.record(model, *parts, measure.needs, objects=objects))
        found[name] = measure.columns()
    return model, batch, found


def built(layout):
    """Every measure that reads rows."""
    every = {
        name: hydra.utils.instantiate(make)(layout) for name, make in members("measure").items()
    }
    return {name: measure for name, measure in every.items() if measure.by_rows}


def assert_same(found, expected) -> None:
    assert found.keys() == expected.keys() and len(found) >= 11
    for name, columns in expected.items():
        for column, values in columns.items():
            torch.testing.assert_close(
                found[name][column],
                values,
                **SAME,
                msg=lambda text, which=f"{name}, {column}": f"{which}: {text}",
            )


def parts_of(batch: Batch, size: int, order=None):
    order = torch.arange(IMAGES) if order is None else order
    return [batch.part(some) for some in order.split(size)]


def test_all_measures_of_attention_say_of_a_few_queries_at_a_time_what_they_say_of_matrices(
    case, monkeypatch
):
    model, batch, expected = case
    smallest = min(site.attention_size for site in mhprobe.attach(model).layout.sites)
    monkeypatch.setattr(places, "_CPU_PIECE", smallest // 3)
    pieces = []
    attention = places.attention_in_pieces

    def watched(*args, **options):
        for piece in attention(*args, **options):
            pieces.append(piece.places.queries)
            yield piece

    monkeypatch.setattr(places, "attention_in_pieces", watched)
    measures = built(mhprobe.attach(model).layout)
    backwards = torch.arange(IMAGES).flip(0)
    walk = parts_of(batch, 3, backwards)
    found, refused = measuring.measure_columns(model, measures, lambda: walk, lambda: walk)
    assert not refused
    assert_same(found, expected)
    assert all(queries is not None for queries in pieces)  # negative control: none was whole
    several = next(iter(measures.values())).layout.sites[0].num_heads
    assert several > 1 and expected["entropy"]["value"].std() > 1e-3


def test_each_measure_alone_says_what_it_says_among_all(case):
    model, batch, expected = case
    walk = parts_of(batch, 4)
    for name, measure in built(mhprobe.attach(model).layout).items():
        found, _ = measuring.measure_columns(model, {name: measure}, lambda: walk, lambda: walk)
        for column, values in expected[name].items():
            torch.testing.assert_close(found[name][column], values, **SAME)


def test_of_a_large_grid_queries_and_keys_are_held_and_attention_stays_fused(case):
    model, batch, _ = case
    measures = built(mhprobe.attach(model).layout)
    needs = measuring.read_as(model, measures.values())
    if any(site.windows for site in mhprobe.attach(model).layout.sites):
        return  # windows are small
    assert needs >= {"rows", "row_slopes"} and not needs & {"attn", "attn_grad"}
    record = mhprobe.record(model, batch.images, batch.labels, needs)
    assert record.attn is None and all(isinstance(rows, Paired) for rows in record.rows)
    with torch.no_grad():
        assert torch.equal(record.logits, model(batch.images))
    matrices = mhprobe.record(model, batch.images, batch.labels, {"attn", "attn_grad"})
    every = torch.arange(IMAGES), torch.arange(record.rows[0].shape[2])
    for rows, attn, slopes in zip(record.rows, matrices.attn, matrices.attn_grad, strict=True):
        torch.testing.assert_close(rows.at(*every), attn[:, 0], rtol=0, atol=1e-14)
        torch.testing.assert_close(rows.slopes_at(*every), slopes[:, 0], rtol=1e-9, atol=1e-14)


def test_one_who_reads_matrices_gets_them_and_so_do_the_others(case):
    model = case[0]
    layout = mhprobe.attach(model).layout

    class Reads(mhprobe.measures.Entropy):
        by_rows = False

    both = [mhprobe.measures.Sinks(layout), Reads(layout)]
    needs = measuring.needs_of(both)
    assert measuring.read_as(model, both) == needs
    assert "attn" in needs


def test_a_pass_beside_one_with_matrices_reads_the_same_matrices(case):
    model, batch, _ = case
    layout = mhprobe.attach(model).layout
    beside = measuring.Passes(beside=frozenset({"attn"}))
    shown = []

    class Seen(mhprobe.measures.Entropy):
        def update(self, batch):
            shown.append(batch.attn is not None)
            super().update(batch)

    class Reads(Seen):
        by_rows = False

    makers = {"alone": [Seen], "with one who reads matrices": [Seen, Reads], "beside": [Seen]}
    found = {}
    for name, made in makers.items():
        measures = {make.__name__: make(layout) for make in made}
        passes = beside if name == "beside" else measuring.Passes()
        columns, _ = measuring.measure_columns(model, measures, lambda: [batch], passes=passes)
        found[name] = columns["Seen"]["value"]
        matrices = set(shown)
        shown.clear()
        windows = any(site.windows for site in layout.sites)
        assert matrices == {name != "alone" or windows}
    assert torch.equal(found["beside"], found["with one who reads matrices"])
