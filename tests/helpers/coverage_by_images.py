"""How often intervals hold the truth, by the number of images: real heads, and laws with long tails.

Images are drawn with replacement from 1,000 real ones (``real_heads.py``), whose mean is the truth,
or from a law whose mean is known. ``python tests/helpers/coverage_by_images.py`` writes
docs/tables/coverage.csv and prints the table of docs/levels.md.

Shapes: D draws, n images, A heads.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import real_heads
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.parts.image_sums import MeanOverImages
from mhprobe.stats.intervals import SIZE, of_mean, of_skewed_mean

SIZES = (50, 100, 300, 1000)
TABLE = Path(__file__).parents[2] / "docs" / "tables" / "coverage.csv"
CHUNK = 50  # draws at a time
Ends = tuple[Tensor, Tensor]


class Population(NamedTuple):
    """draw: (draws, images, generator) -> (D, n, A) values and their weights. truth: (A,).

    ends: (D, n, A) values and weights -> (D, A) lower and upper ends.
    """

    interval: str
    of: str
    draw: Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
    truth: Tensor
    ends: Callable[[Tensor, Tensor], Ends]


class _Root(MeanOverImages):
    """Root of the ratio of two sums, as activation norm is, of rows that are given."""

    def __init__(self, rows: int) -> None:
        super().__init__(HeadLayout((HeadSite("a", 0, 0, rows, 1),)))
        self.within = SIZE

    def update(self, batch: object) -> None: ...

    def finish(self) -> dict[str, Tensor]:
        return self.over_images(lambda sums: (sums[0] / sums[1] + 1e-300).sqrt())


def of_root(values_DnA: Tensor, weights_DnA: Tensor) -> Ends:
    """Ends of the root of the mean over tokens, of images with other numbers of tokens."""
    draws, images, heads = values_DnA.shape
    root = _Root(draws * heads)
    rows = (each.transpose(0, 1).flatten(1) for each in (values_DnA, weights_DnA))
    root.add_images(slice(None), *rows)
    root.images += images
    found = root.finish()
    return found["low"].view(draws, heads), found["high"].view(draws, heads)


def of_skewed(values_DnA: Tensor, _: Tensor) -> Ends:
    powers = (values_DnA.pow(power).sum(1) for power in (1, 2, 3))
    found = of_skewed_mean(*powers, torch.tensor(values_DnA.shape[1]), SIZE)
    return found["low"], found["high"]


def of_log(values_DnA: Tensor, _: Tensor) -> Ends:
    """Student's on the logarithmic scale: what gate importance had before."""
    sums = (values_DnA.sum(1), values_DnA.square().sum(1))
    found = of_mean(*sums, torch.tensor(values_DnA.shape[1]), SIZE)
    return found["low"], found["high"]


def of_real(name: str, network: str, values: Tensor, ends: Callable[..., Ends], unequal: bool):
    """A population of real images; unequal: each has as many tokens as a lognormal number says."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(len(values), 1, generator=generator, dtype=torch.float64).exp()
    weights = weights.expand_as(values) if unequal else torch.ones_like(values)
    values = values * weights

    def draw(draws: int, images: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(values), (draws, images), generator=generator)
        return values[chosen], weights[chosen]

    truth = values.sum(0) / weights.sum(0)
    return Population(name, network, draw, truth.sqrt() if ends is of_root else truth, ends)


def of_law(name: str, power: int) -> Population:
    """Powers of the sizes of lognormal slopes, e^N(0, 1)."""

    def draw(draws: int, images: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        normal = torch.randn(draws, images, 12, generator=generator, dtype=torch.float64)
        return (power * normal).exp(), torch.ones_like(normal)

    truth = torch.full((12,), power**2 / 2, dtype=torch.float64).exp()
    return Population(name, "lognormal slopes", draw, truth, of_skewed)


def populations() -> Iterator[Population]:
    for network in real_heads.NETWORKS:
        slope, size = (real_heads.columns(network, kind) for kind in ("slope", "size"))
        yield of_real("gate_importance", network, slope.abs(), of_skewed, False)
        yield of_real("fisher", network, slope.square(), of_skewed, False)
        yield of_real("activation_norm", network, size, of_root, False)
        yield of_real("activation_norm, unequal images", network, size, of_root, True)
        yield of_real("gate_importance, logarithmic scale", network, slope.abs(), of_log, False)
        yield of_real("fisher, logarithmic scale", network, slope.square(), of_log, False)
    yield of_law("gate_importance", 1)
    yield of_law("fisher", 2)


class Coverage(NamedTuple):
    """Shares of draws whose interval holds the truth.

    mean: over heads; worst: of the head where it is lowest; error: standard error of the mean.
    """

    mean: float
    worst: float
    error: float


def coverage(population: Population, images: int, draws: int, seed: int = 0) -> Coverage:
    generator = torch.Generator().manual_seed(seed)
    held = []
    for _ in range(draws // CHUNK):
        low, high = population.ends(*population.draw(CHUNK, images, generator))
        held.append((low <= population.truth) & (population.truth <= high))
    held_DA = torch.cat(held).double()
    of_draw = held_DA.mean(1)
    return Coverage(
        float(of_draw.mean()),
        float(held_DA.mean(0).min()),
        float(of_draw.std() / len(of_draw) ** 0.5),
    )


def rows(draws: int) -> list[dict[str, str]]:
    found = []
    for population in populations():
        for images in SIZES:
            got = coverage(population, images, draws)
            shares = zip(("mean_percent", "worst_percent", "standard_error"), got, strict=True)
            found.append(
                {
                    "interval": population.interval,
                    "of": population.of,
                    "images": str(images),
                    **{name: f"{100 * share:.1f}" for name, share in shares},
                    "draws": str(draws),
                }
            )
    return found


def page(found: list[dict[str, str]]) -> str:
    """The table of docs/levels.md: a line per interval and population, a column per number of images."""
    lines = [
        "| interval | heads | " + " | ".join(f"{images:,}" for images in SIZES) + " |",
        "|---|---|" + "---|" * len(SIZES),
    ]
    cells: dict[tuple[str, str], list[str]] = {}
    for row in found:
        cell = f"{row['mean_percent']} ({row['worst_percent']})"
        cells.setdefault((row["interval"], row["of"]), []).append(cell)
    lines += [f"| {' | '.join((*names, *of))} |" for names, of in cells.items()]
    return "\n".join(lines)


def main(draws: int) -> str:
    found = rows(draws)
    with open(TABLE, "w", newline="") as file:
        table = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(found)
    return page(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
