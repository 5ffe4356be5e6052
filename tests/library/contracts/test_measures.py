"""What every measure promises, whatever it measures: held for each file of mhprobe.measures.

A new one is tested by being there. It needs an oracle: tests/oracles/<name>.py with ``value`` (see
oracles/__init__).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import pickle
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin

import hydra
import pytest
import torch
from hydra.utils import get_class
from torch import Tensor, nn

import mhprobe
import spawned
from mhprobe.errors import UserError, types_of
from mhprobe.framework.run.members import members
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.heads import (
    Ablation,
    Block,
    Direct,
    HeadBatch,
    HeadLayout,
    HeadSite,
    HeadWeights,
    Need,
    Patched,
    Patching,
    Relevance,
    Relevances,
    Stream,
)
from mhprobe.recording.record import NEEDS
from mhprobe.report.tables import of_measure

DOCS = Path(__file__).parents[3] / "docs" / "measures.md"
MEASURES = sorted(members("measure"))
PLAIN = frozenset(NEEDS)  # of measures that ask for no masks or patches of their own
IMAGES = 17  # odd, and more than the width of a head

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::mhprobe.measures.parts.pairs.FewImages"
    ),  # a stream is wider than a head
    pytest.mark.filterwarnings(
        "ignore::mhprobe.measures.activation_patching.NothingToRestore"
    ),  # of random weights
]

# float64 sums in another order; what is left is a few roundings, amplified by the whitening
# (condition below 1e4)
SAME = {"rtol": 1e-9, "atol": 1e-10, "equal_nan": True}


@dataclass(eq=False)  # known by who it is, not by its tensors
class Case:
    """A tiny model in float64 with gates on it, the same without, and images."""

    bare: nn.Module
    gated: nn.Module
    layout: HeadLayout
    images: Tensor
    labels: Tensor
    objects: Tensor

    @property
    def sites(self) -> list[tuple[str, int]]:
        return [
            (name, m.num_heads) for name, m in self.bare.named_modules() if name.endswith(".attn")
        ]


def tiny(family: str) -> nn.Module:
    import timm

    if family == "vit":
        options = {
            "patch_size": 8,
            "embed_dim": 48,
            "num_heads": 3,
            "depth": 2,
            "class_token": True,
            "reg_tokens": 2,
        }
        return timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5, **options)
    options = {
        "patch_size": 4,
        "window_size": 4,
        "embed_dim": 24,
        "num_heads": (3, 6),
        "depths": (2, 2),
    }
    return timm.create_model("swin_tiny_patch4_window7_224", img_size=32, num_classes=5, **options)


@pytest.fixture(scope="module", params=["vit", "swin"])
def case(request):

    torch.manual_seed(0)
    bare = tiny(request.param).double().eval()
    for parameter in bare.parameters():  # heads of a fresh timm model are nearly silent
        torch.nn.init.normal_(parameter, std=0.3)
    gated = copy.deepcopy(bare)
    layout = mhprobe.attach(gated).layout
    images = torch.randn(IMAGES, 3, 32, 32, dtype=torch.float64)
    objects = torch.randint(0, 3, (IMAGES, 32, 32))
    return Case(bare, gated, layout, images, torch.arange(IMAGES) % 5, objects)


@pytest.fixture(params=MEASURES)
def name(request):
    return request.param


def build(name: str, layout: HeadLayout):
    """The measure, with two draws of its null where it takes several: each further one is made like the second."""
    measure = hydra.utils.instantiate(members("measure")[name])(layout)
    if hasattr(measure, "null_draws"):
        measure.null_draws = 2
    return measure


def feed(measure, case: Case, batches: list[list[int]], padding: int = 0, alone: bool = False):
    """Show it these images batch by batch, each with ``padding`` random images that are flagged as invalid.

    alone: record what this measure needs and nothing else; else what it needs is recorded for many
    measures at once, as it is in a run.
    """
    if measure.select_needs is not None and not int(measure.images):
        measure.select(recorded(case, tuple(range(IMAGES)), measure.select_needs))
        measure.end_select()
    needs = measure.needs if alone or not measure.needs <= PLAIN else PLAIN
    for index in batches:
        measure.update(recorded(case, tuple(index), needs, padding))
    return measure


@functools.cache
def whole(name: str, case: Case):
    """The measure behind all images in one batch, for tests that only read it; its columns are found once."""
    measure = feed(build(name, case.layout), case, batches(IMAGES), alone=True)
    measure.columns = functools.cache(measure.columns)
    return measure


@functools.lru_cache(maxsize=512)
def recorded(
    case: Case, index: tuple[int, ...], needs: frozenset[Need], padding: int = 0
) -> HeadBatch:
    """Once for all measures that need the same: recording is most of the work here."""
    picked = list(index)
    images = torch.cat(
        [case.images[picked], 5 * torch.randn(padding, 3, 32, 32, dtype=case.images.dtype)]
    )
    labels = torch.cat([case.labels[picked], torch.zeros(padding, dtype=torch.long)])
    objects = torch.cat([case.objects[picked], torch.randint(0, 3, (padding, 32, 32))])
    valid = torch.arange(len(images)) < len(index)
    return mhprobe.record(case.gated, images, labels, needs, valid, objects=objects)


def assert_same_columns(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert list(a) == list(b)
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], **SAME, msg=lambda text, name=name: f"{name}: {text}"
        )


def measures_weights(name: str) -> bool:
    """Whether the measure looks at nothing but weights: then no image changes it."""
    return build(name, LAYOUT).needs == {"weights"}


def batches(size: int) -> list[list[int]]:
    return [list(range(i, min(i + size, IMAGES))) for i in range(0, IMAGES, size)]


def differs(value: Tensor) -> bool:
    """Whether heads differ by far more than the tolerances, so that equality says something."""
    value = value[value.isfinite()]
    return bool(value.std() > 1e-3 * value.abs().mean() > 0)


def test_there_are_measures():
    assert len(MEASURES) >= 2


def test_value_matches_the_oracle(name, case):
    oracle = importlib.import_module(f"oracles.{name}")
    more = (
        {"objects": case.objects} if "objects" in inspect.signature(oracle.value).parameters else {}
    )
    expected = oracle.value(case.bare, case.images, case.labels, case.sites, **more)
    value = feed(build(name, case.layout), case, batches(5), alone=True).compute()
    # float64 on both sides; the oracle goes another way, so allow for its own roundings
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-9, equal_nan=True)
    assert differs(value)


def test_under_closed_fractional_and_learned_gates_it_says_what_the_weights_times_the_gates_would(
    name, case
):
    measure = build(name, case.layout)
    reads = measure.needs | (measure.select_needs or frozenset())
    if reads & {"grad", "attn_grad"} or any(isinstance(need, Relevance) for need in reads):
        pytest.skip(
            "what it reads is taken in front of the gate, and would change with the weights"
        )
    gated = copy.deepcopy(case.bare)
    gates = mhprobe.attach(gated, make=HardConcreteGates)
    with torch.no_grad():
        gates.log_alpha.copy_(
            torch.tensor([9.0, -9.0, 0.3]).repeat(case.layout.num_heads)[: case.layout.num_heads]
        )
    values = gates.effective().double()
    assert values[:2].tolist() == [1, 0] and 0 < values[2] < 1
    folded = copy.deepcopy(case.bare)
    with torch.no_grad():
        for site, gate in zip(case.layout.sites, case.layout.split(values), strict=True):
            folded.get_submodule(f"{site.name}.proj").weight *= gate.repeat_interleave(
                site.head_dim
            )
    oracle = importlib.import_module(f"oracles.{name}")
    more = (
        {"objects": case.objects} if "objects" in inspect.signature(oracle.value).parameters else {}
    )
    expected = oracle.value(folded, case.images, case.labels, case.sites, **more)
    value = feed(measure, dataclasses.replace(case, gated=gated), batches(5), alone=True).compute()
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-9, equal_nan=True)


@functools.lru_cache(maxsize=4)
def rounded(case: Case, dtype: torch.dtype) -> Case:
    """Weights and images rounded to bfloat16, computed with in ``dtype``."""
    gated = copy.deepcopy(case.bare)
    with torch.no_grad():
        for (
            parameter
        ) in gated.parameters():  # not so large that a rounding decides where a head looks
            parameter *= 0.5
    gated = gated.bfloat16().to(dtype)
    layout = mhprobe.attach(gated).layout
    return dataclasses.replace(
        case, gated=gated, layout=layout, images=case.images.bfloat16().to(dtype)
    )


def test_a_half_model_gives_nearly_what_its_weights_give_in_full_precision(name, case):
    given = [rounded(case, dtype) for dtype in (torch.bfloat16, torch.float64)]
    found = [feed(build(name, each.layout), each, batches(5)).compute().flatten() for each in given]
    half, full = found
    assert half.dtype == torch.float64 and torch.equal(half.isnan(), full.isnan())
    measure, kept = build(name, case.layout), ~full.isnan()
    if not any(
        isinstance(need, Ablation | Patching)
        for need in measure.needs | (measure.select_needs or frozenset())
    ):
        # differences of losses lose more of bfloat16's eight bits, and are left out
        assert (half - full)[kept].abs().max() < 0.25 * full[kept].abs().max()


def test_columns_have_the_shapes_of_their_kind(name, case):
    measure = whole(name, case)
    columns = measure.columns()
    heads = case.layout.num_heads
    assert measure.name == name
    assert next(iter(columns)) == "value"
    layers = len(case.layout.sites)
    shapes = {"per_head": (heads,), "pairwise": (heads, heads), "pairwise_layers": (layers, layers)}
    assert columns["value"].shape == shapes[measure.kind]
    for column, names in measure.axes.items():
        assert columns[column].shape in ((heads, len(names)), (heads, heads, len(names)))
        said = measure.along[column]  # a table of its own says what it is, in words
        assert len(said.label.split()) > 2 and len(said.larger) > 10
        assert not said.larger.endswith(".")
    assert set(measure.along) == set(measure.axes)
    torch.testing.assert_close(measure.compute(), columns["value"], rtol=0, atol=0, equal_nan=True)
    # what a value is read against, and what its interval is, is in the docs, and nothing else is
    own = {name for name in ("null", "chance", "uniform", "p", "p_holm", "low") if name in columns}
    fields = UNSAID | entry(name)
    said, interval = (fields[field].removesuffix(".") for field in ("Read against", "Interval"))
    named = set(re.findall(r"`(\w+)`", said)) | ({"low"} if "interval" in said else set())
    references = own & {"null", "chance", "uniform"}
    assert references == named & {"null", "chance", "uniform"} and named <= own
    assert said != "none" or not references
    assert measure.no_interval == interval.partition("none: ")[2] and ("low" in own) != bool(
        measure.no_interval
    )


def test_every_value_has_an_interval_over_images_that_holds_it_or_says_why_not(name, case):
    measure = whole(name, case)
    columns = measure.columns()
    if measure.no_interval:
        assert not {"low", "high"} & set(columns) and not measure.of_images
        return
    assert int(columns["images"]) == IMAGES
    low, value, high = (
        columns[name][columns["value"].isfinite()] for name in ("low", "value", "high")
    )
    assert low.shape == value.shape and (low <= value).all() and (value <= high).all()
    assert (
        low < high
    ).double().mean() > 0.3  # a layer with itself, and a head that never differs, have no width
    ends = measure.within
    assert ends[0] <= low.min() and high.max() <= ends[1]
    (table,) = (
        table for end, table in of_measure(case.layout, measure.kind, columns).items() if not end
    )
    assert {"value", "low", "high", "images"} <= set(table.columns)


FORM = (
    "Value",
    "Larger",
    "Read against",
    "Interval",
    "Source",
    "Cost",
)  # of an entry, in this order
UNSAID = {
    "Interval": "mean over images",
    "Cost": "little",
}  # what an entry means that leaves them out


def entry(name: str) -> dict[str, str]:
    """What docs/measures.md says of a measure, by the words in bold; fails naming the page where it says nothing."""
    page = DOCS.read_text() + "\n## "
    entries = re.findall(rf"^## {name}\n\n(.+?)\n(?=## )", page, re.M | re.S)
    assert len(entries) == 1, (
        f"docs/measures.md: expected one entry '## {name}', got {len(entries)}"
    )
    fields = "|".join(FORM)
    parts = re.findall(
        rf"\*\*({fields}):\*\*\s+(.+?)(?=\s+(?:- )?\*\*(?:{fields}):|\n\n|\n?$)", entries[0], re.S
    )
    return {field: " ".join(text.split()) for field, text in parts}


def test_a_measure_without_its_entry_fails_with_the_page_and_the_heading():
    with pytest.raises(
        AssertionError, match=r"docs/measures\.md: expected one entry '## unheard_of'"
    ):
        entry("unheard_of")


def test_every_entry_of_the_docs_has_the_same_form(name):
    fields = list(entry(name))
    assert fields == [field for field in FORM if field in fields] and set(FORM) - set(
        fields
    ) <= set(UNSAID)


def test_it_says_what_fools_it(name):
    fooled_by = vars(type(build(name, LAYOUT))).get(
        "fooled_by"
    )  # its own, not that of a measure it derives from
    assert fooled_by.startswith(("seen: ", "by definition: "))  # in HeadBench, or by thinking


def test_batch_size_does_not_matter(name, case):
    columns = whole(name, case).columns()
    assert_same_columns(feed(build(name, case.layout), case, batches(1)).columns(), columns)
    assert_same_columns(feed(build(name, case.layout), case, batches(4)).columns(), columns)


def test_image_order_does_not_matter(name, case):
    shuffled = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(1)).tolist()
    b = feed(build(name, case.layout), case, [shuffled[:6], shuffled[6:]])
    assert_same_columns(whole(name, case).columns(), b.columns())


def test_padding_does_not_matter_but_images_do(name, case):
    plain = whole(name, case).columns()
    padded = feed(build(name, case.layout), case, [*batches(4), []], padding=3).columns()
    assert_same_columns(padded, plain)
    fewer = feed(build(name, case.layout), case, [list(range(IMAGES - 1))]).columns()
    if measures_weights(name):
        return
    assert not torch.allclose(fewer["value"], plain["value"], **SAME)


def test_states_of_two_ranks_add_up(name, case):
    first = feed(build(name, case.layout), case, [list(range(9))])
    second = feed(build(name, case.layout), case, [list(range(9, IMAGES))])
    first.merge_state(second)
    assert_same_columns(first.columns(), whole(name, case).columns())


def test_memory_does_not_grow_with_the_images(name, case):
    measure = build(name, case.layout)
    feed(measure, case, [[0, 1]])
    before = len(pickle.dumps(measure))
    feed(measure, case, batches(IMAGES) * 3)
    assert len(pickle.dumps(measure)) == before


def test_copies_and_pickles_go_on_from_where_they_were(name, case):
    measure = feed(build(name, case.layout), case, [[0, 1, 2]])
    rest = [list(range(3, IMAGES))]
    copied, pickled = copy.deepcopy(measure), pickle.loads(pickle.dumps(measure))
    feed(copied, case, rest)
    feed(pickled, case, rest)
    assert int(measure.images) == 3  # they share nothing with the original
    feed(measure, case, rest)
    assert_same_columns(copied.columns(), measure.columns())
    assert_same_columns(pickled.columns(), measure.columns())


def test_reset_forgets(name, case):
    measure = feed(build(name, case.layout), case, [[0, 1, 2]])
    measure.reset()
    again = feed(measure, case, batches(IMAGES))
    assert_same_columns(again.columns(), whole(name, case).columns())


def test_without_a_valid_image_it_says_so(name, case):
    measure = feed(build(name, case.layout), case, [[]], padding=2)
    with pytest.raises(UserError, match="no valid images"):
        measure.compute()
    with pytest.raises(UserError, match="no valid images"):
        measure.columns()


def test_an_option_whose_names_are_listed_refuses_another(name, case):
    make = get_class(members("measure")[name]["_target_"])
    for option, hint in types_of(make).items():
        if Literal in (get_origin(hint), *map(get_origin, get_args(hint))):
            with pytest.raises(UserError, match=rf"{option}.*got 'nonsense'"):
                make(case.layout, **{option: "nonsense"})


def test_outputs_that_are_not_finite_are_an_error_and_no_number(name, case):
    measure = build(name, case.layout)
    batch = recorded(case, tuple(range(IMAGES)), measure.needs)
    z = batch.z[0].clone()
    z[0, 0, 0, 0] = torch.nan
    broken = {"z": (z, *batch.z[1:])}
    for name in (
        "attn",
        "attn_grad",
        "weights",
        "stream",
        "direct",
        "relevance",
        "ablated",
        "patched",
    ):
        broken[name] = poisoned(getattr(batch, name))
    measure.update(dataclasses.replace(batch, **broken))
    with pytest.raises(UserError, match="NaN or infinity"):
        measure.columns()


def poisoned(part):
    """The same structure with a NaN in its first tensor."""
    if isinstance(part, Tensor) and part.dtype == torch.long:
        return part  # places of donors: no whole number is NaN
    if isinstance(part, Tensor):
        part = part.clone(memory_format=torch.contiguous_format)
        part.view(-1)[0] = torch.nan
    elif isinstance(part, dict):
        part = {key: poisoned(value) for key, value in part.items()}
    elif isinstance(part, tuple) and hasattr(part, "_fields"):
        part = type(part)(*map(poisoned, part))
    elif isinstance(part, tuple):
        part = (poisoned(part[0]), *part[1:])
    return part


GRID = {"prefix_tokens": 1, "grid": (4, 2), "pixels": (8.0, 8.0), "class_token": True}
LAYOUT = HeadLayout(
    (HeadSite("a.attn", 0, 0, 3, 4, **GRID), HeadSite("b.attn", 0, 1, 2, 4, **GRID)),
    (Block("a", 0, "a.norm2"), Block("b", 0, "b.norm2")),
)
WEIGHTS = tuple(
    HeadWeights(*torch.randn(4, site.num_heads, 4, 10, generator=torch.Generator().manual_seed(5)))
    for site in LAYOUT.sites
)


def random_batch(images: range, padding: int = 0, needs: Collection[Need] = ()) -> HeadBatch:
    """What heads might have done: image number i always did the same, padding is noise."""
    generator = torch.Generator()

    def draw(image: int) -> HeadBatch:
        generator.manual_seed(image)

        def normal(*shape: int) -> Tensor:
            return torch.randn(1, *shape, generator=generator)

        heads = [(9, site.num_heads, site.head_dim) for site in LAYOUT.sites]
        rows = [(1, site.num_heads, 9, 9) for site in LAYOUT.sites]
        return HeadBatch(
            z=tuple(normal(*shape) for shape in heads),
            grad=tuple(normal(*shape) for shape in heads),
            attn=tuple(normal(*shape).softmax(-1) for shape in rows),
            attn_grad=tuple(normal(*shape) for shape in rows),
            stream=tuple(
                Stream(normal(9, 10), normal(9, 10), normal(9, 10)) for _ in LAYOUT.blocks
            ),
            direct=Direct(*(normal(n, 5) for n in (LAYOUT.num_heads, 2, 2, 1, 1))),
            ablated={
                n: normal(len(n.masks), 5).transpose(0, 1) for n in needs if isinstance(n, Ablation)
            },
            patched={
                n: Patched(
                    normal()[:1],
                    normal()[:1],
                    torch.tensor([image % 4 > 0]),
                    {name: normal(LAYOUT.num_heads) for name in n.estimates},
                    torch.tensor([image % 3]),
                )
                for n in needs
                if isinstance(n, Patching)
            },
            relevance={
                n: Relevances(
                    normal()[:1],
                    tuple(normal(*shape) for shape in heads),
                    normal(len(LAYOUT.blocks)),
                )
                for n in needs
                if isinstance(n, Relevance)
            },
            logits=normal(5),
            labels=torch.tensor([image % 5]),
            images=normal(3, 32, 16),
            objects=torch.randint(0, 3, (1, 32, 16), generator=generator),
            valid=torch.tensor([True]),
        )

    parts = [draw(image) for image in [*images, *range(1000, 1000 + padding)]]

    def join(values: list):
        first = values[0]
        if first is None:
            return None
        if isinstance(first, Tensor):
            return torch.cat(values)
        if isinstance(first, dict):
            # logits under masks lead with the masks
            return {
                key: torch.cat([v[key] for v in values], 1)
                if isinstance(key, Ablation)
                else join([v[key] for v in values])
                for key in first
            }
        joined = [join(list(each)) for each in zip(*values, strict=True)]
        return type(first)(*joined) if hasattr(first, "_fields") else tuple(joined)

    names = [
        f.name
        for f in dataclasses.fields(HeadBatch)
        if f.init and getattr(parts[0], f.name) is not None
    ]
    joined = HeadBatch(
        **{
            n: join([getattr(part, n) for part in parts])
            for n in names
            if n not in ("weights", "ends")
        }
    )
    return dataclasses.replace(
        joined, valid=torch.arange(len(parts)) < len(images), weights=WEIGHTS
    )


def selected(measure, rank: int = 0, world_size: int = 1):
    """The measure, after this rank's share of the images of the selection split, if it wants to see them."""
    if measure.select_needs is not None:
        share = range(2000 + 4 * rank, 2000 + 4 * (rank + 1) if rank + 1 < world_size else 2009)
        measure.select(random_batch(share, needs=measure.select_needs))
        measure.end_select()
    return measure


SHARES = {  # of 9 images over the ranks: uneven, and the last rank of three has padding alone
    2: [[(range(5), 0), (range(5, 7), 0)], [(range(7, 9), 3)]],
    3: [[(range(5), 0), (range(5, 6), 1)], [(range(6, 9), 0)], [(range(0), 2)]],
}


def one_rank(rank: int, world_size: int, folder: Path) -> None:
    results = {}
    for name in MEASURES:
        measure = selected(build(name, LAYOUT), rank, world_size)
        for images, padding in SHARES[world_size][rank]:
            measure.update(random_batch(images, padding, measure.needs))
        value, columns = measure.compute(), measure.columns()
        results[name] = {"compute": value, "columns": columns, "images left": int(measure.images)}
    torch.save(results, folder / f"{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("world_size", SHARES)
def test_processes_with_uneven_shares_agree_with_one(tmp_path, world_size):
    spawned.ranks(one_rank, world_size, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(world_size)]
    own_images = [sum(len(images) for images, _ in share) for share in SHARES[world_size]]
    for name in MEASURES:
        alone = selected(build(name, LAYOUT))
        alone.update(random_batch(range(9), needs=alone.needs))
        for rank, count in zip(ranks, own_images, strict=True):
            got = rank[name]
            assert_same_columns(got["columns"], alone.columns())
            torch.testing.assert_close(got["compute"], alone.compute(), **SAME)
            assert (
                got["images left"] == count
            )  # the local sums are back, so that updating can go on
            for part, column in ranks[0][name]["columns"].items():
                assert torch.equal(column.nan_to_num(-1), got["columns"][part].nan_to_num(-1)), (
                    name,
                    part,
                )
