"""Measurements behind the sentences on a network: of its heads on the photographs, and of an untrained network's."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
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

Columns = Mapping[str, Tensor]


class Facts(NamedTuple):
    """Columns of measures by the measures' names, and reasons where there are none.

    images: photographs. twin: the same of an untrained network; empty where ``refused`` has a reason for "untrained".
    """

    layout: HeadLayout
    images: int
    found: dict[str, Columns]
    twin: dict[str, Columns]
    refused: dict[str, str]

    def columns(self, name: str, of_twin: bool = False) -> Columns:
        """A measure's columns. UserError with the reason where there are none."""
        known = self.twin if of_twin else self.found
        if name not in known:
            raise UserError(self.refused.get("untrained" if of_twin else name, "it was not measured"))
        return known[name]


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
    layout = attach(model).layout.of("head")
    alone: list[Callable[[HeadLayout], Measure]] = [Position, AttentionDistance, Entropy, Sinks]
    pairs: list[Callable[[HeadLayout], Measure]] = [functools.partial(JSDistance, null_images=NULL), CKA]
    found, refused = _measured(
        model, [*alone, *pairs, *([ObjectAttention] if objects is not None else [])], images, objects, done
    )
    if objects is None:
        refused["object_attention"] = "no masks were given (--masks FOLDER)"
    others: dict[str, Columns] = {}
    try:
        if twin is None:
            raise UserError("no untrained network was asked for")
        others, _ = _measured(twin(), alone, images[:TWIN], None, done)
    except UserError as error:
        refused["untrained"] = str(error)
    return Facts(layout, len(images), found, others, refused)


def _measured(
    model: nn.Module, kinds: list[Callable[[HeadLayout], Measure]], images: Tensor, objects: Tensor | None,
    done: Callable[[int], None],
) -> tuple[dict[str, Columns], dict[str, str]]:  # fmt: skip
    layout = attach(model).layout.of("head")
    device = next(model.parameters()).device
    measures = {each.name: each for each in (kind(layout) for kind in kinds)}
    numbers = torch.arange(len(images)).split(TOGETHER)
    walk = [
        Batch(
            images[these].to(device),
            None,  # type: ignore[arg-type]  # as in a notebook
            these.to(device),
            torch.ones(len(these), dtype=torch.bool, device=device),
            objects=None if objects is None else objects[these].to(device),
        )
        for these in numbers
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeasureWarning)  # that images are few is said beside every number
        found, refused = measure(model, measures, lambda: walk, done=lambda batch: done(len(batch.images)))
    return dict(found), {name: str(error) for name, error in refused.items()}
