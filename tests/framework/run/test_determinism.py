"""The same command gives the same bytes: tables, numbers and weights, on a CPU. tools/determinism.py asks a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import mhprobe.train
import runs


def written(folder: Path, seed: int) -> dict[str, bytes]:
    """What a tiny training leaves in tables, numbers and weights; no two share a cache."""
    more = ("trainer.max_epochs=1", "measure=[gate_importance,svcca,entropy]", "masking=none")
    cfg = runs.config("train", folder / "cache", *more, f"seed={seed}")
    mhprobe.train.run(cfg, folder / "run")
    paths = [
        *folder.glob("run/tables/*.csv"),
        folder / "run" / "metrics.json",
        folder / "run" / "model.safetensors",
    ]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.slow
def test_the_same_training_leaves_the_same_bytes_twice(tmp_path):
    first = written(tmp_path / "first", seed=0)
    torch.rand(7), np.random.rand(7)  # whatever ran before in this process
    again, other = written(tmp_path / "again", seed=0), written(tmp_path / "other", seed=1)
    assert len(first) >= 5 and first == again
    assert (
        other.keys() == first.keys()
        and other["gate_importance.csv"] != first["gate_importance.csv"]
    )
