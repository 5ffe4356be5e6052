"""Material of questions: a model, its images, and their columns, controls and masking curves.

Columns are measured when first asked for, with all others of the same recorded pass, and kept on
disk under the digest of everything that decides them. A killed run goes on after its last finished
pass.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import gives_features
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.questions import stored
from mhprobe.framework.questions.masking import Masking, Subject
from mhprobe.heads import Need
from mhprobe.io.code import ABOVE, our_digest, stands_on
from mhprobe.io.progress import progress
from mhprobe.masking.parts.cache import cache_key, describe
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.redundant_or_inert import MaskedHead
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import Columns, Passes, feed, finished
from mhprobe.recording.outputs import Of

log = logging.getLogger(__name__)

CONTROL = "random initialisation"


@dataclass
class Measurements:
    """Measurements of one model on one data set: columns and errors by measure and control, curves by name.

    broken: the error, if nothing at all can be recorded. without_control: measures whose missing
    control was logged.
    """

    columns: dict[tuple[str, bool], Columns] = field(default_factory=dict)
    refused: dict[tuple[str, bool], UserError] = field(default_factory=dict)
    curves: dict[str, list[Curve]] = field(default_factory=dict)
    broken: UserError | None = None
    without_control: set[str] = field(default_factory=set)


@dataclass
class Material(Subject):
    """A model, its images, and what is measured of them.

    measures: by name; a UserError for one that does not fit the model. options: of each measure, in
    plain values.
    masking: describes masking curves; None for none. twin: makes the control, a freshly initialised
    network with gates; None for none. target: of slopes; None for the loss, of features their norm.
    store: folder of kept columns; None to keep none. names, curve_names: measures and masking
    curves of the present question. passes: measures of one pass together, of the network (False)
    and of its control (True).
    """

    measures: Mapping[str, Measure | UserError] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    masking: Masking | None = None
    twin: Callable[[], nn.Module] | None = None
    target: Of | None = None
    store: Path | None = None
    names: Sequence[str] = ()
    curve_names: Sequence[str] = ()
    passes: Mapping[bool, Iterable[Sequence[str]]] = field(default_factory=dict)
    measurements: Measurements = field(default_factory=Measurements)

    def columns(self, name: str) -> Columns:
        """Return the columns of a measure, "value" first.

        UserError for one that does not fit. A collective.
        """
        return self._columns(name, control=False)

    def control(self, name: str) -> Columns | None:
        """Return the columns of a freshly initialised network; None where there is no control.

        A collective.
        """
        try:
            return None if self.twin is None else self._columns(name, control=True)
        except UserError as error:
            if self.first and name not in self.measurements.without_control:
                log.warning("%s: no control. %s", name, error)
            self.measurements.without_control.add(name)
            return None

    def missing(self, names: Sequence[str], control: bool) -> dict[str, Measure]:
        """Return the measures of a pass that are not kept yet, of the network or of its control.

        A collective.
        """
        if control and self.twin is None:
            return {}
        passes = {name for group in self.passes.get(control, ()) for name in group}
        group = {
            name: item
            for name in names
            if isinstance(item := self.measures[name], Measure) and name in passes
        }
        kept = self._stored(group, control)
        return {name: measure for name, measure in group.items() if name not in kept}

    def curves(self, *names: str) -> list[Curve]:
        """Return masking curves by name, on each split.

        UserError for an unknown or impossible curve. A collective.
        """
        for name in names or self.curve_names:
            if name not in self.measurements.curves:
                self.measurements.curves[name] = self.described.curve(self, name)
        return [
            curve for name in names or self.curve_names for curve in self.measurements.curves[name]
        ]

    def masked_heads(self, curves: Sequence[Curve]) -> list[MaskedHead]:
        """Return the heads that the searched curves mask, each redundant or inert, if asked for.

        A collective.
        """
        return self.described.masked_heads(self, curves, self.kept)

    def kept(self, about: Any, find: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return other numbers, kept as columns are if ``about`` has names for all its parts.

        A collective.
        """
        folder, key = self.store, ""
        with contextlib.suppress(ValueError):  # a part without a name
            key = self._key({"about": describe(about)}) if folder else ""
        if (
            folder
            and key
            and (entry := ranks.from_rank_zero(lambda: stored.read(folder, key))) is not None
        ):
            return entry.columns
        answer = {name: values.cpu() for name, values in find().items()}
        if folder and key and self.first:
            stored.write(folder, key, answer)
        return answer

    def about(self, name: str) -> Measure:
        """Return the measure of this name. UserError for one that does not fit the model."""
        if isinstance(measure := self.measures[name], UserError):
            raise measure
        return measure

    @property
    def slopes_of(self) -> Of:
        return self.target or ("norm" if gives_features(self.model) else "loss")

    def on(self, data: ImageData) -> Self:
        """Return the same model and measures on other images."""
        return replace(self, data=data, twin=None, measurements=Measurements(), facts={})

    @property
    def described(self) -> Masking:
        """The descriptions of masking curves. UserError if there are none."""
        if self.masking is None:
            raise UserError("curves: none are described, expected some masking curves.")
        return self.masking

    def _columns(self, name: str, control: bool) -> Columns:
        which = name, control
        if which not in self.measurements.columns and which not in self.measurements.refused:
            names = next(
                (list(group) for group in self.passes.get(control, ()) if name in group), [name]
            )
            unfit = {
                name: error for name in names if isinstance(error := self.measures[name], UserError)
            }
            group = {name: self.about(name) for name in names if name not in unfit}
            kept = self._stored(group, control)
            missing = {name: measure for name, measure in group.items() if name not in kept}
            if kept and self.first:
                log.info(
                    "measured before: %s%s", ", ".join(kept), f" ({CONTROL})" if control else ""
                )
            columns, refused = self._measure(missing, control) if missing else ({}, {})
            self.measurements.columns |= {
                (name, control): values for name, values in {**kept, **columns}.items()
            }
            self.measurements.refused |= {
                (name, control): error for name, error in {**unfit, **refused}.items()
            }
        if which in self.measurements.refused:
            raise self.measurements.refused[which]
        return self.measurements.columns[which]

    def _measure(
        self, group: Mapping[str, Measure], control: bool
    ) -> tuple[dict[str, Columns], dict[str, UserError]]:
        try:
            model = self.twin() if control and self.twin else self.model
            label = f"{CONTROL}, " if control else ""
            seen = [self.about(name) for name, of in self.measurements.columns if of == control]
            # a model that records attention computes in other pieces, or in another order: later
            # passes do, too
            beside = frozenset[Need](
                "rows" if item.by_rows else "attn"
                for item in seen
                if {"attn", "attn_grad"} & set(item.needs)
            )
            columns, refused = look(
                model, group, self.data, "test", label, self.slopes_of, self.first, beside
            )
        except UserError as error:  # the record refuses all of them
            if not control and not self.measurements.columns:
                self.measurements.broken = error
            return {}, dict.fromkeys(group, error)
        if self.first and self.store is not None:
            for name, values in columns.items():
                stored.write(self.store, self._key_of(name, control), values, group[name].axes)
        return columns, refused

    def _stored(self, group: Mapping[str, Measure], control: bool) -> dict[str, Columns]:
        folder = self.store
        if folder is None:
            return {}
        keys = {name: self._key_of(name, control) for name in group}
        results = ranks.from_rank_zero(
            lambda: {name: stored.read(folder, key) for name, key in keys.items()}
        )
        kept = {name: result for name, result in results.items() if result is not None}
        for name, result in kept.items():
            group[name].axes = result.axes
        return {name: result.columns for name, result in kept.items()}

    def _key_of(self, name: str, control: bool) -> str:
        part = self.options.get(name)
        more = {"control": self.seed} if control else {}
        return self._key(
            {"measure": part, "stands_on": stands_on(part), "of": self.slopes_of, **more}
        )

    def _key(self, question: Mapping[str, Any]) -> str:
        """Return the digest of everything that decides an answer, the device included."""
        return cache_key(
            **self.identity, source=our_digest(ABOVE), device=self.model.device.type, **question
        )


def look(
    model: nn.Module,
    measures: Mapping[str, Measure],
    data: ImageData,
    split: str = "test",
    label: str = "",
    of: Of = "loss",
    show: bool = True,
    beside: frozenset[Need] = frozenset(),
) -> tuple[dict[str, Columns], dict[str, UserError]]:
    """Measure ``model`` on a split in one pass, in full precision.

    Measures that choose do so on validation images.

    Result and errors: as of ``recording.measuring.measure``. A collective.
    """
    features = gives_features(model)
    device = next(model.parameters()).device

    def walk(of_split: str) -> Iterator[Batch]:
        for batch in data.batches(of_split, device):
            yield batch.unlabelled if features else batch

    chooses = any(item.select_needs is not None for item in measures.values())
    total = data.sizes[split] + (data.sizes["val"] if chooses else 0)
    names = ", ".join(measures) if len(measures) <= 4 else f"{len(measures)} measures"
    with progress(f"{label}measuring {names} on {split}", total, show=show) as done:
        refused = feed(
            model,
            measures,
            batches=lambda: walk(split),
            select=lambda: walk("val"),
            class_names=data.class_names,
            done=lambda batch: done(int(batch.valid.sum())),
            of=of,
            passes=Passes(beside=beside),
        )
    return finished(measures, refused, label, show)


Panel = Callable[[Material], Mapping[str, Any]]
"""Results by name. A collective: every rank calls it; only rank 0 writes what it gives."""
