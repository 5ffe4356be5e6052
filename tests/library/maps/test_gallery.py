"""python -m mhprobe.maps: a table, figures and the maps themselves; one line for what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import mhprobe
import runs
from drawn import assert_nothing_is_clipped
from mhprobe.backbones import build
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.batch import Batch
from mhprobe.data.images import ImageFolder
from mhprobe.errors import UserError
from mhprobe.framework.questions.gallery import gallery, open_images
from mhprobe.maps.attention import Attention
from mhprobe.maps.attention_patch import AttentionPatch
from mhprobe.maps.base import MapKind
from mhprobe.maps.gradient_rollout import GradientRollout
from mhprobe.maps.rollout import Rollout
from mhprobe.report.figures import maps as figures
from mhprobe.report.figures.maps import Judged
from models import tiny_vit

FEW = ("faithfulness.steps=2", "faithfulness.random_orders=1")


def judged(count, grid=(4, 4), signed=False):
    values = torch.rand(count, *grid, generator=torch.Generator().manual_seed(0)) - 0.5 * signed
    return Judged(values, torch.rand(4, count, generator=torch.Generator().manual_seed(1)))


def test_every_image_is_a_row_and_every_kind_a_column_on_its_own_scale():
    pictures = torch.rand(3, 3, 16, 16)
    kinds = {
        "rollout": judged(3),
        "gradient rollout": judged(3, (8, 8)),
        "relevance": judged(3, signed=True),
    }
    figure = figures.maps(pictures, ["image 12345: airplane\n→ automobile 0.87"] * 3, kinds)
    overlaid = [axes.get_images()[1] for axes in figure.axes if len(axes.get_images()) == 2]
    assert len(overlaid) == 9
    for number, image in enumerate(overlaid):
        row, column = divmod(number, 3)
        expected = list(kinds.values())[column].maps[row].double()
        torch.testing.assert_close(torch.tensor(image.get_array().data), expected)
        if column < 2:
            assert (image.norm.vmin, image.norm.vmax) == (expected.min(), expected.max())
        else:
            assert image.norm.vmin == -image.norm.vmax  # the colours part at 0
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    deletion, _, by_chance, _ = kinds["rollout"].areas[:, 0]
    assert f"deletion {deletion:.2f} (random {by_chance:.2f})" in "".join(texts)
    assert_nothing_is_clipped(figure)


def test_colour_bars_of_attention_say_so():
    seen, pictures = torch.rand(1, 2, 4, 4), torch.rand(1, 3, 16, 16)
    drawn = (
        mhprobe.plot.maps(pictures, seen),
        figures.draw_heads(pictures[0], "x", {"h": judged(1)._replace(label="a")}, 0),
    )
    texts = [[text.get_text() for axes in figure.axes for text in axes.texts] for figure in drawn]
    assert texts[0].count("attention") == 2 and texts[1].count("a") == 1
    for figure in drawn:
        assert_nothing_is_clipped(figure)
    assert {kind.label for kind in (Attention, AttentionPatch)} == {"attention"}


@pytest.mark.parametrize("count", [1, 6, 16])
def test_every_head_has_its_panel(count):
    heads = {f"block 10 head {h}": judged(2) for h in range(count)}
    figure = figures.draw_heads(torch.rand(3, 16, 16), "image 5: cat\n→ dog 0.5", heads, 1)
    assert sum(len(axes.get_images()) == 2 for axes in figure.axes) == count
    assert_nothing_is_clipped(figure)


@pytest.mark.slow
def test_the_command_writes_a_table_figures_and_maps(tmp_path):
    kinds = "maps=[attention,rollout,gradient_rollout,head_rollout,relevance_map]"
    result = runs.run(
        "maps", *runs.TINY, "weights=random", kinds, "images=[7,3]", *FEW, cwd=tmp_path
    )
    assert result.code == 0, result.err
    assert "rollout: deletion 0." in result.out and "random" in result.out
    rows = runs.rows(result.folder / "tables" / "maps.csv")
    assert [(row["image"], row["kind"]) for row in rows if row["kind"] == "rollout"] == [
        ("7", "rollout"),
        ("3", "rollout"),
    ]
    assert len(rows) == 2 * (3 + 3 + 3)  # three heads twice, three whole maps
    assert all(
        0 <= float(row["deletion"]) <= 1 and 0 <= float(row["random_insertion"]) <= 1
        for row in rows
    )
    written = {path.name for path in (result.folder / "figures").glob("*.png")}
    assert written == {
        "maps.png",
        "attention_7.png",
        "attention_3.png",
        "head_rollout_7.png",
        "head_rollout_3.png",
    }
    raw = load_file(result.folder / "maps.safetensors")
    assert raw["rollout/rollout"].shape == raw["relevance_map/relevance"].shape
    assert len(raw) == 9 and all(len(maps) == 2 for maps in raw.values())


def test_maps_that_are_not_judged_cost_no_further_forward_and_say_nothing_of_it(monkeypatch):
    monkeypatch.setattr(
        "mhprobe.framework.questions.gallery.puts_out_features", lambda model: False
    )  # it is of no family

    class Even(MapKind):
        per_head = False

        def __call__(self, model, images, labels=None):
            return {"even": torch.ones(len(images), 4, 4)}

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), 0

        def forward(self, images):
            self.seen += len(images)
            return images.flatten(1)[:, :3]

    data, model = Stored(), Counting()
    data.transform = lambda batch, train: batch._replace(images=batch.images.float())
    results, found, _ = gallery(model, data, [0, 1], {"even": Even()}, score=False)
    assert model.seen == 2
    assert "deletion" not in results["maps"].table.columns and len(results["maps"].table.rows) == 2
    texts = [text.get_text() for axes in results["maps"].figure.axes for text in axes.texts]
    assert texts and not [text for text in texts if "del" in text]
    assert found["even"]["even"].areas is None and judged(2).areas is not None


def test_maps_are_made_of_one_image_after_the_other_and_are_those_of_all_together(monkeypatch):
    model = tiny_vit(img_size=16).double()
    mhprobe.attach(model)
    images, shown = torch.rand(3, 3, 16, 16, dtype=torch.float64), []
    data = Stored()
    data.transform = lambda batch, train: batch._replace(
        images=images, labels=torch.tensor([2, 0, 1])
    )
    kind = GradientRollout(target="label")
    rows = GradientRollout.rows
    monkeypatch.setattr(
        GradientRollout,
        "rows",
        lambda self, *asked: (shown.append(len(asked[1])), rows(self, *asked))[1],
    )
    maps = (
        gallery(model, data, [0, 1, 2], {"kind": kind}, score=False)
        .maps["kind"]["gradient rollout"]
        .maps
    )
    assert shown == [1, 1, 1]
    together = kind(model, images, torch.tensor([2, 0, 1]))["gradient rollout"]
    torch.testing.assert_close(maps, together.float())


def test_named_heads_stand_side_by_side_for_all_images():
    model = tiny_vit(img_size=16)
    mhprobe.attach(model)
    data = Stored()
    data.transform = lambda batch, train: batch._replace(
        images=torch.rand(len(batch.labels), 3, 16, 16)
    )
    kinds = {"attention": Attention(heads=["1/2", "0/0"])}
    results, *_ = gallery(model, data, [0, 1], kinds, score=False)
    assert list(results) == ["maps"]  # no figure of its own for every image
    titles = [axes.get_title() for axes in results["maps"].figure.axes if axes.get_title()]
    assert titles == ["block 1 head 2", "block 0 head 0"]
    assert [row[-1] for row in results["maps"].table.rows] == ["block 1 head 2"] * 2 + [
        "block 0 head 0"
    ] * 2
    assert_nothing_is_clipped(results["maps"].figure)
    asked = ("maps=[attention]", "maps.attention.heads=[5/11,0/3]")  # as it is typed
    assert runs.checked("maps", *asked).maps["attention"]["heads"] == ["5/11", "0/3"]


@pytest.mark.parametrize(
    ("query", "framed"), [("center", (2, 2)), ((0, 3), (0, 3)), ("class", None)]
)
def test_the_patch_that_looks_is_framed(query, framed):
    model = tiny_vit(img_size=16)
    mhprobe.attach(model)
    data = Stored()
    data.transform = lambda batch, train: batch._replace(
        images=torch.rand(len(batch.labels), 3, 16, 16)
    )
    grid = mhprobe.attach(model).layout.sites[0].token_grid
    kinds = {
        "attention_patch": AttentionPatch(query=query),
        "rollout": Rollout(),
        "named": AttentionPatch(heads=["0/1"]),
        "all": Attention(),
    }
    results, *_ = gallery(model, data, [0], kinds, score=False)
    per_head, overview = (
        [
            patch
            for axes in results[name].figure.axes
            for patch in axes.patches
            if not patch.get_fill()
        ]
        for name in ("attention_patch_0", "maps")
    )
    cell = 8 / grid[0]  # pixels of the stored picture
    expected = None if framed is None else (framed[1] * cell - 0.5, framed[0] * cell - 0.5)
    assert {patch.get_xy() for patch in per_head} == ({expected} if expected else set())
    assert {patch.get_width() for patch in per_head} <= {cell}
    middle = (grid[1] // 2 * cell - 0.5, grid[0] // 2 * cell - 0.5)
    assert {patch.get_xy() for patch in overview} == {middle}, (
        "of the named head, and not of the rollout"
    )
    assert not [patch for axes in results["all_0"].figure.axes for patch in axes.patches], (
        "the same heads, all queries"
    )


def test_two_kinds_whose_maps_have_one_name_are_two_columns():
    model = tiny_vit(img_size=16)
    mhprobe.attach(model)
    data = Stored()
    data.transform = lambda batch, train: batch._replace(
        images=torch.rand(len(batch.labels), 3, 16, 16)
    )
    kinds = {
        "rollout": Rollout(),
        "rollout_max": Rollout(fusion="max"),
        "gradient_rollout": GradientRollout(),
    }
    figure = gallery(model, data, [0], kinds, score=False)[0]["maps"].figure
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["rollout", "rollout max", "gradient rollout"]


def test_the_command_takes_no_judgement_for_an_answer():
    assert runs.checked("maps", "faithfulness=null").faithfulness is None


@pytest.mark.slow
def test_what_cannot_be_drawn_is_said_in_one_line(tmp_path):
    commands = [
        (("images=[0,999]",), ("images", "0 to 100", "999")),
        (("images=[-1]",), ("images", "-1")),
        (("maps=[]",), ("maps", "at least one")),
        (("maps=[rollout]", "maps.rollout.fusion=sum"), ("fusion", "mean, max, min", "'sum'")),
        (
            ("maps=[head_rollout]", "maps.head_rollout.block=7"),
            ("head_rollout", "blocks 0 to 1", "7"),
        ),
        (("faithfulness.baseline=black",), ("faithfulness.baseline", "black")),
    ]
    results = runs.answers(
        [runs.Command("maps", (*runs.TINY, "weights=random", *more, *FEW)) for more, _ in commands],
        cwd=tmp_path,
    )
    for result, (_, words) in zip(results, commands, strict=True):
        assert all(word in result.answer for word in words), result.answer


class Stored:
    """Three stored images of 8 x 8 pixels, with labels."""

    sizes, stored_size, class_names = {"test": 3}, (8, 8), ("cat", "dog", "cow")
    pixels = torch.arange(3 * 3 * 64, dtype=torch.uint8).reshape(3, 3, 8, 8)

    def stored(self, split, positions):
        index = torch.tensor(positions)
        return Batch(self.pixels[index], index, index, torch.ones(len(index), dtype=torch.bool))


def test_a_file_stands_beside_images_of_the_data(tmp_path):
    photo = tmp_path / "photo.png"
    wide = torch.zeros(16, 48, 3, dtype=torch.uint8)
    wide[:, 16:32] = 200  # the middle, which is what a square keeps
    Image.fromarray(wide.numpy()).save(photo)
    data = Stored()
    batch = open_images(data, [2, str(photo), 0])
    assert batch.labels.tolist() == [2, -1, 0]
    assert torch.equal(batch.images[0], data.pixels[2]) and torch.equal(
        batch.images[2], data.pixels[0]
    )
    assert batch.images[1].shape == (3, 8, 8) and batch.images[1].float().mean() > 180


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([3], "positions from 0 to 2"),
        ([-1], "positions from 0 to 2"),
        ([], "positions from 0 to 2"),
        (["nowhere.png"], "nowhere.png is no file"),
        ([__file__], "not an image"),
        (["a/x.png", "b/x.jpg"], "have one name"),
        ([1, "1.png"], "have one name"),
    ],
)
def test_images_that_are_not_there_are_refused(images, said):
    with pytest.raises(UserError, match=said) as caught:
        open_images(Stored(), images)
    assert str(caught.value).startswith("images: ")


def test_a_file_of_a_terabyte_is_refused_unread(tmp_path):
    giant = tmp_path / "giant.png"
    with giant.open("wb") as file:
        file.truncate(2**40)  # a sparse file: nothing of it is on the disk
    with pytest.raises(UserError, match=r"^images: .*giant\.png claims 1,099,511,627,776 bytes"):
        open_images(Stored(), [str(giant)])


def test_a_map_that_explains_the_label_needs_one(tmp_path):
    photo = tmp_path / "photo.png"
    Image.new("RGB", (8, 8)).save(photo)
    with pytest.raises(UserError, match="gradient_rollout explains"):
        gallery(
            torch.nn.Identity(),
            Stored(),
            [str(photo)],
            {"gradient_rollout": GradientRollout(target="label")},
        )


@pytest.mark.parametrize(
    ("channels", "said"), [(13, "channels 1 to 3 of 13"), (2, "mean of 2 channels, grey"), (3, "")]
)
def test_figures_of_a_command_say_what_is_shown_of_other_channels(tmp_path, channels, said):
    numbers = np.random.default_rng(0)
    for place in (f"{split}/{name}" for split in ("train", "test") for name in "ab"):
        (tmp_path / "data" / place).mkdir(parents=True)
        for number in range(2):
            pixels = numbers.integers(0, 256, (16, 16, channels), dtype=np.uint8)
            np.save(tmp_path / "data" / place / f"{number}.npy", pixels)
    source = ImageFolder(tmp_path / "data", stored_size=16)
    data = ImageData(source, 4, cache_dir=tmp_path / "cache", val_fraction=0.5)
    sizes = dict(img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2, num_classes=2)
    model = build("vit_tiny_patch16_224", in_chans=channels, **sizes).eval()
    mhprobe.attach(model)
    data.spec = InputSpec((16, 16), (0.5,) * channels, (0.5,) * channels)
    figure = (
        gallery(model, data, [0], {"attention": Attention()}, score=False)
        .results["attention_0"]
        .figure
    )
    texts = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert said in texts and ("channels" in texts) == bool(said)
    assert_nothing_is_clipped(figure)
