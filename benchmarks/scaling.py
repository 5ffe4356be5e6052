"""What each measure costs beside a forward pass; and, from a bench.json, what ImageNet-1k x ViT-L takes on 64 GPUs.

    python -m benchmarks scaling search ranks          measures, on this machine
    python -m benchmarks.scaling bench.json            estimates from it: docs/scaling.md

Measures are timed one at a time. A run shares the recorded pass among them, so theirs is less than
the sum.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import mhprobe
from benchmarks.harness.measures import MEASURES, build
from benchmarks.harness.models import small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare
from mhprobe.errors import UserError
from mhprobe.measures.base import Measure

COSTS = "a batch recorded and measured / its forward pass"


def run(size: Size) -> Iterator[Ratio]:
    model = small_vit(size.pick(2, 6)).eval()
    layout = mhprobe.attach(model).layout
    batch = size.pick(2, 8)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator)
    labels = torch.arange(batch) % 10
    objects = torch.randint(0, 3, (batch, 32, 32), generator=generator)

    @torch.no_grad()
    def forward() -> None:
        model(images)

    for name in MEASURES:
        measure = build(name, layout)
        if measure.select_needs is not None:
            measure.select(
                mhprobe.record(model, images, labels, measure.select_needs, objects=objects)
            )
            measure.end_select()

        def look(measure: Measure = measure) -> None:
            measure.update(mhprobe.record(model, images, labels, measure.needs, objects=objects))

        yield compare(f"{name}: {COSTS}", look, forward, size.rounds(3))


def main(arguments: list[str] | None = None) -> int:
    """Print the estimates as Markdown; 2 for a file that is no bench.json."""
    from benchmarks.harness.estimate import Setting, pages
    from benchmarks.harness.record import load

    usual = Setting()
    about = str(__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=about)
    parser.add_argument("bench", type=Path, help="what python -m benchmarks wrote")
    parser.add_argument("--model", default=usual.model, help="a name of timm's")
    parser.add_argument("--gpus", type=int, default=usual.gpus)
    parser.add_argument(
        "--tflops", type=float, default=usual.tflops, help="that one GPU keeps up in float32"
    )
    parser.add_argument(
        "--link",
        type=float,
        default=usual.link,
        help="gigabytes a second that a GPU sends to others",
    )
    parser.add_argument(
        "--select", type=int, default=usual.select, help="images that orders are chosen on"
    )
    parser.add_argument(
        "--report", type=int, default=usual.report, help="images that are measured and reported"
    )
    chosen = vars(parser.parse_args(arguments))
    try:
        conditions, rows = load(chosen.pop("bench"))
    except UserError as error:
        print(f"benchmarks.scaling: {str(error).removeprefix('--against: ')}", file=sys.stderr)
        return 2
    print("\n".join(pages(conditions, rows, Setting(**chosen))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
