"""The overrides of a run are read as they were typed."""

from __future__ import annotations

import shutil

import pytest

import runs
from mhprobe.report.runs.folder import Folder


def test_references_are_kept_and_nothing_is_no_override(tmp_path):
    assert Folder(tmp_path).overrides() == []
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "overrides.yaml"
    file.write_text("- seed=1\n- weights=a/${seed}/model.safetensors\n- data.root='b c'\n")
    assert Folder(tmp_path).overrides() == [
        "seed=1",
        "weights=a/${seed}/model.safetensors",
        "data.root='b c'",
    ]
    file.write_text("- [seed=1\n")
    with pytest.raises(ValueError, match=r"overrides\.yaml"):
        Folder(tmp_path).overrides()


@pytest.mark.slow
def test_a_sweep_over_seeds_takes_the_weights_of_each(tmp_path, trained):
    for seed in "01":
        (tmp_path / seed).mkdir()
        for part in trained.folder.glob("model.*"):
            shutil.copy(part, tmp_path / seed)
    done = runs.run(
        "probe",
        *runs.TINY,
        "-m",
        "seed=0,1",
        f"weights={tmp_path}/${{seed}}/model.safetensors",
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    assert len(list(tmp_path.glob("outputs/*/*/*/report.html"))) == 2
