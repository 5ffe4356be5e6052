"""What every figure of a measure promises: held for each kind of report/figures that draws columns.

A new one is tested by a measure that asks for it; one that none asks for needs a test of its own.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from pathlib import Path

import hydra
import pytest
import torch

import mhprobe
from drawn import assert_fits_paper, assert_nothing_is_clipped
from mhprobe.data.batch import Batch
from mhprobe.framework.run.members import members
from mhprobe.recording.measuring import measure_columns
from mhprobe.report import figures, twins
from mhprobe.report.figures import Kind, kinds, style
from models import images_for, labels_for, tiny_swin, tiny_vit

pytestmark = [
    pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages"),  # twelve are few
    pytest.mark.filterwarnings(
        "ignore::mhprobe.measures.activation_patching.NothingToRestore"
    ),  # of random weights
]
IMAGES = 12
WITH_CONTROL = (
    3  # of the measures that a figure draws: a control has the same form whatever was measured
)
SIGNATURE = ["layout", "columns", "label", "names"]
COMMON = (
    slice(0, 4),
    slice(4, None),
)  # what all take, and options of one kind, which have defaults
DRAWS = kinds()
OF_COLUMNS = {
    name
    for name, draw in DRAWS.items()
    if list(inspect.signature(draw).parameters)[1:2] == ["columns"]
}


@pytest.fixture(scope="module", params=["vit", "swin"])
def found(request):
    """Every measure with its columns, on a tiny ViT or a ragged, shifted Swin."""
    torch.manual_seed(0)
    model = {"vit": tiny_vit, "swin": tiny_swin}[request.param]()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layout = mhprobe.attach(model).layout
    images, labels, index = images_for(model, IMAGES), labels_for(IMAGES), torch.arange(IMAGES)
    objects = torch.randint(0, 3, (IMAGES, *images.shape[2:]))
    batch = Batch(images, labels, index, torch.ones(IMAGES, dtype=torch.bool), objects)
    made = {
        name: hydra.utils.instantiate(part)(layout) for name, part in members("measure").items()
    }
    columns, refused = measure_columns(
        model, made, lambda: [batch], class_names=[f"class {c}" for c in range(5)]
    )
    assert len(columns) > 0.8 * len(made), refused  # a tiny model has too few images for some
    return layout, {name: (made[name], columns.get(name)) for name in made}


def is_drawn(name: str, test: str) -> bool:
    """Whether a test calls this kind of figure, by its module or by its name."""
    family = DRAWS[name].__module__.rpartition(".")[2]
    by_name = rf"^from mhprobe\.report\.figures\.{family} import .*\b{name}\b"
    return bool(re.search(rf"\b(\w*figures?|{family})\.{name}\b|{by_name}", test, re.M))


def test_a_kind_of_figure_is_one_function_with_a_caption():
    """Two of one name in different modules: the first could never be found."""
    for name, kind in DRAWS.items():
        assert (kind.__name__, getattr(sys.modules[kind.__module__], name)) == (name, kind)
        assert kind.caption.endswith("."), name
    modules = [
        sys.modules[f"{figures.__name__}.{module.name}"]
        for module in pkgutil.iter_modules(figures.__path__)
    ]
    made = [each for module in modules for each in vars(module).values() if isinstance(each, Kind)]
    assert {id(each) for each in made} == {id(each) for each in DRAWS.values()}


def test_figures_of_columns_have_one_signature():
    assert len(OF_COLUMNS) > 10
    for name in OF_COLUMNS:
        common, own = (
            list(inspect.signature(DRAWS[name]).parameters.values())[part] for part in COMMON
        )
        assert [each.name for each in common] == SIGNATURE
        assert all(
            each.kind is each.KEYWORD_ONLY and each.default is not each.empty for each in own
        ), name


@pytest.mark.usefixtures("whole_pictures")
@pytest.mark.parametrize("name", sorted(OF_COLUMNS))
def test_every_figure_draws_what_its_measures_give_and_clips_nothing(name, found, tmp_path):
    layout, measures = found
    drawn = 0
    for asking, columns in measures.values():
        if columns is None or name not in (asking.kind, *asking.also):
            continue
        figure = DRAWS[name](layout, columns, asking.label, asking.axes)
        assert figure.axes
        assert_nothing_is_clipped(figure)
        drawn += 1
        if drawn == 1:
            style.save_figure(figure, tmp_path / name)
        if drawn <= WITH_CONTROL:
            beside = {**columns, "random_init": columns["value"] / 2}
            assert_nothing_is_clipped(DRAWS[name](layout, beside, asking.label, asking.axes))
            below = twins.draw_measure(
                name, layout, beside, asking.label, asking.axes, control=columns
            )
            assert_nothing_is_clipped(below)
            assert_fits_paper(below)
    if not drawn and not any(
        name in (asking.kind, *asking.also) for asking, _ in measures.values()
    ):
        tests = Path(__file__).parents[2].rglob("test_*.py")
        assert any(is_drawn(name, path.read_text()) for path in tests), (
            f"{name}: no measure asks for it, no test draws it"
        )


@pytest.mark.parametrize("name", sorted(DRAWS.keys() - OF_COLUMNS))
def test_every_other_figure_is_held_to_nothing_clipped_on_screen_and_paper(name):
    """By a test of its own: the helper looks at both."""
    tests = [
        path.read_text()
        for path in Path(__file__).parents[2].rglob("test_*.py")
        if path != Path(__file__)
    ]
    assert any(is_drawn(name, text) and "assert_nothing_is_clipped(" in text for text in tests)
