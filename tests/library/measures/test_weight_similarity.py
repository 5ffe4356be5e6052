from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, HeadWeights
from mhprobe.measures.parts.pairs import DuplicateHead
from mhprobe.measures.weight_similarity import WeightSimilarity
from oracles.weight_similarity import cosine, overlap

D, C = 4, 20
LAYOUT = HeadLayout((HeadSite("a", 0, 0, 3, D), HeadSite("b", 0, 1, 2, D)))
MATRICES = ("query", "key", "value", "output")


def weights(seed=0, scale=1.0) -> tuple[HeadWeights, ...]:
    """Heads that share some of their weights, with unequal directions."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(4, 1, D, C, generator=generator, dtype=torch.float64)
    stretch = torch.logspace(0, 1, C, dtype=torch.float64)
    return tuple(
        HeadWeights(
            *(
                scale
                * (
                    common
                    + torch.randn(4, s.num_heads, D, C, generator=generator, dtype=torch.float64)
                )
                * stretch
            )
        )
        for s in LAYOUT.sites
    )


def columns(found=None, **options):
    measure = WeightSimilarity(LAYOUT, **options)
    for _ in range(3):  # batches: the weights stay the same
        measure.update(batch_of(found or weights()))
    return measure.columns()


def batch_of(found) -> HeadBatch:
    z = tuple(torch.zeros(2, 5, s.num_heads, D) for s in LAYOUT.sites)
    return HeadBatch(
        z=z, logits=torch.zeros(2, 2), valid=torch.ones(2, dtype=torch.bool), weights=found
    )


def test_all_columns_match_matrices_that_are_written_out():
    got = columns(pairs="all")
    heads = [
        {name: matrix[h].numpy() for name, matrix in site._asdict().items()}
        for site in weights()
        for h in range(len(site.query))
    ]
    for head in heads:
        head["qk"] = head["query"].T @ head["key"]
        head["ov"] = head["value"].T @ head["output"]
    for a, b in itertools.product(range(5), range(5)):
        for of in (*MATRICES, "qk", "ov"):
            assert float(got[f"cosine_{of}"][a, b]) == pytest.approx(
                cosine(heads[a][of], heads[b][of]), abs=1e-12
            )
        for of in MATRICES:
            assert float(got[f"overlap_{of}"][a, b]) == pytest.approx(
                overlap(heads[a][of], heads[b][of]), abs=1e-9
            )
        # the space that a circuit's vec() can lie in is the product of its two spaces
        for of, (one, other) in {"qk": ("query", "key"), "ov": ("value", "output")}.items():
            spaces = [np.kron(head[one], head[other]) for head in (heads[a], heads[b])]
            assert float(got[f"overlap_{of}"][a, b]) == pytest.approx(overlap(*spaces), abs=1e-9)


def test_value_is_the_column_that_was_asked_for():
    for of, by in itertools.product((*MATRICES, "qk", "ov"), ("cosine", "overlap")):
        got = columns(of=of, by=by)
        torch.testing.assert_close(got["value"], got[f"{by}_{of}"], rtol=0, atol=0, equal_nan=True)
        assert got["value"][0, 3].isnan() and (got["value"].diagonal() - 1).abs().max() < 1e-12


def test_circuits_do_not_depend_on_the_basis_inside_the_head_and_matrices_do():
    found = weights()
    mix = torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    first = found[0]
    turned = HeadWeights(*(m.clone() for m in first))
    turned.query[0], turned.key[0] = mix @ first.query[0], torch.linalg.inv(mix).mT @ first.key[0]
    turned.value[0], turned.output[0] = (
        mix @ first.value[0],
        torch.linalg.inv(mix).mT @ first.output[0],
    )
    before, after = columns(found), columns((turned, *found[1:]))
    for name in ("cosine_qk", "cosine_ov", *(f"overlap_{of}" for of in (*MATRICES, "qk", "ov"))):
        torch.testing.assert_close(after[name], before[name], rtol=1e-9, atol=1e-9, equal_nan=True)
    assert (after["cosine_query"] - before["cosine_query"])[0, 1].abs() > 0.05


@pytest.mark.parametrize("by", ["cosine", "overlap"])
@pytest.mark.parametrize("of", ["query", "output", "qk", "ov"])
def test_chance_is_that_of_randomly_turned_weights(of, by):
    generator = torch.Generator().manual_seed(0)
    count = 400
    first = weights()[0]
    heads = [HeadWeights(*(m[:2] for m in first))]
    for _ in range(count):
        q, r = torch.linalg.qr(torch.randn(4, C, C, generator=generator, dtype=torch.float64))
        turn = (
            q * r.diagonal(dim1=1, dim2=2).sign()[:, None]
        )  # uniform only with a positive diagonal of R
        heads.append(HeadWeights(*(m[1:2] @ t for m, t in zip(first, turn, strict=True))))
    layout = HeadLayout((HeadSite("a", 0, 0, count + 2, D),))
    measure = WeightSimilarity(layout, of=of, by=by)
    measure.update(batch_of((HeadWeights(*map(torch.cat, zip(*heads, strict=True))),)))
    got = measure.columns()
    drawn = got["value"][0, 2:]
    error = float(drawn.std()) / count**0.5
    assert float(got["null"][0, 1]) == pytest.approx(float(drawn.mean()), abs=4 * error)
    spread = float(got["null_high"][0, 1] - got["null_low"][0, 1]) / (2 * 1.96)
    assert spread == pytest.approx(float(drawn.std()), rel=4 * count**-0.5)
    assert (got["value"] > got["null_high"])[0, 1]  # these two heads do share weights


def test_chance_of_an_overlap_is_the_share_of_the_stream():
    assert float(columns(of="query", by="overlap")["null"][0, 1]) == pytest.approx(D / C)
    assert float(columns(of="ov", by="overlap")["null"][0, 1]) == pytest.approx((D / C) ** 2)
    assert float(columns(of="ov")["null"][0, 1]) == 0


def test_a_head_without_weights_is_similar_to_nothing():
    found = weights()
    for matrix in found[0]:
        matrix[1] = 0
    got = columns(found)
    assert got["value"][0, 1] == 0 and got["overlap_qk"][0, 1] == 0
    assert all(column[:3, :3].isfinite().all() for column in got.values())


def test_a_scaled_copy_is_named():
    found = weights()
    found[1].value[1], found[1].output[1] = -2 * found[1].value[0], -found[1].output[0]
    with pytest.warns(DuplicateHead, match="b head 0 and b head 1"):
        assert float(columns(found)["value"][3, 4]) == pytest.approx(1)


def test_weights_that_do_not_fit_together_are_refused_in_one_line():
    first, second = weights()
    wider = HeadWeights(*(torch.cat([m, m], 2) for m in second))
    measure = WeightSimilarity(LAYOUT, pairs="all")
    with pytest.raises(
        UserError, match=r"compares a \(W_query of .*\(4, 20\)\) with b \(W_query of .*\(4, 40\)\)"
    ):
        measure.update(batch_of((first, wider)))
    assert (
        columns((first, wider))["value"][3:, 3:].isfinite().all()
    )  # within layers there is no difficulty
    with pytest.raises(UserError, match="no weights"):
        measure.update(dataclasses.replace(batch_of(weights()), weights=None))
    with pytest.raises(UserError, match="of is one of query, key, value, output, qk, ov, got 'vo'"):
        WeightSimilarity(LAYOUT, of="vo")
    with pytest.raises(UserError, match="by is one of cosine, overlap, got 'angle'"):
        WeightSimilarity(LAYOUT, by="angle")
    with pytest.raises(UserError, match="pairs is one of"):
        WeightSimilarity(LAYOUT, pairs="block")


def test_values_may_be_wider_than_keys():
    found = weights()
    wide = [
        of._replace(value=torch.cat([of.value] * 2, 1), output=torch.cat([of.output] * 2, 1))
        for of in found
    ]
    got, plain = (columns(of, pairs="layer") for of in (wide, found))
    for name in (
        "cosine_query",
        "cosine_qk",
        "overlap_key",
        "overlap_value",
    ):  # the rows of a value stand there twice
        torch.testing.assert_close(got[name], plain[name], equal_nan=True)
    torch.testing.assert_close(got["cosine_value"], plain["cosine_value"], equal_nan=True)
