"""What a probing run costs: network passes that all measures share, and memory that does not grow with the images."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf

import mhprobe
from benchmarks.gates import small_vit
from benchmarks.timing import Ratio
from mhprobe.data.batch import Batch
from mhprobe.heads import Ablation, HeadLayout
from mhprobe.measures.base import Measure
from mhprobe.recording.cost import forward_equivalents
from mhprobe.recording.measuring import needs_of

YAMLS = sorted((Path(__file__).parents[1] / "conf" / "measure").glob("*.yaml"))
FEW, MANY, BATCH = 1_000, 10_000, 100


def build(yaml: Path, layout: HeadLayout) -> Measure:
    from hydra.utils import instantiate

    return instantiate(OmegaConf.load(yaml), _convert_="all")(layout)


def run() -> list[Ratio]:
    model = small_vit().eval()
    layout = mhprobe.attach(model).layout
    needs = needs_of(build(yaml, layout) for yaml in YAMLS)
    batch = Batch(torch.randn(4, 3, 32, 32), torch.arange(4), torch.arange(4), torch.ones(4, dtype=torch.bool))
    passes = forward_equivalents(model, batch, {need for need in needs if not isinstance(need, Ablation)})
    masked = forward_equivalents(model, batch, needs) - passes
    count = len(YAMLS)
    return [
        Ratio(f"{count} measures, without ablation: operations / forward", passes, passes, passes, 1, "<= 6"),
        Ratio("  beside it: masked passes of ablation / forward", masked, masked, masked, 1),
        *(_memory(yaml) for yaml in YAMLS),
    ]


def _memory(yaml: Path) -> Ratio:
    """Peak resident memory of a fresh process after many images / after few.

    Most of it is the libraries' own, so this sees what grows by megabytes; that a measure's sums do not grow at all is
    one of the contract tests.
    """
    command = [sys.executable, "-m", "benchmarks.probe", str(yaml)]
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=single).stdout.split()
    growth = int(said[-1]) / int(said[-2])
    return Ratio(f"{yaml.stem}: peak memory at {MANY:,} images / {FEW:,}", growth, growth, growth, 1, "<= 1.1")


def _watch(yaml: Path) -> None:
    """Feed a measure on a tiny ViT with random images, drawn batch by batch; print the peaks in KiB."""
    import resource

    import timm

    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "num_heads": 3, "depth": 2, "reg_tokens": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **options).eval()
    layout = mhprobe.attach(model).layout
    measure = build(yaml, layout)

    patch = torch.ones(1, 8, 8, dtype=torch.long)

    def draw(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "images": torch.randn(BATCH, 3, 32, 32, generator=generator),
            "labels": torch.randint(0, 5, (BATCH,), generator=generator),
            "objects": torch.randint(0, 3, (BATCH, 4, 4), generator=generator).kron(patch),
        }

    if measure.select_needs is not None:
        for number in range(2):
            measure.select(mhprobe.record(model, **draw(number), needs=measure.select_needs))
        measure.end_select()
    for number in range(MANY // BATCH):
        measure.update(mhprobe.record(model, **draw(number), needs=measure.needs))
        if (number + 1) * BATCH in (FEW, MANY):
            measure.columns()
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
