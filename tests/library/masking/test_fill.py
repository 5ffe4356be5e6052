"""The command with something in the place of masked heads: its own curves, its own cache."""

from __future__ import annotations

import pytest

import mhprobe.mask
import runs


@pytest.mark.slow
def test_curves_of_one_fill_are_not_anothers(trained, tmp_path):
    found = {}
    for fill in ("zero", "mean", "zero"):  # the third finds what the first kept
        folder = tmp_path / f"{fill}_{len(found)}"
        weights = f"weights={trained.folder / 'model.safetensors'}"
        cfg = runs.config(
            "mask",
            tmp_path,
            weights,
            "masking=six_curves",
            f"masking.fill={fill}",
        )
        mhprobe.mask.run(cfg, folder)
        rows = runs.rows(folder / "tables" / "masking_curves.csv")
        assert {row["fill"] for row in rows} == {fill}
        losses = [
            (row["curve"], row["split"], row["masked"], row["loss"])
            for row in rows
            if row["seed"] != "mean"
        ]
        assert found.setdefault(fill, losses) == losses
    zero, mean = ({row[:3]: row[3] for row in found[fill]} for fill in ("zero", "mean"))
    shared = [key for key in zero if key in mean]
    assert any(zero[key] != mean[key] for key in shared if key[2])
    assert all(
        zero[key] == mean[key] for key in shared if not key[2]
    )  # nothing masked: the same model
