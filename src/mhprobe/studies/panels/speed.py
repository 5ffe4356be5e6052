"""Speed of the network without heads, by batch size (Michel et al. 2019, Table 4)."""

from collections.abc import Sequence

from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import pruned as figure
from mhprobe.report.report import Result, Sample
from mhprobe.surgery.speed import BATCHES, speed_table


def speed(
    material: Material, batches: Sequence[int] = BATCHES, rounds: int = 15, seconds: float = 0.05
) -> dict[str, Result]:
    """Sample per second, dense against masked against pruned evenly in every layer.

    batches: sizes. rounds: timings of each; seconds: about how long one takes; see ``speed_table``.
    """
    if not material.first:  # other processes of the same machine would be timed with it
        return {}
    rows = speed_table(material.backbone, batches=batches, rounds=rounds, seconds=seconds)
    return {"speed": Result(tables.from_rows(rows, "speed"), figure.speed(rows), of=Sample())}
