from __future__ import annotations

import numpy as np
import pytest
import torch

import mhprobe
from located import LOCATED
from mhprobe.errors import UserError
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, HeadWeights
from mhprobe.measures.circuit_spectrum import CircuitSpectrum
from mhprobe.measures.weight_similarity import WeightSimilarity
from models import TWINS, images_for, tiny_vit
from oracles.circuit_spectrum import modes

D, C = 4, 20
LAYOUT = HeadLayout((HeadSite("a", 0, 0, 3, D), HeadSite("b", 0, 1, 2, D)))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def columns(
    weights: tuple[HeadWeights, ...], layout: HeadLayout = LAYOUT, **options
) -> dict[str, torch.Tensor]:
    measure = CircuitSpectrum(layout, **options)
    for _ in range(2):  # batches: the weights stay the same
        z = tuple(torch.zeros(2, 5, s.num_heads, D) for s in layout.sites)
        measure.update(
            HeadBatch(
                z=z,
                logits=torch.zeros(2, 2),
                valid=torch.ones(2, dtype=torch.bool),
                weights=weights,
            )
        )
    return measure.columns()


def drawn(seed: int = 0) -> tuple[HeadWeights, ...]:
    return tuple(
        HeadWeights(*normal(4, s.num_heads, D, C, seed=seed + n))
        for n, s in enumerate(LAYOUT.sites)
    )


ONE = HeadLayout((HeadSite("a", 0, 0, 1, D),))


def one(query: torch.Tensor, key: torch.Tensor, **options) -> dict[str, torch.Tensor]:
    """Of a layer of one head, whose value circuit is the same."""
    return columns((HeadWeights(query[None], key[None], query[None], key[None]),), ONE, **options)


@pytest.mark.parametrize("of", ["qk", "ov"])
def test_all_columns_match_decompositions_of_whole_matrices(of):
    found = columns(drawn(), of=of)
    flat = 0
    for site in drawn():
        for h in range(len(site.query)):
            query, key, value, output = (each[h].numpy() for each in site)
            both = {"qk": query.T @ key, "ov": value.T @ output}
            singular, cosine = modes(both[of], D)
            np.testing.assert_allclose(found["singular"][flat], singular, rtol=1e-9)
            np.testing.assert_allclose(found["cosine"][flat], cosine, atol=1e-9)
            for name, matrix in both.items():
                s, c = modes(matrix, D)
                assert float(found[name][flat]) == pytest.approx(
                    np.average(c, weights=s), abs=1e-10
                )
                assert float(found[name][flat]) == pytest.approx(
                    np.trace(matrix) / s.sum(), abs=1e-10
                )
                shares = s / s.sum()
                assert float(found[f"rank_{name}"][flat]) == pytest.approx(
                    np.exp(-(shares * np.log(shares)).sum())
                )
            eigenvalues = np.linalg.eigvals(both["ov"])
            copying = eigenvalues.real.sum() / np.abs(eigenvalues).sum()
            assert float(found["copying"][flat]) == pytest.approx(copying, abs=1e-7)
            flat += 1
    torch.testing.assert_close(found["value"], found[of], rtol=0, atol=0)


def test_a_head_whose_keys_are_its_queries_looks_at_like_and_a_negated_one_at_its_opposite():
    query = normal(D, C)
    assert one(query, query)["value"].item() == pytest.approx(1)
    assert one(query, -query)["value"].item() == pytest.approx(-1)
    apart = torch.zeros(2, D, C, dtype=torch.float64)
    apart[0, :, :D], apart[1, :, D : 2 * D] = normal(D, D), normal(D, D, seed=1)  # orthogonal
    assert one(*apart)["value"].item() == pytest.approx(0, abs=1e-12)
    assert one(query, query, of="ov")["copying"].item() == pytest.approx(1)


def test_neither_a_scale_nor_the_basis_inside_a_head_matters():
    query, key, turn = normal(D, C), normal(D, C, seed=1), normal(D, D, seed=2)
    before = one(query, key)
    after = one(3 * turn @ query, torch.linalg.inv(turn).T @ key)
    torch.testing.assert_close(after["value"], before["value"])
    torch.testing.assert_close(after["rank_qk"], before["rank_qk"])


def test_the_null_band_holds_95_percent_of_circuits_with_one_side_turned_at_random():
    query, key = normal(D, C), normal(D, C, seed=1)
    found, values = one(query, key), []
    for seed in range(400):
        turn, corner = torch.linalg.qr(normal(C, C, seed=10 + seed))
        turn = turn * corner.diagonal().sign()  # uniform over rotations and reflections
        values.append(one(query, key @ turn)["value"].item())
    inside = np.mean([abs(value) <= found["null_high"].item() for value in values])
    assert 0.92 < inside < 0.98  # 95 % of 400, +- 3 of its standard errors
    assert abs(np.mean(values)) < 4 * np.std(values) / 20


def test_a_head_without_weights_has_no_modes():
    found = one(torch.zeros(D, C, dtype=torch.float64), normal(D, C))
    for name in ("value", "rank_qk", "copying", "null_high"):
        assert found[name].item() == 0, name


def test_gates_leave_it_alone_closed_fractional_or_learned():
    model = tiny_vit()
    expected = mhprobe.measure(model, [images_for(model, 2)], [CircuitSpectrum])["circuit_spectrum"]
    for value in (0.0, 0.4):
        gates = mhprobe.attach(model)
        gates.values.data.fill_(value)
        found = mhprobe.measure(model, [images_for(model, 2)], [CircuitSpectrum])[
            "circuit_spectrum"
        ]
        torch.testing.assert_close(
            found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor)
        )
    learned = tiny_vit()
    mhprobe.attach(learned, make=HardConcreteGates).log_alpha.data.fill_(0.1)
    found = mhprobe.measure(learned, [images_for(learned, 2)], [CircuitSpectrum])[
        "circuit_spectrum"
    ]
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


@pytest.mark.parametrize("name", TWINS)
def test_every_family_gives_its_weights_or_says_that_it_cannot(name):
    model = TWINS[name]()
    layout = mhprobe.attach(model).layout
    try:
        batch = mhprobe.record(model, images_for(model, 2), needs={"weights"})
    except UserError as error:
        assert "weights" in str(error)
        return
    measure = CircuitSpectrum(layout)
    measure.update(batch)
    found = measure.columns()
    assert found["value"].abs().max() <= 1 and (found["rank_qk"] >= 1).all()


def test_a_head_that_writes_into_another_space_is_refused():
    weights = HeadWeights(*normal(3, 1, D, C), normal(1, D, C + 1))
    with pytest.raises(UserError, match="reads 20 channels and scores or writes 21"):
        columns((weights,), ONE)


def test_outlook_attention_has_no_queries_and_keys_but_values_and_outputs():
    model = LOCATED["volo"]()
    layout, images = mhprobe.attach(model).layout, images_for(model, 2)
    with pytest.raises(
        UserError, match=r"of=qk: network\.0\.0\.attn has no queries and keys\. Use of=ov"
    ):
        mhprobe.measure(model, [images], [CircuitSpectrum])
    got = mhprobe.measure(model, [images], [CircuitSpectrum(layout, of="ov")])[
        "circuit_spectrum"
    ].columns
    outlook = torch.tensor(["network.0." in site.name for _, _, site in layout])
    assert (got["qk"][outlook] == 0).all() and (got["rank_qk"][outlook] == 0).all()
    assert (
        (got["qk"][~outlook] != 0).all()
        and (got["value"] != 0).all()
        and (got["rank_ov"] > 1).all()
    )


def test_no_pair_of_outlook_heads_has_like_queries_or_keys():
    model = LOCATED["volo"]()
    layout = mhprobe.attach(model).layout
    got = mhprobe.measure(model, [images_for(model, 2)], [WeightSimilarity])[
        "weight_similarity"
    ].columns
    heads = layout.span(0)
    for column in ("cosine_query", "cosine_key", "cosine_qk", "overlap_query", "overlap_qk"):
        assert (got[column][heads, heads] == 0).all(), column
    assert (got["cosine_ov"][heads, heads] != 0).all()


def test_what_it_is_about_is_one_of_two():
    with pytest.raises(UserError, match="of"):
        CircuitSpectrum(LAYOUT, of="qv")


def test_behind_the_last_mode_of_narrow_keys_there_is_nothing():
    narrow = tuple(of._replace(query=of.query[:, :3], key=of.key[:, :3]) for of in drawn())
    for of, modes_of_it in (("qk", 3), ("ov", D)):
        found = columns(narrow, of=of)
        for name in ("singular", "cosine"):
            assert found[name].isfinite().sum(1).tolist() == [modes_of_it] * 5
