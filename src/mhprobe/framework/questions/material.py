"""Material of questions: a model, its images, and their columns, controls and masking curves.

Columns are measured when first asked for, with all others of the same recorded pass, and kept on
disk under the digest of everything that decides them. A killed run goes on after its last finished
pass.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import gives_features
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.questions import stored
from mhprobe.framework.questions.masking import Masking
from mhprobe.framework.questions.scorers import Scorers
from mhprobe.framework.questions.subject import Subject
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
class MeasuredColumns:
    """Columns of one network on one data set, and errors of measures that refused, by measure."""

    columns: dict[str, Columns] = field(default_factory=dict)
    refused: dict[str, UserError] = field(default_factory=dict)


@dataclass
class Measurements:
    """Measurements on one data set: of the trained network and of its control; curves by name.

    broken: the error, if nothing at all can be recorded. without_control: measures whose missing
    control was logged.
    """

    trained: MeasuredColumns = field(default_factory=MeasuredColumns)
    control: MeasuredColumns = field(default_factory=MeasuredColumns)
    curves: dict[str, list[Curve]] = field(default_factory=dict)
    broken: UserError | None = None
    without_control: set[str] = field(default_factory=set)


class PassesTogether(NamedTuple):
    """Measures of one pass together, of the trained network and of its control."""

    trained: Sequence[Sequence[str]] = ()
    control: Sequence[Sequence[str]] = ()


@dataclass
class Material(Subject):
    """A model, its images, and what is measured of them.

    measures: by name; a UserError for one that does not fit the model. options: of each measure, in
    plain values.
    masking: describes masking curves; None for none. twin: makes the control, a freshly initialised
    network with gates; None for none. target: of slopes; None for the loss, of features their norm.
    store: folder of kept columns; None to keep none. names, curve_names: measures and masking
    curves of the present question. passes: measures of one pass together.
    """

    measures: Mapping[str, Measure | UserError] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    masking: Masking | None = None
    twin: Callable[[], nn.Module] | None = None
    target: Of | None = None
    store: Path | None = None
    names: Sequence[str] = ()
    curve_names: Sequence[str] = ()
    passes: PassesTogether = field(default_factory=PassesTogether)
    measurements: Measurements = field(default_factory=Measurements)

    def columns(self, name: str) -> Columns:
        """Return the columns of a measure, "value" first.

        UserError for one that does not fit. A collective.
        """
        return self.trained.columns(name)

    def control(self, name: str) -> Columns | None:
        """Return the columns of a freshly initialised network; None where there is no control.

        A collective.
        """
        untrained = self.untrained_network
        try:
            return None if untrained is None else untrained.columns(name)
        except UserError as error:
            if self.first and name not in self.measurements.without_control:
                log.warning("%s: no control. %s", name, error)
            self.measurements.without_control.add(name)
            return None

    @property
    def trained(self) -> "NetworkOfMaterial":
        """The network of the material, and what is measured of it."""
        return NetworkOfMaterial(self, self.measurements.trained, self.passes.trained)

    @property
    def untrained_network(self) -> "NetworkOfMaterial | None":
        """The control, and what is measured of it; None where there is none."""
        if self.twin is None:
            return None
        return Control(self, self.measurements.control, self.passes.control)

    def curves(self, *names: str) -> list[Curve]:
        """Return masking curves by name, on each split.

        UserError for an unknown or impossible curve. A collective.
        """
        for name in names or self.curve_names:
            if name not in self.measurements.curves:
                self.measurements.curves[name] = self.described.curve(name, self.scorers)
        return [
            curve for name in names or self.curve_names for curve in self.measurements.curves[name]
        ]

    @functools.cached_property
    def scorers(self) -> Scorers:
        """Scorers of masks, one per split. UserError if no masking curves are described."""
        masking = self.described
        return Scorers(self, masking.select_on, masking.score, masking.cache, masking.shares)

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
            key = self.key({"about": describe(about)}) if folder else ""
        if (
            folder
            and key
            and (entry := ranks.from_rank_zero(lambda: stored.read_columns(folder, key)))
            is not None
        ):
            return entry.columns
        answer = {name: values.cpu() for name, values in find().items()}
        if folder and key and self.first:
            stored.write_columns(folder, key, answer)
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

    def key(self, question: Mapping[str, Any]) -> str:
        """Return the digest of everything that decides an answer, the device included."""
        about = {"source": our_digest(ABOVE), "device": self.model.device.type}
        # measures may look at any split, whose pixels the name of the data need not name
        return cache_key(**self.identity, files=self.data.files, **about, **question)


@dataclass
class NetworkOfMaterial:
    """One network of a material: its columns, measured when first asked for, and kept.

    passes: measures of one pass together.
    """

    material: Material
    measured: MeasuredColumns
    passes: Sequence[Sequence[str]] = ()
    name: ClassVar[str] = ""  # of a network that is not the trained one

    @property
    def model(self) -> nn.Module:
        """The network, on its device."""
        model: nn.Module = self.material.model
        return model

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that decide its columns, beside those of the material."""
        return {}

    def columns(self, name: str) -> Columns:
        """Return the columns of a measure, "value" first.

        UserError for one that does not fit. A collective.
        """
        measured, material = self.measured, self.material
        if name not in measured.columns and name not in measured.refused:
            names = next((list(group) for group in self.passes if name in group), [name])
            fit, unfit = self._fit(names)
            kept = self._stored(fit)
            missing = {key: measure for key, measure in fit.items() if key not in kept}
            if kept and material.first:
                end = f" ({self.name})" if self.name else ""
                log.info("measured before: %s%s", ", ".join(kept), end)
            columns, refused = self._measure(missing) if missing else ({}, {})
            measured.columns |= {**kept, **columns}
            measured.refused |= {**unfit, **refused}
        if name in measured.refused:
            raise measured.refused[name]
        return measured.columns[name]

    def missing(self, names: Sequence[str]) -> dict[str, Measure]:
        """Return the measures of a pass that are not kept yet. A collective."""
        passed = {name for group in self.passes for name in group}
        fit, _ = self._fit([name for name in names if name in passed])
        kept = self._stored(fit)
        return {name: measure for name, measure in fit.items() if name not in kept}

    def _fit(self, names: Iterable[str]) -> tuple[dict[str, Measure], dict[str, UserError]]:
        """Return the measures that fit the model, and the errors of the others, by name."""
        fit: dict[str, Measure] = {}
        unfit: dict[str, UserError] = {}
        for name in names:
            measure = self.material.measures[name]
            if isinstance(measure, UserError):
                unfit[name] = measure
            else:
                fit[name] = measure
        return fit, unfit

    def _measure(
        self, group: Mapping[str, Measure]
    ) -> tuple[dict[str, Columns], dict[str, UserError]]:
        material = self.material
        try:
            model = self.model
            label = f"{self.name}, " if self.name else ""
            seen = [material.about(name) for name in self.measured.columns]
            # a model that records attention computes in other pieces, or in another order: later
            # passes do, too
            beside = frozenset[Need](
                "rows" if item.by_rows else "attn"
                for item in seen
                if {"attn", "attn_grad"} & set(item.needs)
            )
            of, show = material.slopes_of, material.first
            columns, refused = measure_split(
                model, group, material.data, "test", label, of, show, beside
            )
        except UserError as error:  # the record refuses all of them
            self._note(error)
            return {}, dict.fromkeys(group, error)
        if material.first and material.store is not None:
            for name, values in columns.items():
                stored.write_columns(material.store, self._key_of(name), values, group[name].axes)
        return columns, refused

    def _note(self, error: UserError) -> None:
        """Note that nothing at all can be recorded of the trained network."""
        measurements = self.material.measurements
        if not self.measured.columns and not measurements.control.columns:
            measurements.broken = error

    def _stored(self, group: Mapping[str, Measure]) -> dict[str, Columns]:
        folder = self.material.store
        if folder is None:
            return {}
        keys = {name: self._key_of(name) for name in group}
        results = ranks.from_rank_zero(
            lambda: {name: stored.read_columns(folder, key) for name, key in keys.items()}
        )
        kept = {name: result for name, result in results.items() if result is not None}
        for name, result in kept.items():
            group[name].axes = result.axes
        return {name: result.columns for name, result in kept.items()}

    def _key_of(self, name: str) -> str:
        part = self.material.options.get(name)
        question = {"measure": part, "stands_on": stands_on(part), "of": self.material.slopes_of}
        return self.material.key({**question, **self.facts})


@dataclass
class Control(NetworkOfMaterial):
    """A freshly initialised network of the same architecture."""

    name: ClassVar[str] = CONTROL

    @property
    def model(self) -> nn.Module:
        assert self.material.twin is not None
        return self.material.twin()

    @property
    def facts(self) -> dict[str, Any]:
        return {"control": self.material.seed}

    def _note(self, error: UserError) -> None:
        """Leave the material as it is: the trained network may be recorded."""


def measure_split(
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

    Result and errors: as of ``recording.measuring.measure_columns``. A collective.
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
