"""mhprobe.attention: one line says where a head looks; mhprobe.plot draws what was found."""

from __future__ import annotations

import pytest
import torch
from matplotlib.text import Text
from torch.overrides import TorchFunctionMode

import mhprobe
from mhprobe.recording.looks import looked_at, who_looks
from mhprobe.report.figures.style import LEAST, ONE, TWO
from models import images_for, labels_for, make_loud, text, tiny_registers, tiny_swin, tiny_vit


def weights_of(model, images):
    """Softmaxed attention (B * windows, heads, K, K) per block, read from the modules themselves."""
    seen, handles = [], []
    for name, module in model.named_modules():
        if name.endswith("attn_drop"):
            handles.append(
                module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
            )
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return seen


def test_of_a_vit_it_is_a_row_of_the_attention_matrix():
    model = tiny_registers()
    images = images_for(model, 2)
    expected = weights_of(model, images)
    head = mhprobe.attach(model).layout.flat(1, 2)
    row = lambda query: mhprobe.attention(model, images, head=head, query=query)[:, 0].flatten(1)  # noqa: E731
    weights = expected[1][:, 2]  # prefix: class token, two registers
    torch.testing.assert_close(row("class"), weights[:, 0, 3:])
    torch.testing.assert_close(row("registers"), weights[:, 1:3, 3:].mean(1))
    torch.testing.assert_close(row((2, 1)), weights[:, 3 + 2 * 4 + 1, 3:])
    torch.testing.assert_close(row("mean"), weights[:, 3:, 3:].mean(1))
    two = weights[:, [3 + 2 * 4 + 1, 3]].mean(1)[:, 3:]
    torch.testing.assert_close(row([(2, 1), (0, 0)]), two)
    assert not torch.allclose(row([(2, 1), (0, 1)]), two, atol=1e-3)


@pytest.mark.parametrize("build", [tiny_registers, tiny_swin], ids=["vit", "swin"])
@pytest.mark.parametrize("query", ["mean", "class", [(0, 0), (1, 3)], (2, 1)], ids=str)
def test_rows_as_they_pass_give_what_recorded_weights_give(build, query, monkeypatch):
    """To the last digits, in whatever chunks; and the network's fused attention stays on."""
    model = build()
    make_loud(model.double(), 0.3)
    layout, images = mhprobe.attach(model).layout, images_for(model, 3, dtype=torch.float64)
    if query == "class" and not layout.sites[0].class_token:
        pytest.skip("no class token")
    recorded = mhprobe.record(model, images, needs={"attn"}).attn
    modules = [module for module in model.modules() if hasattr(module, "fused_attn")]

    def fused():
        return [module.fused_attn for module in modules]

    before, seen = fused(), []
    model.register_forward_hook(lambda *_: seen.append(fused()))
    monkeypatch.setattr("mhprobe.heads.attention.CHUNK", 100)
    for number, site in enumerate(layout.sites):
        expected = looked_at(recorded[number], site, who_looks(site, query))
        heads = [(number, head) for head in range(site.num_heads)]
        found = mhprobe.attention(model, images, head=heads, query=query)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert expected.std() > 1e-3
    assert seen and all(each == before for each in seen)


def test_of_one_query_no_block_has_all_its_weights(monkeypatch):
    """Of 257 tokens and one query no product has more numbers than a chunk; the unfused block has 66,049 a head."""
    model = tiny_vit(img_size=64)
    largest = {"class": 0, "mean": 0}
    for query in largest:
        with Largest() as seen:
            mhprobe.attention(model, images_for(model, 1), query=query)
        largest[query] = seen.numbers
    assert largest["class"] < 257 * 257
    monkeypatch.setattr("mhprobe.heads.attention.CHUNK", 30_000)
    with Largest() as seen:
        mhprobe.attention(model, images_for(model, 1), query="mean")
    assert seen.numbers < 257 * 257 < largest["mean"]


class Largest(TorchFunctionMode):
    """The most numbers in a tensor that a function of torch gives back."""

    numbers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_of_a_network_whose_weights_are_no_numbers_the_heads_are_named():
    model = tiny_vit()
    images = images_for(model, 3)
    images[1, 0, 0, 0] = torch.nan
    with pytest.raises(
        mhprobe.UserError, match=r"weights of blocks\.0\.attn's heads are NaN .* for image 1\."
    ):
        mhprobe.attention(model, images, query="class")


def test_of_a_swin_windows_lie_where_they_are_in_the_image():
    """A grid of 8 x 8 in windows of 4 x 4, the second block rolled by 2."""
    model = tiny_swin(img_size=16)
    images = images_for(model, 2)
    expected = weights_of(model, images)
    for block, shift in ((0, 0), (1, 2)):
        head = mhprobe.attach(model).layout.flat(block, 1)
        for row, column in ((0, 0), (3, 5), (7, 7)):
            found = mhprobe.attention(model, images, head=head, query=(row, column))[:, 0]
            r, c = (row - shift) % 8, (column - shift) % 8  # after the roll
            window, place = r // 4 * 2 + c // 4, r % 4 * 4 + c % 4
            weights = (
                expected[block].unflatten(0, (2, 4))[:, window, 1, place].unflatten(-1, (4, 4))
            )
            whole = torch.zeros(2, 8, 8)
            for i in range(4):
                for j in range(4):
                    whole[:, (r // 4 * 4 + i + shift) % 8, (c // 4 * 4 + j + shift) % 8] = weights[
                        :, i, j
                    ]
            torch.testing.assert_close(found, whole)
    mean = mhprobe.attention(model, images, head=0)
    assert mean.shape == (2, 1, 8, 8)
    torch.testing.assert_close(mean.sum((2, 3)), torch.ones(2, 1))  # no padding, no prefix


def test_heads_come_in_the_order_they_were_asked_for():
    model = tiny_vit()
    images = images_for(model, 2)
    every = mhprobe.attention(model, images, query="class")
    assert every.shape == (2, 6, 4, 4)
    assert torch.equal(
        mhprobe.attention(model, images, head=[4, 1], query="class"), every[:, [4, 1]]
    )
    assert torch.equal(
        mhprobe.attention(model, images, head=[(1, 1)], query="class"), every[:, [4]]
    )


@pytest.mark.parametrize(
    ("build", "options", "reason"),
    [
        (tiny_vit, {"head": 6}, r"numbers from 0 to 5, .* got \[6\]"),
        (tiny_vit, {"head": [1, 2, 1]}, "attention: head: expected each head once, got 1 2 times"),
        (tiny_vit, {"head": [1.5]}, "attention: head: head indices are whole numbers"),
        (
            tiny_vit,
            {"head": torch.arange(6) == 5},
            "attention: head: head indices are whole numbers",
        ),
        (
            tiny_vit,
            {"query": "registers"},
            r"expected mean, class or \(row, column\) in a grid of 4 x 4",
        ),
        (tiny_vit, {"query": (4, 0)}, r"got \(4, 0\)"),
        (tiny_vit, {"query": [(0, 0), (0, 4)]}, r"a list of those, each once, got \[\(0, 0\), "),
        (tiny_vit, {"query": [(0, 0), (0, 0)]}, "a list of those, each once"),
        (tiny_vit, {"query": []}, r"a list of those, each once, got \[\]"),
        (tiny_swin, {"query": "class", "head": 0}, r"expected mean or \(row, column\)"),
        (tiny_swin, {}, "grids of 5 x 5, 9 x 9"),
        (lambda: text("BertModel"), {}, "expected tokens in a grid"),
    ],
)
def test_what_cannot_be_looked_at_is_said(build, options, reason):
    model = build()
    with pytest.raises(mhprobe.UserError, match=reason):
        mhprobe.attention(model, images_for(model, 2), **options)


@pytest.fixture(scope="module")
def found():
    model = tiny_vit()
    loader = [(images_for(model, 8), labels_for(8))]
    values = mhprobe.measure(model, loader, [mhprobe.measures.GateImportance, mhprobe.measures.CKA])
    return model, loader, values


def test_figures_are_those_of_the_reports(found):
    model, loader, values = found
    layout = mhprobe.attach(model).layout
    figure = mhprobe.plot.heads(values["gate_importance"])
    (image,) = figure.axes[0].images
    torch.testing.assert_close(
        torch.tensor(image.get_array().data).flatten(), values["gate_importance"].double()
    )
    own = mhprobe.plot.heads(torch.arange(6.0), layout, label="number")
    assert own.axes[0].images[0].get_array().max() == 5
    assert mhprobe.plot.pairs(values["cka"]).axes
    rows = mhprobe.masking_curve(model, loader, units="layer")
    (line, *_) = [
        line
        for line in mhprobe.plot.curve(rows).axes[0].lines
        if len(line.get_xdata()) == len(rows)
    ]
    assert list(line.get_ydata()) == [100 * row["accuracy"] for row in rows]
    images = loader[0][0][:2]
    figure = mhprobe.plot.maps(
        images, mhprobe.attention(model, images, head=[0, 5], query="class"), titles=["a", "b"]
    )
    assert len(figure.axes) == 6 + 4 and [axes.get_title() for axes in figure.axes[:3]] == [
        "",
        "a",
        "b",
    ]
    seen = mhprobe.attention(model, images, head=[0, 5], query=(0, 1))
    framed = [axes.patches for axes in mhprobe.plot.maps(images, seen, query=(0, 1)).axes[:6]]
    cell = images.shape[-1] / seen.shape[-1]
    assert [{patch.get_xy() for patch in each} for each in framed] == [
        set(),
        *[{(cell - 0.5, -0.5)}] * 2,
    ] * 2
    with pytest.raises(
        mhprobe.UserError, match=r"plot.maps: query: expected a patch of \(\d, \d\), got \(99, 0\)"
    ):
        mhprobe.plot.maps(images, seen, query=(99, 0))


def test_figures_for_paper_are_as_wide_as_its_columns_and_can_be_read(found):
    model, loader, values = found
    rows = mhprobe.masking_curve(model, loader, units="layer")
    layout, images, seen = values["cka"].heads, torch.rand(2, 3, 16, 16), torch.rand(2, 3, 4, 4)
    drawn = {
        "heads": lambda **style: mhprobe.plot.heads(values["gate_importance"], **style),
        "own": lambda **style: mhprobe.plot.heads(torch.arange(6.0), layout, **style),
        "pairs": lambda **style: mhprobe.plot.pairs(values["cka"], **style),
        "curve": lambda **style: mhprobe.plot.curve(rows, **style),
        "maps": lambda **style: mhprobe.plot.maps(images, seen, **style),
    }
    for name, draw in drawn.items():
        paper = draw(style="paper")
        assert paper.get_tightbbox().width <= TWO, name
        assert (
            min(text.get_fontsize() for text in paper.findobj(Text) if text.get_text()) >= LEAST
        ), name
    screen = (
        drawn["curve"]().get_tightbbox().width
    )  # the control: without it, it is drawn wider than a column
    assert screen > ONE


def test_of_several_measures_the_only_one_that_fits_is_drawn_or_they_are_named(found):
    _, _, values = found
    assert len([of for of in values.values() if of.kind == "per_head"]) == 1
    drawn, same = mhprobe.plot.heads(values), mhprobe.plot.heads(values["gate_importance"])
    assert len(drawn.axes) == len(same.axes)
    twice = {**values, "again": values["gate_importance"]}
    with pytest.raises(
        mhprobe.UserError,
        match=r"expected one measure, got 2: gate_importance, again\. Give values\['gate_importance'\]",
    ):
        mhprobe.plot.heads(twice)
    with pytest.raises(mhprobe.UserError, match=r"got a dict of gate_importance"):
        mhprobe.plot.pairs({"gate_importance": values["gate_importance"]})


def test_what_cannot_be_drawn_is_said(found):
    _, loader, values = found
    for draw, reason in (
        (
            lambda: mhprobe.plot.heads(values["cka"]),
            "compares heads or layers; draw it with plot.pairs",
        ),
        (lambda: mhprobe.plot.heads(torch.ones(6)), "the layout they belong to"),
        (lambda: mhprobe.plot.pairs(values["gate_importance"]), "a measure that compares"),
        (
            lambda: mhprobe.plot.curve([{"accuracy": 1}]),
            "expected the result of mhprobe.masking_curve",
        ),
        (
            lambda: mhprobe.plot.heads(values["gate_importance"], style="poster"),
            "style.*screen.*paper.*poster",
        ),
        (
            lambda: mhprobe.plot.maps(loader[0][0], torch.ones(1, 2, 4, 4)),
            r"expected \(8, heads, rows, columns\)",
        ),
    ):
        with pytest.raises(mhprobe.UserError, match=reason):
            draw()
