"""The estimate of docs/scaling.md: what is counted has a closed form, what is measured comes from the bench."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

from mhprobe.framework.run.members import members

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

scaling = importlib.import_module("benchmarks.scaling")
estimate = importlib.import_module("benchmarks.harness.estimate")
record = importlib.import_module("benchmarks.harness.record")
BENCH = ROOT / "docs" / "tables" / "scaling_bench.json"


@pytest.fixture(scope="module")
def large():
    return estimate.Large.of("vit_large_patch16_224")


def test_a_forward_pass_is_what_the_papers_count(large):
    assert large.layout.num_heads == 384
    assert large.flops == pytest.approx(2 * 61.6e9, rel=0.02)  # timm's table: 61.6 GMACs
    assert large.recorded({"grad"}) == 24 * 4 * 197 * 1024 * 2  # outputs of heads and their slopes
    assert large.recorded({"attn"}) == 24 * 4 * (197 * 1024 + 16 * 197**2)


def test_image_forwards_of_a_curve_are_its_candidates_and_its_points(large):
    specs = {spec.name: spec for spec in estimate.curves()}
    setting = estimate.Setting(select=1_000, report=7_000)
    for name, units in (("six_curves/head_max", 16), ("six_curves/layer_min", 24)):
        found, widest = estimate.image_forwards(specs[name], large.layout, setting)
        assert found == units * (units + 1) / 2 * 1_000 + (units + 1) * 8_000
        assert widest == (units + 1) * 7_000


def test_costs_under_masks_grow_with_the_heads_and_others_do_not(large):
    from benchmarks.harness.models import small_vit

    from mhprobe.backbones import layout_of

    small = layout_of(small_vit())
    row = record.load(BENCH)[1]["scaling"][0]
    rows = {
        "scaling": [
            dataclasses.replace(row, what=f"{name}: x", ratio=3.0)
            for name in ("ablation_delta", "svcca")
        ]
    }
    costs = dict(estimate.costs(rows, large.layout, small))
    assert (
        costs["ablation_delta"] == pytest.approx(3 * (384 + 1) / (72 + 1), rel=0.02)
        and costs["svcca"] == 3
    )


def test_the_bench_decides_the_efficiency_and_without_it_the_aim_is_named():
    assert estimate.efficiency({}) == (0.8, "assumed: the aim of the bench")
    row = record.load(BENCH)[1]["scaling"][0]
    ranks = [dataclasses.replace(row, ratio=ratio, limit=">= 1.6") for ratio in (1.7, 1.8, 1.9)]
    ranks.append(dataclasses.replace(row, ratio=1.0, limit="<= 1.5"))  # memory, not time
    assert estimate.efficiency({"ranks": ranks})[0] == pytest.approx(0.9)


@pytest.mark.slow
def test_the_stored_bench_gives_a_row_for_every_measure_and_curve(capsys):
    assert scaling.main([str(BENCH), "--gpus", "8"]) == 0
    said = capsys.readouterr().out
    for row in record.load(BENCH)[1]["scaling"]:
        name = row.what.partition(":")[0]
        if name in members("measure"):
            assert re.search(rf"^\| {name} \| .* (s|min|h) \|", said, re.M), name
    for spec in estimate.curves():
        assert f"| {spec.name} | {spec.units} |" in said
    assert "8 GPUs" in said and "assumed" in said


def test_sums_whose_shape_the_first_record_decides_are_counted(large):
    """SVCCA sums outer products of all channels of a layer, in folds of images; closed form for 24 layers."""
    measure = estimate.sums_of("svcca", large.layout)
    held = sum(getattr(measure, name).nbytes for name in measure._defaults)
    assert measure.null_folds == 16, "64 would take 2.3 GiB"
    folds, channels, tokens = measure.jackknife, 1024, 197
    moments = 24 * folds * (channels**2 + channels + 1)
    assert held == pytest.approx(
        8 * (moments + 24 * measure.null_folds * (tokens * channels + 1)), rel=1e-6
    )
    assert all(
        getattr(measure, name).device.type == "meta" for name in measure._defaults if "_" in name
    )


def test_a_file_that_is_no_bench_is_answered_in_a_line(tmp_path, capsys):
    assert scaling.main([str(tmp_path / "none.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_durations_and_sizes_are_in_the_unit_that_suits():
    assert [estimate.duration(hours) for hours in (1e-6, 0.01, 2.5, 250)] == [
        "< 1 s",
        "36 s",
        "2.5 h",
        "250 h",
    ]
    assert [estimate.size(held) for held in (12, 2048, 300 * 2**20)] == ["12 B", "2 KiB", "300 MiB"]
    assert (
        torch.get_default_device().type == "cpu"
    )  # sums without memory were made in a context that ended
