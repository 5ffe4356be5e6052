"""Folders of finished runs, made in a moment: what a page is made of, without a network."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.report.measured import Point, history
from mhprobe.report.report import Report
from results import add_measure, add_rows

EVIL = "</script><script>alert('a class')</script>"
CLASSES = ["cat", EVIL, "<img src=x onerror=alert(1)>", "{{ 7 * 7 }}", 'naïve \u2028 & "quoted"']


def layout(blocks: int = 3, heads: int = 4) -> HeadLayout:
    return HeadLayout(tuple(HeadSite(f"blocks.{b}.attn", 0, b, heads, 8) for b in range(blocks)))


def row(
    curve: str, split: str, step: int, masked: list[int], accuracy: float, seed: object = ""
) -> dict[str, object]:
    return {
        **{"curve": curve, "split": split, "step": step, "heads_masked": len(masked), "unit": ""},
        **{"masked": " ".join(map(str, masked)), "accuracy": accuracy, "loss": 1.0},
        **{
            "low": accuracy - 0.02,
            "high": accuracy + 0.02,
            "p": 1.0,
            "p_holm": 0.01 if accuracy < 0.8 else 1.0,
        },
        **{
            "difference": accuracy - 0.9,
            "difference_low": accuracy - 0.92,
            "difference_high": accuracy - 0.89,
            "delta": 0.1 * step,
            "delta_low": 0.0,
            "delta_high": 0.3 * step,
            "spent": "",
            "exhaustive": "",
            "seed": seed,
        },
    }


CURVES = [
    *(
        row("wise", "validation", k, list(range(k)), a)
        for k, a in enumerate([0.90, 0.895, 0.893, 0.70])
    ),
    *(row("wise", "test", k, list(range(k)), a) for k, a in enumerate([0.90, 0.895, 0.87, 0.60])),
    *(
        row("lucky", "validation", k, list(range(5, 5 + k)), a)
        for k, a in enumerate([0.90, 0.80, 0.75, 0.70])
    ),
    *(
        row("lucky", "test", k, list(range(5, 5 + k)), a)
        for k, a in enumerate([0.90, 0.90, 0.90, 0.90])
    ),
    *(
        row("random", "test", k, list(range(9, 9 + k)), a, 0)
        for k, a in enumerate([0.90, 0.80, 0.71])
    ),
    *(
        {**row("random", "test", k, [0] * k, a, "mean"), "masked": ""}
        for k, a in enumerate([0.90, 0.80, 0.70])
    ),
]
TOTALS = [
    {
        "curve": "wise",
        "split": "validation",
        "unmasked": 0.9,
        "area_shared": 0.85,
        "heads_within_1_point": 2.0,
    },
    {
        "curve": "wise",
        "split": "test",
        "unmasked": 0.9,
        "area_shared": 0.81,
        "heads_within_1_point": 1.0,
    },
    {
        "curve": "lucky",
        "split": "validation",
        "unmasked": 0.9,
        "area_shared": 0.80,
        "heads_within_1_point": 0.0,
    },
    {
        "curve": "lucky",
        "split": "test",
        "unmasked": 0.9,
        "area_shared": 0.90,
        "heads_within_1_point": 3.0,
    },
    {
        "curve": "random",
        "split": "test",
        "unmasked": 0.9,
        "area_shared": 0.80,
        "heads_within_1_point": 0.0,
    },
]


IMAGES = torch.tensor(300)
DRAWN = (
    tempfile.TemporaryDirectory()
)  # most of the time goes into figures, which are the same for the same seed


def make_run(folder: Path, seed: int = 0, heads: HeadLayout | None = None) -> Path:
    """A run with two measures of heads, one of pairs, effects on classes, curves and a history."""
    return Path(shutil.copytree(_made(seed, heads or layout()), folder, dirs_exist_ok=True))


@functools.cache
def _made(seed: int, heads: HeadLayout) -> Path:
    folder = Path(tempfile.mkdtemp(dir=DRAWN.name))
    report = Report(folder, heads)
    generator = torch.Generator().manual_seed(seed)
    value = torch.rand(heads.num_heads, generator=generator, dtype=torch.float64) + 0.5
    value[2] = 3.0
    add_measure(
        report,
        "gate_importance",
        "per_head",
        {"value": value, "low": value - 0.1, "high": value + 0.1, "images": IMAGES},
        "importance (nats)",
        control={"value": value * 0.01},
        about="How much the loss of an image moves when a head is switched off, to first order.",
    )
    drop = torch.rand(heads.num_heads, len(CLASSES), generator=generator, dtype=torch.float64) - 0.5
    delta = value - 1
    columns = {
        "value": delta,
        "low": delta - 0.1,
        "high": delta + 0.1,
        "images": IMAGES,
        "by_class": drop,
    }
    add_measure(
        report,
        "ablation_delta",
        "per_head",
        columns,
        "rise of the loss (nats)",
        axes={"by_class": CLASSES},
        masks=True,
    )
    pairs = torch.rand(heads.num_heads, heads.num_heads, generator=generator, dtype=torch.float64)
    shared = {"value": (pairs + pairs.T) / 2, "null": torch.full_like(pairs, 0.05)}
    add_measure(report, "svcca", "pairwise", shared, "SVCCA")
    add_rows(report, "masking_curves", CURVES, "curves")
    add_rows(report, "masking_totals", TOTALS, "totals")
    points = [Point(e, 10 * e, (value * e / 3).tolist()) for e in range(4)]
    past = history(report.layout, "importance (nats)", points, drawn=False)
    report.add({"gate_importance_history": past._replace(part_of="gate_importance")})
    save_file(
        {
            f"attention/block 2 head {h}": torch.rand(2, 28, 28, generator=generator)
            for h in range(4)
        },
        folder / "maps.safetensors",
        {
            "heads": json.dumps(
                {f"attention/block 2 head {h}": ["attention maps", 8 + h] for h in range(4)}
            ),
            "titles": json.dumps([f"image {image}: {EVIL}, taken for cat" for image in (0, 5)]),
        },
    )
    queries = ("the class token", "the registers (mean)", "the patch in the middle")
    save_file(
        {
            "pictures": torch.randint(
                0, 255, (2, 3, 20, 30), generator=generator, dtype=torch.uint8
            ),
            **{
                f"{query}/{site.name}": torch.randint(
                    0, 64, (2, site.num_heads, 14, 14), generator=generator
                ).byte()
                for query in queries
                for site in heads.sites
            },
        },
        folder / "attention.safetensors",
        {
            "titles": json.dumps([f"image {image}: {EVIL}, taken for cat" for image in (0, 1)]),
            "queries": json.dumps(
                {query: [site.name for site in heads.sites] for query in queries}
            ),
        },
    )
    rows = [
        {"image": image, "label": EVIL, "predicted": "cat"} for image in (0, 5) for _ in range(4)
    ]
    add_rows(report, "maps", rows, "maps")
    report.add_metrics({"test/accuracy": 0.9, "test/images": 300})
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "model.json").write_text(json.dumps({"class_names": CLASSES, "data": "animals"}))
    (folder / "config").mkdir()
    (folder / "config" / "config.yaml").write_text(
        f"seed: {seed}\nweights: null\nmeasure:\n  gate_importance:\n"
        "    _target_: mhprobe.measures.gate_importance.GateImportance\n"
    )
    (folder / "config" / "overrides.yaml").write_text(
        "- +experiment=digits_vit\n- measure=[gate_importance]\n"
    )
    return folder


@pytest.fixture(scope="session")
def a_run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="session")
def other_run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "second", seed=1)
