"""Showing batches to measures: one recorded pass per batch, shared by all of them, on every rank alike.

``recorded`` serves what is no measure: numbers of every image, and comparisons of two passes.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import backbone_of, family_of
from mhprobe.data.batch import Batch, Walk
from mhprobe.errors import UserError, quoted
from mhprobe.gates import HeadGates, gates_of
from mhprobe.gates.fill import Fill
from mhprobe.heads import Ablation, FillName, HeadBatch, HeadLayout, Need, first_sites
from mhprobe.io.progress import progress
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.parts.places import OfAttention, joins, update_together
from mhprobe.recording.checks import check_batch, check_model, numbers_of
from mhprobe.recording.fills import find_fill
from mhprobe.recording.meetings import meets_pairs
from mhprobe.recording.outputs import Of
from mhprobe.recording.record import record
from mhprobe.recording.state import usable

LEAST = 8  # images whose matrices are held together; fewer would leave the machine idle
MOST = 2**30  # bytes that a record takes, but for that of a single image
MOST_BY_ROWS = 2**28  # the same, of rows of attention on a processor, which is no faster with more
CPU = torch.device("cpu")
WORTH_SAYING = 2**27  # bytes that a step holds
Columns = dict[str, Tensor]


class Passes(NamedTuple):
    """Options of recorded passes.

    at_gates: slopes are along the share of a head that its gate lets through, as a removal sees
        them: 0 for a closed head. Without it they are along the gate itself.
    beside: further needs to record, so that results equal those of a pass with these needs bit by
        bit.
    """

    at_gates: bool = False
    beside: frozenset[Need] = frozenset()


def measure_columns(
    model: nn.Module,
    measures: Mapping[str, Measure],
    batches: Walk,
    select: Walk | None = None,
    **options: Any,
) -> tuple[dict[str, Columns], dict[str, UserError]]:
    """Return the columns of measures of ``model`` on these images, on the CPU, and the errors of those that refused.

    Arguments and UserError as of ``feed``. A collective: every rank gets the same.
    """
    return finished(measures, feed(model, measures, batches, select, **options))


def feed(
    model: nn.Module,
    measures: Mapping[str, Measure],
    batches: Walk,
    select: Walk | None = None,
    class_names: Sequence[str] = (),
    done: Callable[[Batch], None] = lambda batch: None,
    of: Of = "loss",
    passes: Passes = Passes(),
) -> dict[str, UserError]:
    """Show the images to the measures, without asking for columns; return the UserError of each that refused.

    model: carries gates. measures: by key; they forget what they have seen before.
    batches: starts a walk over the images. select: over those on which measures choose first (e.g.
    Interaction its pairs) and fills are found (``recording.fills``); without it fills are found on
    ``batches``, which flatters.
    class_names: for measures. done: called after each batch, also of ``select``.
    of: scalar to differentiate, as for ``record``. passes: how they are recorded.

    A measure that refuses is fed no further, and does not hold up the others; so does one whose
    needs ``record`` refuses. Raises what ``record`` refuses for all of them. A collective: every
    rank gets the same.
    """
    device = next(model.parameters()).device
    layout = gates_of(model).layout
    of_heads = [key for key, item in measures.items() if item.layout.kinds < layout.kinds]
    if of_heads:
        neurons = layout.of("neuron").num_heads
        warnings.warn(
            f"{', '.join(of_heads)}: of heads alone, the model's {neurons} neurons are left out",
            MeasureWarning,
            stacklevel=3,
        )
    for item in measures.values():
        item.reset()
        item.to(device)
        item.class_names = tuple(class_names)
    choosing = {key: item for key, item in measures.items() if item.select_needs is not None}
    fills = {
        name: find_fill(model, name, select or batches) for name in fills_of(measures.values())
    }
    feeding = functools.partial(_feed, model, done=done, passes=passes, of=of, fills=fills)
    refused = feeding((select or batches)(), choosing, True) if choosing else {}
    for key, item in choosing.items():
        if key not in refused:
            try:
                item.end_select()  # a collective, as columns() is: it refuses on all ranks alike
            except UserError as error:
                refused[key] = error
    willing = {key: item for key, item in measures.items() if key not in refused}
    return refused | feeding(batches(), willing, False)


def finished(
    measures: Mapping[str, Measure],
    refused: dict[str, UserError],
    label: str = "",
    show: bool = False,
) -> tuple[dict[str, Columns], dict[str, UserError]]:
    """Return the columns of measures that were fed, and the errors: ``refused``, of ``feed``, and further ones.

    show: which one is computed, as some take minutes (permutations, clusters); label: before its
    text.
    """
    columns: dict[str, Columns] = {}
    fed = [key for key in measures if key not in refused]
    with progress(f"{label}computing", len(fed), "measures", show) as done:
        for key in fed:
            done(0, f"{label}computing {key}")
            try:
                columns[key] = {
                    name: values.cpu() for name, values in measures[key].columns().items()
                }
            except UserError as error:
                refused[key] = error
            done(1)
    return columns, refused


def measure_or_raise(
    model: nn.Module, measures: Mapping[str, Measure], batches: Walk, **options: Any
) -> dict[str, Columns]:
    """Return the columns of each measure, as ``measure_columns`` does; raise the first error of one that refuses."""
    columns, refused = measure_columns(model, measures, batches, **options)
    for error in refused.values():
        raise error
    return columns


def recorded(
    model: nn.Module, batches: Iterable[Batch], needs: Collection[Need] = ()
) -> Iterator[tuple[Batch, HeadBatch]]:
    """Each batch with its record, in several pieces if it would take much memory.

    needs: as of ``record``, whose UserErrors these are; none that wants labels.
    """
    layout, device = gates_of(model).layout, next(model.parameters()).device
    for batch in batches:
        slices = slices_of_batch(len(batch.valid), layout, needs, device)
        for piece in map(batch.part, slices):
            yield piece, _look(model, piece.unlabelled, needs=needs)


def needs_of(measures: Iterable[Measure], selecting: bool = False) -> frozenset[Need]:
    """Return all that ``record`` has to deliver for these measures together."""
    return frozenset[Need]().union(
        *((m.select_needs or frozenset()) if selecting else m.needs for m in measures)
    )


def fills_of(measures: Iterable[Measure]) -> list[FillName]:
    """Return the fills that measures ask for, by name."""
    needs = [need for item in measures for need in (*item.needs, *(item.select_needs or ()))]
    return sorted({need.fill for need in needs if isinstance(need, Ablation)} - {"zero"})


def label_of(measured: Measure, of: Of) -> str:
    """Label of a measure's axis, with the scalar of its gradients unless that is the loss."""
    plain = of == "loss" or "grad" not in measured.needs
    return measured.label if plain else f"{measured.label.replace(' (nats)', '')}, of the {of}"


def score_heads(
    model: nn.Module, scores_by: Measure, batches: Walk, column: str = "value", **options: Any
) -> Tensor:
    """(A,) one column of one measure, which also chooses on these images if it has to.

    Slopes are ``at_gates`` (see ``Passes``).

    options: as of ``feed``. Raises UserError if it refuses, or if the column is not one number per
    head.
    """
    at_gates = Passes(at_gates=True)
    found = measure_or_raise(
        model, {scores_by.name: scores_by}, batches, passes=at_gates, **options
    )
    columns = found[scores_by.name]
    shape = (scores_by.layout.num_heads,)
    if column not in columns or columns[column].shape != shape:
        usable = [name for name, values in columns.items() if values.shape == shape]
        raise UserError(
            f"{scores_by.name}: expected one of its columns per head, "
            f"{', '.join(usable) or 'of which it has none'}, "
            f"got {quoted(column)}."
        )
    return columns[column]


def _feed(
    model: nn.Module,
    batches: Iterable[Batch],
    measures: Mapping[str, Measure],
    selecting: bool,
    done: Callable[[Batch], None],
    passes: Passes,
    of: Of,
    fills: Mapping[FillName, Fill | None],
) -> dict[str, UserError]:
    """Feed every batch to every measure (selecting: to its ``select``); return what was refused on any rank."""
    refused: dict[str | None, UserError] = {}
    try:
        check_model(model)
        for batch in batches:
            active = {key: item for key, item in measures.items() if key not in refused}
            if not active:
                break
            whole = _Pass(model, batch, selecting, passes, of, fills)
            refused |= whole.feed(active)
            done(batch)
    except UserError as error:
        refused[None] = error
    # a rank that raised alone would leave the others waiting in the next collective
    messages = ranks.gather({key: str(error) for key, error in refused.items()})
    shared = {key: UserError(text) for part in messages for key, text in part.items()}
    if None in shared:
        raise shared[None]
    return {key: error for key, error in shared.items() if key is not None}


@dataclasses.dataclass
class _Pass:
    """A batch that is recorded, in pieces that fit into memory, and shown to measures."""

    model: nn.Module
    batch: Batch
    selecting: bool
    passes: Passes
    of: Of
    fills: Mapping[FillName, Fill | None]

    def feed(self, active: Mapping[str, Measure]) -> dict[str | None, UserError]:
        """Show the measures every piece; return what was refused."""
        refused: dict[str | None, UserError] = {}
        gates = gates_of(self.model)
        needs = self._needs(active)
        alone = self.selecting and all(item.selects_by_images for item in active.values())
        # whole: a piece has as many labels as images
        check_batch(self.model, self.batch.images, self.batch.labels, gates.layout)
        valid = self.batch.valid
        device = next(self.model.parameters()).device
        slices = slices_of_batch(len(valid), gates.layout, needs, device)
        parts = [part for part in slices if valid[part].any()]
        for part in parts:
            run = (
                _shown
                if alone
                else functools.partial(_look, self.model, of=self.of, fills=self.fills)
            )
            look = functools.partial(run, self.batch.part(part))
            try:
                heads = look(needs=needs)
            except UserError:
                unfit = _unfit(self.model, look, active, self.selecting)
                refused |= unfit
                active = {key: item for key, item in active.items() if key not in unfit}
                if not unfit or not active:
                    raise
                needs = self._needs(active)  # of the pieces behind this one, too
                heads = look(needs=needs)
            heads = _at_gates(heads, gates) if self.passes.at_gates else heads
            heads = dataclasses.replace(heads, ends=part is parts[-1])
            kept = {key: item for key, item in active.items() if key not in refused}
            shown = {
                key: (item, _of_layout(heads, item, gates.layout)) for key, item in kept.items()
            }
            refused |= _show_all(shown, self.selecting)
            del shown
            del heads  # or the next pass would begin beside it
        return refused

    def _needs(self, active: Mapping[str, Measure]) -> frozenset[Need]:
        return read_as(self.model, active.values(), self.selecting, self.passes.beside)


def _of_layout(heads: HeadBatch, item: Measure, layout: HeadLayout) -> HeadBatch:
    """Return what was recorded of the sites that a measure is of."""
    if item.layout == layout:
        return heads
    return heads.derive(first_sites, len(item.layout.sites))


def _look(model: nn.Module, batch: Batch, **options: Any) -> HeadBatch:
    images_of = {
        name: getattr(batch, name) for name in ("images", "labels", "valid", "index", "objects")
    }
    return record(model, **images_of, **options)


def _shown(batch: Batch, needs: Collection[Need]) -> HeadBatch:
    """The images and labels of a batch, without a pass of the network."""
    return HeadBatch(
        z=(),
        logits=batch.images.new_zeros(len(batch.valid), 0),
        valid=batch.valid,
        labels=batch.labels,
        images=usable(batch.images),
        objects=batch.objects,
    )


def _show_all(
    shown: Mapping[str, tuple[Measure, HeadBatch]], selecting: bool
) -> dict[str | None, UserError]:
    """Show each measure its batch; return what was refused. Measures of attention read its rows together."""
    together = (
        {}
        if selecting
        else {
            key: (item, batch)
            for key, (item, batch) in shown.items()
            if isinstance(item, OfAttention) and joins(item)
        }
    )
    refused: dict[str | None, UserError] = {}
    for key, error in update_together(together).items():
        refused[key] = error
    for key, (item, batch) in shown.items():
        if key in together:
            continue
        try:
            (item.select if selecting else item.update)(batch)
        except UserError as error:
            refused[key] = error
    return refused


def read_as(
    model: nn.Module,
    measures: Iterable[Measure],
    selecting: bool = False,
    beside: frozenset[Need] = frozenset(),
) -> frozenset[Need]:
    """Needs of a record, with rows of attention in place of matrices, if all who ask read rows and the model has them.

    A large site whose weights only come to be as a matrix is recorded as one. selecting: True for
    what the measures choose by. beside: as of ``Passes``; where it names matrices, matrices are
    recorded.
    """
    instead: dict[Need, Need] = {"attn": "rows", "attn_grad": "row_slopes"}
    back = {rows: matrices for matrices, rows in instead.items()}
    measures = list(measures)
    needs = needs_of(measures, selecting) | beside
    willing = not beside & instead.keys()
    for item in measures:
        mine = (item.needs | (item.select_needs or frozenset())) & instead.keys()
        willing = willing and (item.by_rows or not mine)
    layout, backbone = gates_of(model).layout.of("head"), backbone_of(model)
    paired = all(
        meets_pairs(family_of(backbone).seam(backbone, site))
        for site in layout.sites
        if site.larger_than_pairs
    )
    to = instead if willing and paired else back
    return frozenset(to.get(need, need) for need in needs)


def _unfit(
    model: nn.Module,
    look: Callable[..., HeadBatch],
    measures: Mapping[str, Measure],
    selecting: bool,
) -> dict[str | None, UserError]:
    """UserErrors of measures whose needs cannot be recorded of these images."""
    refused: dict[str | None, UserError] = {}
    for key, item in measures.items():
        try:
            look(needs=read_as(model, [item], selecting))
        except UserError as error:
            refused[key] = error
    return refused


def record_bytes(model: nn.Module, measures: Iterable[Measure], images: int) -> int:
    """Bytes that the largest record of a batch of so many images holds, and what the measures keep, at least."""
    measures, layout = list(measures), gates_of(model).layout
    needs = read_as(model, measures)
    slices = slices_of_batch(images, layout, needs, next(model.parameters()).device)
    largest = max(part.stop - part.start for part in slices)
    kept = sum(item.bytes_kept for item in measures)
    return int(4 * numbers_of(layout, needs) * largest) + kept


def said(held: float) -> str:
    """Return in words, to put behind what takes them, so many bytes; "" for few."""
    return f", {held / 2**30:.1f} GiB beside the network" if held >= WORTH_SAYING else ""


def slices_of_batch(
    count: int,
    layout: HeadLayout,
    needs: Collection[Need] = ("attn",),
    device: torch.device = CPU,
) -> list[slice]:
    """Slices of images, about equally long: the record of each takes at most ``MOST`` bytes, or is of one image.

    device: where the model is. On a processor a record by rows takes at most ``MOST_BY_ROWS`` bytes.
    All blocks' matrices of attention of a slice are no larger than one block's of all images, or
    than those of ``LEAST`` images.
    """
    sizes, longest = [site.attention_size for site in layout.of("head").sites], max(1, count)
    by_rows = bool({"rows", "row_slopes"} & {*needs})
    if numbers := numbers_of(layout, needs):
        held = MOST_BY_ROWS if by_rows and device.type == "cpu" else MOST
        longest = min(longest, max(1, int(held // (4 * numbers))))
        if {"attn", "attn_grad"} & {*needs}:
            longest = min(longest, max(LEAST, count * max(sizes) // sum(sizes)))
    number = max(1, math.ceil(count / longest))
    return [slice(count * i // number, count * (i + 1) // number) for i in range(number)]


def _at_gates(heads: HeadBatch, gates: HeadGates) -> HeadBatch:
    """The same batch, with slopes before the gates instead of behind them."""
    if heads.grad is None:
        return heads
    shares = gates.layout.split(gates.effective())
    grad = tuple(g * share_H[:, None].to(g) for g, share_H in zip(heads.grad, shares, strict=True))
    return dataclasses.replace(heads, grad=grad)
