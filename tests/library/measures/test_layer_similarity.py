from __future__ import annotations

import itertools

import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadBatch, HeadLayout, HeadSite, Stream
from mhprobe.measures.layer_similarity import LayerSimilarity
from mhprobe.measures.parts.pairs import DeadHead, FewImages
from oracles import cka, svcca

SITES = (
    HeadSite("a", 0, 0, 3, 4, grid=(4, 4)),
    HeadSite("b", 0, 1, 2, 4, grid=(4, 4)),  # narrower, as after pruning
    HeadSite("c", 1, 2, 6, 4, grid=(2, 2)),
    HeadSite("d", 1, 3, 6, 4, grid=(2, 2)),
)
LAYOUT = HeadLayout(SITES, tuple(Block(s.name, s.stage, f"{s.name}.norm2") for s in SITES))


def batch(images=20, seed=0) -> HeadBatch:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    hidden = {tokens: randn(images, tokens, 5) for tokens in (16, 4)}
    tokens = [16, 16, 4, 4]
    z = [
        hidden[t] @ randn(5, s.channels) + randn(images, t, s.channels) + 2
        for t, s in zip(tokens, SITES, strict=True)
    ]
    after = [hidden[t] @ randn(5, 10) + randn(images, t, 10) for t in tokens]
    return HeadBatch(
        z=tuple(x.unflatten(2, (s.num_heads, 4)) for x, s in zip(z, SITES, strict=True)),
        stream=tuple(
            Stream(before=randn(*x.shape), middle=randn(*x.shape), after=x) for x in after
        ),
        logits=torch.zeros(images, 2),
        valid=torch.ones(images, dtype=torch.bool),
    )


def columns(made=None, **options):
    measure = LayerSimilarity(LAYOUT, **options)
    measure.update(made or batch())
    return measure.columns()


def features(made: HeadBatch, of: str) -> list:
    chosen = [z.flatten(2) for z in made.z] if of == "layers" else [s.after for s in made.stream]
    return [x.flatten(0, 1).numpy() for x in chosen]


@pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages")
@pytest.mark.parametrize(
    ("method", "oracle"), [("cka", cka.similarity), ("svcca", svcca.similarity)]
)
@pytest.mark.parametrize("of", ["layers", "blocks"])
def test_layers_with_equally_many_tokens_match_the_oracle_also_where_heads_were_pruned(
    of, method, oracle
):
    got = columns(of=of, method=method)
    rows = features(batch(), of)
    for a, b in itertools.product(range(4), range(4)):
        if a // 2 == b // 2:
            assert float(got["value"][a, b]) == pytest.approx(oracle(rows[a], rows[b]), abs=1e-8)
            assert 0 < got["null"][a, b] < got["value"][a, b]
        else:
            assert got["value"][a, b].isnan() and got["null"][a, b].isnan()
    assert got["rows"].tolist() == [320, 320, 80, 80]


def test_a_block_of_several_attentions_is_compared_once():
    first, _, *others = SITES
    twice = HeadLayout((first, HeadSite("also a", 0, 0, 2, 4, grid=(4, 4)), *others), LAYOUT.blocks)
    measure = LayerSimilarity(twice, of="blocks")
    measure.update(batch())
    value = measure.columns()["value"]
    compared = torch.tensor([True, False, True, True])
    assert value.isnan().all(1).tolist() == (~compared).tolist() == value.isnan().all(0).tolist()
    whole = columns(of="blocks")["value"]
    torch.testing.assert_close(value[2:, 2:], whole[2:, 2:])
    measure = LayerSimilarity(twice, of="layers")
    measure.update(batch())
    assert not measure.columns()["value"][:2, :2].isnan().any()


def test_the_stream_is_measured_as_wide_as_it_comes_and_batches_merge():
    whole = columns(batch(), of="blocks")
    measure = LayerSimilarity(LAYOUT, of="blocks")
    assert measure.needs == {"stream"} and LayerSimilarity(LAYOUT).needs == frozenset()
    made = batch()
    for part in (slice(0, 7), slice(7, 20)):
        measure.update(
            HeadBatch(
                z=tuple(z[part] for z in made.z),
                stream=tuple(Stream(*(x[part] for x in s)) for s in made.stream),
                logits=made.logits[part],
                valid=made.valid[part],
            )
        )
    torch.testing.assert_close(
        measure.columns()["value"], whole["value"], rtol=1e-9, atol=1e-10, equal_nan=True
    )
    measure.reset()
    measure.update(made)
    torch.testing.assert_close(
        measure.columns()["value"], whole["value"], rtol=1e-9, atol=1e-10, equal_nan=True
    )


def test_a_rank_without_valid_images_has_the_same_sums():
    made = batch()
    none = HeadBatch(
        z=made.z, stream=made.stream, logits=made.logits, valid=torch.zeros(20, dtype=torch.bool)
    )
    measures = [LayerSimilarity(LAYOUT, of="blocks") for _ in range(2)]
    for measure, one in zip(measures, (made, none), strict=True):
        measure.update(one)
    shapes = [
        {name: state.shape for name, state in measure.metric_state.items()} for measure in measures
    ]
    assert shapes[0] == shapes[1] and "outer_1" in shapes[0]


def test_a_layer_that_does_not_vary_is_named():
    made = batch()
    made.z[1].zero_()
    with pytest.warns(DeadHead, match="layers whose output does not vary: b"):
        got = columns(made)
    assert got["value"][0, 1] == 0 and got["value"][1, 1] == 0 and got["value"][0, 0] == 1


def test_svcca_needs_rows_and_says_when_images_are_few():
    few = batch(images=5)
    with pytest.raises(UserError, match=r"c has n = 20 rows .* d = 24"):
        columns(few, method="svcca")
    with pytest.warns(FewImages, match="only 20 images for 24 channels"):
        columns(method="svcca")
    assert columns(few)["null"][2, 3] > 0.2


def test_what_cannot_be_compared_is_refused_in_one_line():
    with pytest.raises(UserError, match="of is one of layers, blocks, got 'heads'"):
        LayerSimilarity(LAYOUT, of="heads")
    with pytest.raises(UserError, match="method is one of cka, svcca, got 'rsa'"):
        LayerSimilarity(LAYOUT, method="rsa")
    with pytest.raises(UserError, match="variance"):
        LayerSimilarity(LAYOUT, variance=0)
    made = batch()
    bare = HeadBatch(z=made.z, logits=made.logits, valid=made.valid)
    with pytest.raises(UserError, match="no residual stream"):
        LayerSimilarity(LAYOUT, of="blocks").update(bare)
    free = HeadLayout(tuple(HeadSite(s.name, s.stage, s.block, s.num_heads, 4) for s in SITES))
    with pytest.raises(
        UserError, match=r"a and the layers it is compared with have \[4, 16\] tokens"
    ):
        LayerSimilarity(free).update(made)
