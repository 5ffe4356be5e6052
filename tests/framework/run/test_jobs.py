"""Two runs never share a folder, and a sweep knows at its end what failed, whoever ran its jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from mhprobe.errors import UserError
from mhprobe.framework.run import jobs
from mhprobe.report.runs.folder import Folder


def test_processes_that_start_in_the_same_second_get_folders_of_their_own(tmp_path):
    wanted = f"claim_folder('{tmp_path}/runs/now')"
    code = f"from mhprobe.framework.run.jobs import claim_folder; print({wanted}, {wanted})"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    got = [process.communicate()[0].split() for process in started]
    assert all(
        first == again for first, again in got
    )  # one process asks often, and is answered the same
    assert len({first for first, _ in got}) == 4
    assert {Path(first).name for first, _ in got} == {"now", "now_2", "now_3", "now_4"}


def test_ranks_of_one_run_are_told_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert jobs.claim_folder(str(tmp_path / "now")) == str(tmp_path / "now") and not list(
        tmp_path.iterdir()
    )


def test_a_folder_that_another_run_is_writing_into_is_refused(tmp_path):
    with (
        jobs.held(tmp_path),
        pytest.raises(UserError, match="another run is writing there"),
        jobs.held(tmp_path),
    ):
        pass
    with jobs.held(tmp_path):  # it was given back
        assert not list(tmp_path.iterdir())


def test_a_mistake_leaves_the_settings_of_the_run_that_is_in_the_folder(tmp_path):
    first, second = OmegaConf.create({"seed": 1}), OmegaConf.create({"seed": 2})
    with jobs.keep_settings(tmp_path, first, ["seed=1"]):
        pass
    with (
        pytest.raises(UserError, match="refused"),
        jobs.keep_settings(tmp_path, second, ["seed=2"]),
    ):
        assert Folder(tmp_path).overrides() == ["seed=2"]  # the run itself reads its own
        raise UserError("refused")
    assert Folder(tmp_path).overrides() == ["seed=1"] and Folder(tmp_path).yaml(
        "config/config.yaml"
    ) == {"seed": 1}
    with pytest.raises(SystemExit), jobs.keep_settings(tmp_path, second, ["seed=2"]):
        raise SystemExit(143)  # stopped, and to be continued with its own settings
    assert Folder(tmp_path).yaml("config/config.yaml") == {"seed": 2}


def refused(folder, sweeping=False, written=(), ours=True):
    if ours:
        assert jobs.claim_folder(str(folder)) == str(folder)
    else:
        folder.mkdir(parents=True)
    with (
        pytest.raises(UserError, match="refused"),
        jobs.keep_settings(folder, OmegaConf.create({"seed": 1}), ["seed=1"], sweeping),
    ):
        for name in written:
            (folder / name).touch()
        raise UserError("refused")


def test_a_run_that_was_refused_leaves_no_folder(tmp_path):
    refused(tmp_path / "outputs" / "demo" / "now")
    assert not (tmp_path / "outputs").exists()  # which it has made, too


def test_a_run_that_was_refused_leaves_the_folders_that_were_there(tmp_path):
    """Negative control, of empty ones."""
    (tmp_path / "outputs").mkdir()
    refused(tmp_path / "outputs" / "demo" / "now")
    assert (tmp_path / "outputs").exists() and not (tmp_path / "outputs" / "demo").exists()


def test_what_a_run_had_written_and_the_folder_of_a_sweeps_job_stay_with_their_settings(tmp_path):
    """Negative control."""
    refused(tmp_path / "late", written=["metrics.json"])
    refused(tmp_path / "sweep" / "0", sweeping=True)
    refused(tmp_path / "given", ours=False)  # somebody else may be writing there
    for folder in ("late", "sweep/0", "given"):
        assert Folder(tmp_path / folder).overrides() == ["seed=1"]


def test_a_job_that_is_run_again_in_its_folder_no_longer_counts_as_failed(tmp_path):
    jobs.note_failure(tmp_path, 2, "weights: no file")
    with jobs.keep_settings(tmp_path, OmegaConf.create({"seed": 1}), ["seed=1"]):
        assert not (tmp_path / jobs.FAILED).exists()


@pytest.mark.parametrize(("codes", "expected"), [((2, 2), 2), ((2, 1), 1), ((), None)])
def test_the_end_of_a_sweep_names_the_jobs_that_failed(tmp_path, capsys, codes, expected):
    for number in range(3):
        (tmp_path / str(number) / "config").mkdir(parents=True)
        OmegaConf.save(
            OmegaConf.create([f"seed={number}"]),
            tmp_path / str(number) / "config" / "overrides.yaml",
        )
    for number, code in enumerate(codes):
        jobs.note_failure(tmp_path / str(number), code, f"what was wrong with {number}")
    end = jobs.SaysWhatFailed()
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    if expected is None:
        end.on_multirun_end(config)
        assert capsys.readouterr().err == ""
        return
    with pytest.raises(SystemExit) as stop:
        end.on_multirun_end(config)
    said = capsys.readouterr().err
    assert stop.value.code == expected
    assert (
        "2 of 3 jobs failed" in said
        and "seed=1): what was wrong with 1" in said
        and "seed=2" not in said
    )
