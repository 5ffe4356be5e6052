"""A result of a run: table, figure, metrics, and their description for results.json (``report/ledger.py``)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

from mhprobe.io.tensors import Outcomes
from mhprobe.masking.parts.trace import Curve
from mhprobe.report.figures import kinds
from mhprobe.report.tables import Table

NOTHING: Mapping[str, Any] = MappingProxyType({})
Extreme = Literal["largest", "smallest"]
Decision = Literal["removed", "closed"]


class Sample(NamedTuple):
    """Images of a result; none by default. words: in place of "n = 200 test images"."""

    images: int = 0
    split: str = ""
    words: str = ""

    def __str__(self) -> str:
        """Write the small print of a figure.

        >>> str(Sample(1, "test")), str(Sample(2000, "training")), str(Sample())
        ('1 test image', 'n = 2,000 training images', '')
        """
        if self.words or not self.images:
            return self.words
        return (
            f"1 {self.split} image"
            if self.images == 1
            else f"n = {self.images:,} {self.split} images"
        )


class Result(NamedTuple):
    """A table, a figure, metrics, and their description.

    curves: for dashboards that draw them themselves. drawn: the kind of figure (report/figures),
    which has a caption.
    outcomes: right test images of masked networks, by their curves, for paired tests.
    caption: in place of that one. decides: what happens to heads with 0 in the column "kept". of:
    its images, if not the report's; ``Sample()`` for none. The others are as in ``ledger.Entry``,
    which finds roles by columns' names.
    """

    table: Table | None = None
    figure: Any = None
    metrics: Mapping[str, float] = NOTHING
    curves: Sequence[Curve] = ()
    label: str = ""
    of: Sample | None = None
    drawn: str = ""
    caption: str = ""
    unit: str = ""
    larger: str = ""
    alike: Extreme | None = None
    columns: Mapping[str, str] = NOTHING
    decides: Decision | None = None
    masks: bool = False
    about: str = ""
    part_of: str = ""
    control_of: str = ""
    during: str = ""
    outcomes: Mapping[str, Outcomes] = NOTHING

    @property
    def empty(self) -> bool:
        """True if there is nothing to write."""
        return self.table is None and self.figure is None and not self.metrics

    def saying(self, label: str, larger: str, unit: str = "") -> Self:
        """Say what its values are, and what a larger one means, or "nothing: ..." where it means nothing."""
        return self._replace(label=label, larger=larger, unit=unit)

    @property
    def how_to_read(self) -> str:
        """Return the figure's caption: its own, or that of its kind, or ""."""
        return self.caption if self.caption or not self.drawn else kinds()[self.drawn].caption
