"""Measures of one's choice before and after a training, and the course of each head over its checkpoints."""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch
from safetensors.torch import save_file

import mhprobe
from mhprobe import differing
from mhprobe.measures import Confidence, Entropy, Magnitude
from mhprobe.pages.diffing import course, page
from mhprobe.pages.diffing.changes import LEAST, kinds_of
from mhprobe.pages.diffing.opened import kept_epochs
from models import images_for, tuned_vits

CHANGED = 4  # head 1 of block 1


@pytest.fixture(scope="module")
def tuned():
    return tuned_vits()


def compared(tuned, images=LEAST, **options):
    before, after = tuned
    given = images_for(before, images)
    return mhprobe.diff(
        before, after, given, **{"null": "images", "show_progress": False, **options}
    )


def data_of(found) -> dict:
    return json.loads(
        re.search(r'<script [^>]*id="data"[^>]*>(.*?)</script>', found.page(), re.S)[1]
    )


def test_chosen_measures_stand_in_the_place_of_the_usual_ones(tuned):
    found = compared(tuned, measures=["confidence", "entropy"])
    assert found.measures == {
        "confidence": "confidence: mean largest weight",
        "entropy": "entropy of attention in nats",
    }
    assert "distance_change" not in found.heads.columns
    for side, model in zip(("before", "after"), tuned, strict=True):
        alone = mhprobe.measure(model, [images_for(model, LEAST)], [Confidence, Entropy])
        for name, values in alone.items():
            assert found.heads.column(f"{name}_{side}") == pytest.approx(values.tolist(), abs=1e-6)
    rows = found.heads.dicts()
    assert rows[CHANGED]["confidence_p"] < 0.01 and rows[CHANGED]["confidence_high"] < 0
    assert all(row["confidence_p"] == 1 for at, row in enumerate(rows) if at != CHANGED)
    said = " ".join(found.sentences)
    assert "the confidence rises in 0 heads and falls in 1; the entropy of attention" in said
    (first, _) = data_of(found)["measures"]
    assert first["called"] == "confidence: mean largest weight" and len(first["before"]) == 6
    assert first["sure"] == [at == CHANGED for at in range(6)]


def test_a_measure_of_weights_alone_has_changes_and_no_test(tuned):
    """Folds of images repeat one number: a spread of 0 would make every change certain."""
    found = compared(tuned, measures=["magnitude"])
    rows = found.heads.dicts()
    wanted = [
        mhprobe.measure(model, [images_for(model, 2)], [Magnitude])["magnitude"] for model in tuned
    ]
    assert found.heads.column("magnitude_change") == pytest.approx(
        (wanted[1] - wanted[0]).tolist(), abs=1e-5
    )
    assert all(row["magnitude_p"] != row["magnitude_p"] for row in rows)
    assert all(row["magnitude_low"] != row["magnitude_low"] for row in rows)
    assert "rises in 1 head and falls in 0 (of weights alone, so without a test)" in str(found)


def test_copies_are_measured_where_measures_are_named(tuned):
    before = tuned[0]
    pair = before, copy.deepcopy(before)
    found = compared(pair, 8, null="auto", measures=["entropy"])
    assert "a copy" in " ".join(found.notes) and found.heads.column("entropy_change") == [0] * 6


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["entropie"], "did you mean entropy"),
        (["svcca"], "svcca is of pairs of heads or blocks"),
        (["block_cca"], "is of pairs of heads or blocks"),
        (["entropy", "entropy"], "entropy is named twice"),
        ("entropy", "expected names"),
        ([], "expected names"),
    ],
)
def test_names_of_no_measure_of_heads_are_refused(names, expected):
    with pytest.raises(mhprobe.UserError, match=f"diff: measures: .*{expected}") as error:
        kinds_of(names)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["ablation_delta", "object_attention", "logit_attribution"])
def test_what_these_images_do_not_allow_is_refused_before_the_work_begins(tuned, name, monkeypatch):
    monkeypatch.setattr(page, "measured", lambda *_: pytest.fail("the work had begun"))
    with pytest.raises(mhprobe.UserError, match=f"measures: {name} cannot be taken of") as error:
        compared(tuned, 8, measures=["entropy", name])
    assert "--labelled" in str(error.value) and "\n" not in str(error.value)


def saved(model, file):
    """As weights of Lightning, which say no architecture; and a bare state of tensors."""
    if file.suffix == ".ckpt":
        state = {f"backbone.{key}": value for key, value in model.state_dict().items()}
        torch.save({"state_dict": state, "epoch": 0}, file)
    else:
        save_file(model.state_dict(), file)
    return file


def half_way(tuned):
    """The network between the two: of the changed head only the values are read."""
    between = copy.deepcopy(tuned[0])
    rows = slice(2 * 24 + 8, 2 * 24 + 16)
    with torch.no_grad():
        weights = [model.blocks[1].attn.qkv.weight for model in (between, tuned[1])]
        weights[0][rows] = weights[1][rows]
    return between


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_the_course_says_when_a_head_changed(tuned, tmp_path, suffix):
    files = [
        saved(tuned[0], tmp_path / f"epoch_2{suffix}"),
        saved(half_way(tuned), tmp_path / f"epoch_10{suffix}"),
    ]
    found = compared(tuned, 20, along=tmp_path, measures=["entropy"])
    rows = found.course.dicts()
    assert [row["point"] for row in rows[:4]] == ["before", "epoch_2", "epoch_10", "after"]
    of = [[row for row in rows if row["head"] == head] for head in range(6)]
    for head, points in enumerate(of):
        alike = [row["svcca"] for row in points]
        moved = [row["entropy"] - points[0]["entropy"] for row in points]
        assert alike[:2] == pytest.approx([1, 1], abs=1e-6) and moved[1:3] == pytest.approx([0, 0])
        if head == CHANGED:
            assert alike[2] < 0.9 and moved[3] > 0.1
            assert points[3]["entropy_low"] < points[3]["entropy"] < points[3]["entropy_high"]
        else:
            assert alike[2:] == pytest.approx([1, 1], abs=1e-6) and moved[3] == pytest.approx(0)
    alone = mhprobe.measure(tuned[1], [images_for(tuned[1], 20)], [Entropy])["entropy"]
    assert [points[3]["entropy"] for points in of] == pytest.approx(alone.tolist(), abs=1e-6)
    named = compared(tuned, 4, along=files[::-1], measures=["entropy"])
    assert [row["point"] for row in named.course.dicts()[1:3]] == ["epoch_10", "epoch_2"]
    assert "SVCCA, mean over heads) by 1.00 at epoch_2" in str(found)
    shown = data_of(found)["course"]
    assert shown["points"][1] == "epoch_2" and len(shown["measures"]) == 2
    assert len(shown["measures"][0]["heads"][0]) == 4
    found.save(tmp_path / "out")
    assert (tmp_path / "out" / "tables" / "diff_course.csv").exists()


def run_of(tuned, folder, epochs):
    """A run's folder with its kept epochs."""
    (folder / "checkpoints").mkdir(parents=True)
    for model in tuned:
        mhprobe.detach(model)
    mhprobe.save(tuned[1], folder / "model.safetensors")
    for number in range(epochs):
        saved(tuned[0], folder / "checkpoints" / f"epoch_{number}.ckpt")
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"")
    return folder


def test_a_run_that_kept_its_epochs_gives_the_course_and_many_are_thinned(tuned, tmp_path):
    run = run_of(tuned, tmp_path / "run", 12)
    assert [file.stem for file in kept_epochs(run)] == [f"epoch_{n}" for n in range(12)]
    images = images_for(tuned[0], 8)
    found = mhprobe.diff(
        tuned[0], str(run), images, measures=["entropy"], null="images", show_progress=False
    )
    points = list(dict.fromkeys(found.course.column("point")))
    assert len(points) == course.MOST + 2 and points[-2] in ("epoch_10", "epoch_11")
    assert "10 of the 12 epochs that run/model.safetensors has kept are measured" in " ".join(
        found.notes
    )
    copied = mhprobe.diff(tuned[0], str(run), images, null="rounding", show_progress=False)
    assert copied.course is None  # of copies nothing is measured without being asked


def test_checkpoints_that_do_not_fit_are_refused_before_the_work_begins(
    tuned, tmp_path, monkeypatch
):
    monkeypatch.setattr(page, "measured", lambda *_: pytest.fail("the work had begun"))
    save_file({"unlike": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "empty").mkdir()
    for along, expected in (
        (tmp_path / "other.safetensors", "is of another architecture"),
        (tmp_path / "none.ckpt", "there is no such file"),
        (tmp_path / "empty", r"has no checkpoints/epoch_<number>\.ckpt and no weights"),
        ([], "expected a folder or files"),
        (3, "expected a folder or files"),
    ):
        with pytest.raises(mhprobe.UserError, match=f"along: .*{expected}") as error:
            compared(tuned, 8, along=along)
        assert "\n" not in str(error.value)


def test_the_command_takes_names_between_commas_and_says_bad_ones_in_one_line(tmp_path, capsys):
    options = differing._parsed(
        ["a", "b", "c", "--measures", "entropy,fisher", "--along", "x", "y"]
    )
    assert options.measures == ["entropy", "fisher"] and options.along == ["x", "y"]
    code = differing.main(["a", "b", str(tmp_path), "--measures", "entropie"])
    error = capsys.readouterr().err
    assert code == 2 and "did you mean entropy" in error and error.count("\n") == 1
