"""Elastic files: the dense weights, and beside them the score of every unit, from which any budget follows at once.

A knapsack (masking/knapsack.py) scores once; the same scores and options give the mask that
``prune`` finds, to the bit. Promises (stats/promise.py) test a fixed list of budgets, from the
largest down.

Shapes: A units of all sites.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, layout_of
from mhprobe.errors import UserError, fits, quoted, types_of
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate
from mhprobe.masking.knapsack import Knapsack
from mhprobe.masking.parts.units import Unreached
from mhprobe.pruning.budget import mask_by, within
from mhprobe.pruning.on_path import OnPath
from mhprobe.stats.promise import Guarantee, kept_promise
from mhprobe.surgery.removal import prune_heads

STEP = 0.05  # between the budgets that are promised
OPTIONS = ("compete", "normalize", "multiple")
LIMITS = ("exclude_layers", "min_heads_per_layer")
TYPES = {name: {**types_of(Knapsack), **types_of(OnPath)}[name] for name in (*OPTIONS, *LIMITS)}
TYPES |= {"units": list[str], "step": str, "scores": list[float]}
OF_PROMISE = {"unit": str, "kept": list[float], "points": float, "confidence": float, "images": int}


def elastic_part(source: OnPath, scores_A: Tensor, layout: HeadLayout) -> dict[str, Any]:
    """Return the part of the file's JSON that budgets are made of.

    scores: (A,) as the path went by them.
    """
    assert isinstance(source.order, Knapsack)
    options = {name: getattr(source.order, name) for name in OPTIONS} | {
        name: getattr(source, name) for name in LIMITS
    }
    return {
        "units": sorted(layout.kinds),
        "step": source.units,
        "scores": scores_A.tolist(),
        **options,
    }


def mask_at(model: nn.Module, elastic: Mapping[str, Any], target: Mapping[str, float]) -> Tensor:
    """(A,) bool, the units that go under ``target``, {flops: share left} or {params: share left}.

    model: the dense network, with gates on the units. UserError for a budget that is out of reach.
    """
    scores = torch.tensor(elastic["scores"], dtype=torch.float64)
    layout = layout_of(model)
    if len(scores) != layout.num_heads:
        raise UserError(
            f"elastic: the file has scores of {len(scores)} units, expected {layout.counted}."
        )
    units = within(
        model, target, elastic["step"], **{name: elastic[name] for name in (*LIMITS, "multiple")}
    )
    return mask_by(scores, units, **{name: elastic[name] for name in OPTIONS})


def at_budget(
    model: nn.Module, description: Mapping[str, Any], target: Mapping[str, float]
) -> nn.Module:
    """The network of an elastic file without the units that ``prune`` removes for ``target``.

    Its ``promise``: points, confidence and images promised of this budget, or None. UserError for a
    file that is not elastic, and for a budget out of range or reach.
    """
    if (elastic := description.get("made", {}).get("elastic")) is None:
        raise UserError(
            "load: flops, params: expected an elastic file; python -m mhprobe.prune ... "
            "prune.elastic=true writes one."
        )
    ((unit, share),) = target.items()
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(
            f"load: {unit}: expected a share of the whole, above 0 and at most 1, got "
            f"{quoted(share)}."
        )
    _check(elastic, TYPES)
    if promise := elastic.get("promise"):
        _check(promise, OF_PROMISE)
    attach(model, units=set(elastic["units"]))
    try:
        mask = mask_at(model, elastic, target)
    except Unreached as error:  # without what a pruning could do about it
        raise UserError(f"load: {error.reason}.") from error
    small = prune_heads(model, mask).eval()
    small.promise = promise_at(elastic, target)  # type: ignore[assignment]
    return small


def promise_at(elastic: Mapping[str, Any], target: Mapping[str, float]) -> dict[str, Any] | None:
    """Points, confidence and images of the promise of the budget ``target``; None where it is not promised."""
    ((unit, share),), promise = target.items(), elastic.get("promise")
    if (
        not promise
        or promise["unit"] != unit
        or all(abs(share - budget) >= 1e-9 for budget in promise["kept"])
    ):
        return None
    return {key: promise[key] for key in ("points", "confidence", "images")}


def _check(part: Any, types: Mapping[str, Any]) -> None:
    """UserError unless a part of a file's JSON has all these keys, with values of these types."""
    for name, hint in types.items():
        got = part.get(name) if isinstance(part, Mapping) else part
        if not fits(got, hint) or (get_origin(hint) is Literal and got not in get_args(hint)):
            raise UserError(
                f"load: made.elastic in the JSON of the file is damaged: {name} is {quoted(got)}. "
                "Make the file anew "
                f"with mhprobe.prune."
            )


def promise_budgets(
    model: nn.Module,
    elastic: Mapping[str, Any],
    target: Mapping[str, float],
    calibrate: Evaluate,
    guarantee: Guarantee,
    seed: int = 0,
) -> dict[str, Any]:
    """The budgets down to ``target``, in steps of 5 %, promised together.

    calibrate: on images that chose nothing.
    """
    ((unit, least),) = target.items()
    steps = (round(1 - STEP * step, 4) for step in range(1, round(1 / STEP)))
    budgets = [*(budget for budget in steps if budget > least + 1e-9), least]
    masks = torch.stack([mask_at(model, elastic, {unit: budget}) for budget in budgets])
    right = calibrate(torch.cat([torch.zeros_like(masks[:1]), masks])).right
    count = kept_promise(right[0], right[1:], guarantee.points, guarantee.confidence, seed)
    facts = {
        "points": guarantee.points,
        "confidence": guarantee.confidence,
        "images": calibrate.images,
    }
    return {"unit": unit, "kept": budgets[:count], **facts}
