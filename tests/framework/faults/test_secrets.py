"""Keys in the environment stay there: no file of a run and nothing it prints holds one."""

from __future__ import annotations

import os

import pytest

import runs

pytestmark = pytest.mark.slow

CANARIES = {
    "WANDB_API_KEY": "c0ffee" * 6 + "beef",
    "HF_TOKEN": "hf_canaryCanaryCanaryCanaryCanaryC",
    "MY_PASSWORD": "canary-pw-1",
}


def test_no_key_gets_into_what_a_run_writes_or_says(tmp_path, monkeypatch):
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    tiny = [*runs.TINY, "masking=none", "measure=[]", "trainer.max_epochs=1"]
    good = runs.run("train", *tiny, "logger=wandb", "logger.wandb.init_timeout=1", cwd=tmp_path)
    assert good.code == 0, good.err
    bad = runs.run("train", *tiny, "backbone.num_heads=5", cwd=tmp_path)  # refused
    broken = runs.run("train", *tiny, "data._target_=mhprobe.nowhere", cwd=tmp_path)
    assert bad.code == 2 and broken.code != 0
    said = "".join(result.out + result.err for result in (good, bad, broken)).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files) and any(
        path.suffix == ".ckpt" for path in files
    )
    for name, value in CANARIES.items():
        assert os.environ[name] == value
        assert value.encode() not in said, name
        for path in files:
            assert value.encode() not in path.read_bytes(), (name, path)
