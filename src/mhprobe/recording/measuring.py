"""Showing batches to measures: one recorded pass per batch, shared by all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import nn

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Need
from mhprobe.measures.base import Measure
from mhprobe.recording.record import record


def needs_of(measures: Iterable[Measure], selecting: bool = False) -> frozenset[Need]:
    """What ``record`` has to deliver for all of them together."""
    return frozenset[Need]().union(*((m.select_needs or frozenset()) if selecting else m.needs for m in measures))


def show(
    model: nn.Module,
    batches: Iterable[Batch],
    measures: Mapping[str, Measure],
    selecting: bool = False,
    done: Callable[[Batch], None] = lambda batch: None,
) -> dict[str, UserError]:
    """Feed every batch to every measure; selecting: to its ``select`` instead of its ``update``.

    done: called after each batch. Returns why measures refused, by their key: one that does is fed no further, and
    does not hold up the others. What ``record`` refuses concerns them all and is raised.
    """
    refused: dict[str, UserError] = {}
    for batch in batches:
        active = {key: measure for key, measure in measures.items() if key not in refused}
        if not active:
            break
        needs = needs_of(active.values(), selecting)
        heads = record(model, batch.images, batch.labels, needs, batch.valid, batch.index, batch.objects)
        for key, measure in active.items():
            try:
                (measure.select if selecting else measure.update)(heads)
            except UserError as error:
                refused[key] = error
        done(batch)
    return refused
