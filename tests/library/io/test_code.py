"""What a user wrote is part of the keys of what is kept: the same name with other code is another thing."""

from __future__ import annotations

import functools
import importlib
import json
import shutil
import sys
from importlib.metadata import version

import pytest
import torch

import mhprobe
from mhprobe.data.batch import Batch
from mhprobe.io import code
from mhprobe.io.code import _distributions, code_digests, stands_on
from mhprobe.masking.parts.cache import MaskCache, cache_key, describe
from mhprobe.measures import Entropy
from mhprobe.scoring.parts.evaluate import Evaluator
from models import images_for, labels_for, tiny_vit

MEASURE = """
import torch
from own_helper import FACTOR
from mhprobe.measures.base import Measure

class Mine(Measure):
    def update(self, batch):
        self.images += batch.valid.sum()

    def finish(self):
        return {"value": FACTOR * torch.arange(self.layout.num_heads, dtype=torch.float64)}
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes modules and gives the class ``own_measure.Mine``, as a new process would import it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(measure: str = MEASURE, helper: str = "FACTOR = 1"):
        for name, text in (("own_measure", measure), ("own_helper", helper)):
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("own_measure").Mine

    yield write
    for name in ("own_measure", "own_helper"):
        sys.modules.pop(name, None)


def key(thing) -> str:
    return cache_key(measure=describe(thing))


@pytest.mark.parametrize(
    "change", [{"measure": MEASURE + "# edited"}, {"helper": "FACTOR = 2"}], ids=["file", "import"]
)
def test_an_edited_measure_of_ones_own_is_another_question(written, change):
    before = key(written())
    assert key(written()) == before
    assert key(written(**change)) != before
    partly = key(functools.partial(written(), column=1))
    assert key(functools.partial(written(**change), column=1)) != partly


def test_an_order_by_an_edited_measure_is_found_anew(written, tmp_path):
    model = tiny_vit()
    mhprobe.attach(model)
    images = images_for(model, 4)
    whole = torch.ones(4, dtype=torch.bool)
    batches = [Batch(images, labels_for(4), torch.arange(4), whole)]
    nothing = torch.zeros(6, dtype=torch.bool)

    def scores(measure):
        return (
            Evaluator(model, lambda: batches, 4, cache=MaskCache(tmp_path, "key"))
            .measure(measure, nothing)
            .tolist()
        )

    assert scores(written()) == [0, 1, 2, 3, 4, 5]
    assert scores(written(helper="FACTOR = -1")) == [0, -1, -2, -3, -4, -5]
    assert scores(written()) == [0, 1, 2, 3, 4, 5]


def test_a_figures_ingredients_are_the_code_and_the_files_that_it_names(written, tmp_path):
    table = tmp_path / "scores.csv"
    table.write_text("head,value\n")
    config = {
        "measure": {"mine": {"_target_": "own_measure.Mine", "_partial_": True}},
        "order": [{"table": str(table)}],
    }
    written()
    before = stands_on(config)
    assert set(before["code"]) == {"own_measure", "own_helper", "torch", "torchmetrics"} and set(
        before["files"]
    ) == {str(table)}
    assert json.loads(json.dumps(before)) == stands_on(config) == before
    table.write_text("head,value\n0,1\n")
    written(helper="FACTOR = 3")
    after = stands_on(config)
    assert (
        after["files"] != before["files"]
        and after["code"]["own_helper"] != before["code"]["own_helper"]
    )
    assert after["code"]["own_measure"] == before["code"]["own_measure"]


def test_installed_code_is_known_by_its_version_and_ours_by_none():
    found = code_digests(Entropy, type(tiny_vit()), json.dumps, "own_measure_that_is_not_there")
    assert found.items() >= {"torch": version("torch"), "timm": version("timm")}.items()
    assert not [name for name in found if name.startswith(("mhprobe", "json", "own_"))]
    assert set(code_digests(key)) >= {__name__, "pytest"}


def test_an_installed_measure_of_another_version_is_another_question(tmp_path, monkeypatch):
    """Also where the distribution is called otherwise, and where the user's own measure only imports it."""
    place = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(place)
    (place / "lab_measures").mkdir(parents=True)
    (place / "lab_measures" / "__init__.py").write_text("FACTOR = 1")
    (tmp_path / "mine.py").write_text("import lab_measures.deeper")
    monkeypatch.syspath_prepend(tmp_path)

    def install(number: str) -> tuple[str, dict[str, str]]:
        for old in place.glob("*.dist-info"):
            shutil.rmtree(old)
        about = place / f"labs_measures-{number}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: labs-measures\nVersion: {number}\n"
        )
        (about / "top_level.txt").write_text("lab_measures\n")
        importlib.invalidate_caches()
        _distributions.cache_clear()
        measure = {"_target_": "lab_measures.deeper.Mine", "_partial_": True}
        return cache_key(stands_on=stands_on(measure)), code_digests("mine")

    (first, imported), (second, _) = install("1.0"), install("1.1")
    assert first != second and install("1.0") == (first, imported)
    assert imported["lab_measures"] == "1.0" and len(imported) == 2
    _distributions.cache_clear()


def test_the_package_of_a_peer_is_in_the_key_of_its_method():
    """Its class is ours, and imports the other's package where it is needed."""
    assert (
        "torch_pruning"
        in stands_on({"_target_": "mhprobe.lab.prunebench.peer.TorchPruning"})["code"]
    )


def test_an_edit_in_the_lab_forgets_nothing_that_was_measured(tmp_path, monkeypatch):
    package = tmp_path / "mhprobe"
    for name in ("measures", "lab", "pages"):
        (package / name).mkdir(parents=True)
        (package / name / "one.py").write_text("x = 1")
    monkeypatch.setattr(code, "_OURS", package)

    def digests() -> tuple[str, str]:
        code.our_digest.cache_clear()
        return code.our_digest(code.ABOVE), code.our_digest()

    measured, whole = digests()
    (package / "lab" / "one.py").write_text("x = 2")
    (package / "pages" / "one.py").write_text("x = 2")
    assert digests()[0] == measured and digests()[1] != whole
    (package / "measures" / "one.py").write_text("x = 2")  # the control
    assert digests()[0] != measured
    code.our_digest.cache_clear()
