"""Panels look at images by the one loop that measures are fed by, and say the same however it cuts the batches."""

from __future__ import annotations

import ast
from itertools import chain
from pathlib import Path

import pytest
import torch

import mhprobe
from mhprobe.lab.papers.panels import relations as probing
from mhprobe.lab.papers.panels.attention import covering
from mhprobe.lab.papers.panels.frequencies import fft_images
from mhprobe.lab.papers.panels.relations import offset_words, relations
from mhprobe.lab.papers.panels.two_views import correspondence, two_views
from mhprobe.recording import measuring
from mhprobe.recording.record import record
from models import tiny_swin, tiny_vit

STUDIES = Path(mhprobe.__file__).parent / "studies"


@pytest.mark.parametrize("material", [tiny_vit, tiny_swin], indirect=True)
@pytest.mark.parametrize(
    "panel", [covering, correspondence, fft_images, probing.probing, relations, two_views]
)
def test_pieces_of_a_batch_add_up_to_what_the_whole_gives(panel, material, monkeypatch):
    """The Swin has padded windows that wrap around the image."""
    if panel is probing.probing and material.layout.sites[0].windows is not None:
        pytest.skip("a probe over all heads needs the same patches for each")
    if panel is two_views and material.layout.sites[0].token_grid[1] % 2:
        pytest.skip("an odd grid has no two halves")
    seen, found = [], []

    def watched(model, images, *rest, **named):
        seen[-1].append(len(images))
        return record(model, images, *rest, **named)

    monkeypatch.setattr(measuring, "record", watched)
    for least in (4, 1000):
        monkeypatch.setattr(measuring, "LEAST", least)
        seen.append([])
        (result,) = panel(material).values()
        found.append(result.table)
    needs_attention = panel in (covering, probing.probing, relations, two_views)
    assert (max(seen[0]) < max(seen[1])) == needs_attention and sum(seen[0]) == sum(seen[1])
    assert found[0].columns == found[1].columns and len(found[0].rows) == len(found[1].rows) > 0
    for some, whole in zip(*(chain(*table.rows) for table in found), strict=True):
        number = isinstance(whole, float)
        assert some == (
            pytest.approx(whole, rel=1e-4, abs=1e-4, nan_ok=True) if number else whole
        )  # float32


@pytest.mark.parametrize("material", [tiny_vit], indirect=True)
def test_probes_are_fitted_on_validation_images_and_scored_on_test_images(material, monkeypatch):
    """The network's, the untrained one's and the best offset; whoever collects images notes the name of their split."""
    fitted, scored = [], []
    of_split = {}

    def collected(material, model, split, *rest):
        queries = collect(material, model, split, *rest)
        of_split[id(queries)] = split
        return queries

    def noting(answer):
        def noted(fit, test, *rest, **named):
            fitted.append(of_split[id(fit)]), scored.append(of_split[id(test)])
            for part in test:  # what is right on test images is not to be learned from
                assert part.data_ptr() not in {each.data_ptr() for each in fit}
            hidden = test._replace(right=~test.right)
            found = answer(fit, test, *rest, **named)
            torch.testing.assert_close(answer(fit, hidden, *rest, **named), found)
            return found

        return noted

    collect = probing.collect_features
    monkeypatch.setattr(probing, "collect_features", collected)
    for way in ("probe", "_by_offset"):
        monkeypatch.setattr(probing, way, noting(getattr(probing, way)))
    probing.probing(material, steps=3)
    assert set(fitted) == {"val"} and set(scored) == {"test"} and len(fitted) >= 4


@pytest.mark.parametrize("material", [tiny_swin], indirect=True)
def test_offsets_of_a_window_that_wraps_around_have_numbers_of_their_own(material):
    plain, shifted = material.layout.sites[:2]  # windows of 4 x 4 on a grid of 9 x 9
    assert offset_words(3 * 7 + 3, plain) == "itself"
    assert offset_words(0, shifted) == "8 up, 8 left"


def loops_of_their_own(source: str) -> list[str]:
    """Calls of ``record`` inside a loop or a comprehension."""
    loops = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)
    return [
        ast.unparse(call)
        for loop in ast.walk(ast.parse(source))
        if isinstance(loop, loops)
        for call in ast.walk(loop)
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "record"
    ]


def test_no_study_records_batches_in_a_loop_of_its_own():
    assert {
        str(path): found
        for path in STUDIES.rglob("*.py")
        if (found := loops_of_their_own(path.read_text()))
    } == {}


@pytest.mark.parametrize(
    "line", ["for x in y:\n    z = record(m, x)", "z = [recording.record(m, x) for x in y]"]
)
def test_a_planted_loop_is_found(line):
    assert loops_of_their_own(f"{line}\nrecord(m, y)\nrecorded(m, y)") != []
