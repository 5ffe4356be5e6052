"""From ratios measured on a small network to hours on a large one: products of what was measured and what is assumed.

Measured: what a measure costs in forward passes, what a search saves, how near two ranks are to
twice as fast. Counted: operations of a forward pass, bytes of sums, the image-forwards that each
order of conf/masking asks for. Assumed: how fast a GPU is, that ratios are those of the small
network on this machine, and that many ranks lose what two lose.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.timing import Ratio
from mhprobe.backbones import layout_of
from mhprobe.framework.run.members import members
from mhprobe.heads import Ablation, HeadBatch, HeadLayout
from mhprobe.heads.batch import Stream
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.parts.curve import CurveSpec, curve_on_splits
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.folds import FewFolds
from mhprobe.measures.parts.jackknife import NoInterval
from mhprobe.recording.record import Counter

CONF = Path(__file__).parents[2] / "conf"
EFFICIENCY = 0.8  # where the bench has not measured it: its aim
STAND_IN = 4  # images of a count: what an order asks for is proportional to them
Rows = Mapping[str, Sequence[Ratio]]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is estimated.

    tflops: kept up by one GPU, in float32. link: GB/s. select, report: images of the splits.
    """

    model: str = "vit_large_patch16_224"
    gpus: int = 64
    tflops: float = 30.0
    link: float = 25.0
    select: int = 10_000
    report: int = 50_000


@dataclasses.dataclass(frozen=True)
class Large:
    """The large network: its heads, the operations of a forward pass, tokens and width of a head."""

    layout: HeadLayout
    flops: float

    @classmethod
    def of(cls, name: str) -> Large:
        import timm

        with torch.device("meta"):
            model = timm.create_model(name).eval()
            image = torch.zeros(1, 3, *model.pretrained_cfg["input_size"][1:])
        with torch.no_grad(), Counter() as counter:
            model(image)
        return cls(layout_of(model), float(counter.total))

    def recorded(self, needs: Any) -> float:
        """Bytes per image of what is recorded in float32: outputs of heads, their slopes, attention."""
        total = 0
        for site in self.layout.sites:
            windows, tokens = site.places().shape
            z, attention = windows * tokens * site.channels, site.num_heads * windows * tokens**2
            total += 4 * (
                z * (2 if "grad" in needs else 1)
                + attention * len({"attn", "attn_grad"} & set(needs))
            )
        return total


def pages(conditions: Mapping[str, Any], rows: Rows, setting: Setting) -> Iterator[str]:
    """The estimate as lines of Markdown."""
    from benchmarks.harness.models import small_vit

    large, small = Large.of(setting.model), layout_of(small_vit())
    share, source = efficiency(rows)
    per_hour = setting.gpus * setting.tflops * 1e12 * share * 3600 / large.flops
    yield (
        f"{setting.model}: {large.layout.num_heads} heads, {large.flops / 1e9:.0f} GFLOP a forward "
        "pass. "
        f"{setting.gpus} GPUs of {setting.tflops:g} TFLOP/s (assumed), efficiency {share:.2f} "
        f"({source}): "
        f"{per_hour / 1e6:,.0f} million image-forwards an hour. Ratios from commit "
        f"{conditions.get('commit')}, "
        f"{conditions.get('cores')} cores of {conditions.get('processor')}, load "
        f"{conditions.get('load')}."
    )
    yield ""
    yield from _of_measures(rows, setting, large, small, per_hour)
    yield ""
    yield from _of_curves(rows, setting, large, per_hour)


def _of_measures(
    rows: Rows, setting: Setting, large: Large, small: HeadLayout, per_hour: float
) -> Iterator[str]:
    images = setting.report
    yield f"| measure | passes an image | {images:,} images | sums, and a copy | recorded, an image | a rank sends |"
    yield "|---|---|---|---|---|---|"
    for name, passes in costs(rows, large.layout, small):
        measure = sums_of(name, large.layout)
        held = sum(getattr(measure, state).nbytes for state in measure._defaults)
        sent = 2 * held * (setting.gpus - 1) / setting.gpus
        took = (duration(images * passes / per_hour), duration(sent / setting.link / 1e9 / 3600))
        recorded = size(large.recorded(measure.needs))
        yield f"| {name} | {passes:.3g} | {took[0]} | {size(2 * held)} | {recorded} | {size(sent)}, {took[1]} |"


def _of_curves(rows: Rows, setting: Setting, large: Large, per_hour: float) -> Iterator[str]:
    savings = {(units, search): ratio for units, search, ratio in _savings(rows)}
    shown = ("exact", "fast") if savings else ()
    columns = [
        "curve",
        "units",
        "image-forwards",
        "time",
        *(f"search={name}" for name in shown),
        "scores",
    ]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for spec in curves():
        forwards, widest = image_forwards(spec, large.layout, setting)
        cells = [duration(forwards / per_hour)]
        for name in shown:
            ratio = savings.get((spec.units, name))
            cells.append(
                duration(forwards / ratio / per_hour)
                if ratio and hasattr(spec.order, "search")
                else ""
            )
        cells.append(size(9 * widest))
        yield f"| {spec.name} | {spec.units} | {forwards / 1e6:,.0f} million | {' | '.join(cells)} |"


def costs(rows: Rows, large: HeadLayout, small: HeadLayout) -> Iterator[tuple[str, float]]:
    """(measure, forward passes an image).

    Those under masks grow with the number of masks, the others do not.
    """
    for row in rows.get("scaling", ()):
        name = row.what.partition(":")[0]
        if name in members("measure"):
            there, here = (_masks(sums_of(name, layout)) for layout in (large, small))
            yield name, row.ratio * (there / here if here else 1)


def efficiency(rows: Rows) -> tuple[float, str]:
    """Of ranks: the median of what was measured with two, at most 1."""
    speedups = [row.ratio / 2 for row in rows.get("ranks", ()) if row.limit.startswith(">=")]
    if not speedups:
        return EFFICIENCY, "assumed: the aim of the bench"
    return min(1.0, statistics.median(speedups)), "measured with two ranks"


def sums_of(name: str, layout: HeadLayout) -> Measure:
    """The measure, with sums that take no memory where its constructor allows that."""
    from benchmarks.scaling import build

    try:
        with torch.device("meta"), warnings.catch_warnings():
            # no number is asked for, only how large the sums are
            for category in (NoInterval, FewFolds):
                warnings.simplefilter("ignore", category)
            # .to: older torchmetrics takes a new measure to be on the CPU
            measure = build(name, layout).to("meta")
            if hasattr(measure, "declare"):  # sums that take the shape of the first record
                measure.declare(
                    [measure.shape(group, _record(layout)) for group in range(len(measure.groups))]
                )
            return measure
    except (NotImplementedError, RuntimeError):  # it looks into tensors, which are small then
        return build(name, layout)


def _record(layout: HeadLayout) -> HeadBatch:
    """Shapes of a record of one image: outputs of heads, and a residual stream as wide as they are together."""
    z, stream = [], []
    for site in layout.sites:
        rows = torch.zeros(1, site.places().numel(), site.num_heads, site.head_dim)
        z.append(rows)
        stream.append(Stream(*[rows.flatten(2)] * 3))
    return HeadBatch(
        tuple(z), torch.zeros(1, 1), torch.ones(1, dtype=torch.bool), stream=tuple(stream)
    )


def curves() -> list[CurveSpec]:
    """Those of conf/masking, with every candidate tried on every image."""
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    specs = []
    for yaml in sorted((CONF / "masking").glob("*.yaml")):
        part = OmegaConf.load(yaml)
        part.search = {"_target_": "mhprobe.masking.search.exact.Exact", "parts": 1}
        for name, curve in (part.curves or {}).items():
            order = instantiate(curve.order, _convert_="all")
            rest = {
                key: value for key, value in OmegaConf.to_container(curve).items() if key != "order"
            }  # type: ignore[union-attr]
            specs.append(CurveSpec(name=f"{yaml.stem}/{name}", order=order, **rest))  # type: ignore[misc]
    return specs


def image_forwards(spec: CurveSpec, layout: HeadLayout, setting: Setting) -> tuple[float, float]:
    """Image-forwards that a curve asks for on both splits, and the most (mask, image) scores of one question."""
    select, report = Counted(layout), Counted(layout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        curve_on_splits(layout, spec, select, report)
    per_image = [counted.spent / STAND_IN for counted in (select, report)]
    most = max(select.most * setting.select, report.most * setting.report)
    return per_image[0] * setting.select + per_image[1] * setting.report, most


class Counted(Evaluate):
    """Answers at random, and counts what it is asked.

    A measure's column counts as a recorded pass.
    """

    def __init__(self, layout: HeadLayout) -> None:
        self.layout, self.images, self.spent, self.most = layout, STAND_IN, 0, 0
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, masks: Tensor, images: Tensor | None = None) -> Scores:
        count = STAND_IN if images is None else len(images)
        self.spent += len(masks) * count
        self.most = max(self.most, len(masks))
        losses = torch.rand(len(masks), count, generator=self.random, dtype=torch.float64)
        return Scores(losses < 0.8, losses)

    def slopes(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        self.spent += 2 * STAND_IN
        mean, square = torch.rand(2, len(mask), generator=self.random, dtype=torch.float64)
        return mean, square

    def fisher(self, mask: Tensor) -> list[Tensor]:
        self.spent += 2 * STAND_IN
        counts = [site.num_heads for site in self.layout.sites]
        roots = [
            torch.rand(count, count, generator=self.random, dtype=torch.float64) for count in counts
        ]
        return [root @ root.mT for root in roots]

    def measure(
        self, make: Callable[[HeadLayout], Any], mask: Tensor, column: str = "value"
    ) -> Tensor:
        self.spent += max(2, len(mask) if "Ablation" in repr(make) else 0) * STAND_IN
        return torch.rand(len(mask), generator=self.random, dtype=torch.float64)


def _savings(rows: Rows) -> Iterator[tuple[str, str, float]]:
    for row in rows.get("search", ()):
        if match := re.match(r"units=(\w+),.*naive \(sampled\) / (\w+)$", row.what):
            yield match[1], match[2], row.ratio


def _masks(measure: Measure) -> int:
    return sum(len(need.masks) for need in measure.needs if isinstance(need, Ablation))


def duration(hours: float) -> str:
    """To two digits, in the unit that suits."""
    for unit, factor in (("h", 1), ("min", 60), ("s", 3600)):
        if hours * factor >= 1:
            return (
                f"{hours * factor:.2g} {unit}"
                if hours * factor < 100
                else f"{hours * factor:,.0f} {unit}"
            )
    return "< 1 s"


def size(held: float) -> str:
    """Bytes, to two digits."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if held >= factor:
            return (
                f"{held / factor:.2g} {unit}"
                if held < 100 * factor
                else f"{held / factor:,.0f} {unit}"
            )
    return f"{held:.0f} B"
