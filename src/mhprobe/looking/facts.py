"""Measurements behind the sentences on a network: of its heads on the photographs, and of an untrained network's."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.measures.attention_distance import AttentionDistance
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.cka import CKA
from mhprobe.measures.entropy import Entropy
from mhprobe.measures.js_distance import JSDistance
from mhprobe.measures.object_attention import ObjectAttention
from mhprobe.measures.position import Position
from mhprobe.measures.sinks import Sinks
from mhprobe.recording.measuring import measure

TOGETHER = 2  # images of a batch: progress moves after each
TWIN = 4  # images that the untrained network is shown
NULL = 4  # images that are paired for the chance of two heads' attention being alike
# of single heads, by their names, which are those of their files: an untrained network is measured by these
SINGLE = {kind.__module__.rpartition(".")[2]: kind for kind in (Entropy, AttentionDistance, Position, Sinks)}
ENDS = ("value", "low", "high")

Columns = Mapping[str, Tensor]
Kinds = Mapping[str, Callable[[HeadLayout], Measure]]


class Facts(NamedTuple):
    """Columns of measures by the measures' names, and reasons where there are none.

    images: photographs. twin: the same of an untrained network; empty where ``refused`` has a reason for "untrained".
    """

    layout: HeadLayout
    images: int
    found: Mapping[str, Columns]
    twin: Mapping[str, Columns]
    refused: Mapping[str, str]

    def columns(self, name: str, of_twin: bool = False) -> Columns:
        """A measure's columns. UserError with the reason where there are none."""
        known = self.twin if of_twin else self.found
        if name not in known:
            raise UserError(self.refused.get("untrained" if of_twin else name, "it was not measured"))
        return known[name]

    def shown(self) -> list[dict[str, Any]]:
        """Columns that heads are sorted by in a page, to four digits; NaN is None."""
        found = {SINGLE[name].label: columns for name, columns in self.found.items() if name in SINGLE}
        return [
            {"name": label, **{end: [None if x != x else float(f"{x:.4g}") for x in of[end].tolist()] for end in ENDS}}
            for label, of in found.items()
        ]


def facts(
    model: nn.Module,
    images: Tensor,
    objects: Tensor | None = None,
    twin: Callable[[], nn.Module] | None = None,
    done: Callable[[int], None] = lambda images: None,
) -> Facts:
    """Measure the heads.

    images: (N, 3, height, width), normalised. objects: (N, height, width) int64, 1 on what is salient. twin: makes the
    untrained network, or raises a UserError. done: called with the number of images after each batch.
    """
    kinds: Kinds = {**SINGLE, "js_distance": functools.partial(JSDistance, null_images=NULL), "cka": CKA}
    kinds = kinds if objects is None else {**kinds, "object_attention": ObjectAttention}
    found, refused = _measured(model, kinds, Batch.whole(images, objects=objects), done)
    reasons = {"object_attention": "no masks were given; see --masks", **{k: str(v) for k, v in refused.items()}}
    others: Mapping[str, Columns] = {}
    try:
        if twin is None:
            raise UserError("no untrained network was asked for")
        others, _ = _measured(twin(), SINGLE, Batch.whole(images[:TWIN]), done)
    except UserError as error:
        reasons["untrained"] = str(error)
    return Facts(attach(model).layout.of("head"), len(images), found, others, reasons)


def _measured(
    model: nn.Module, kinds: Kinds, batch: Batch, done: Callable[[int], None]
) -> tuple[Mapping[str, Columns], Mapping[str, UserError]]:
    layout = attach(model).layout.of("head")
    batch = batch.to(next(model.parameters()).device)
    walk = [batch.part(slice(start, start + TOGETHER)) for start in range(0, len(batch.images), TOGETHER)]
    measures = {name: kind(layout) for name, kind in kinds.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeasureWarning)  # that images are few is said beside every number
        return measure(model, measures, lambda: walk, done=lambda batch: done(len(batch.images)))
