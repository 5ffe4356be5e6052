"""Speed of removal: images per second, dense against masked against pruned, beside the prediction from FLOPs.

All variants are timed in turn, so that whatever else the machine does hits them alike; a speed-up
is the median over rounds of the ratio within one. Intervals are of medians, from order statistics
(David & Nagaraja, 7.1).

Shapes: B images of a batch.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, channels_of, input_spec, layout_of
from mhprobe.heads import HeadLayout, Kind
from mhprobe.surgery.costs import (
    count_flops,
    count_parameters,
    device_name,
    interleaved,
    same_share_everywhere,
)
from mhprobe.surgery.memory import peak_memory
from mhprobe.surgery.removal import prune_heads

BATCHES = (1, 4, 16, 64)
SHARES = (0.25, 0.5, 0.75)
Row = dict[str, Any]


def speed_table(
    dense: nn.Module,
    masks: Mapping[str, Tensor] | None = None,
    batches: Sequence[int] = BATCHES,
    rounds: int = 15,
    seconds: float = 0.05,
    show: Callable[[int], None] = lambda pieces: None,
) -> list[Row]:
    """One row per mask and batch size, on the device and in the dtype of ``dense``.

    masks: name -> (A,) bool, True = removed; by default "25 % removed", 50 and 75, of every layer's
    units. rounds: timings of each variant; below 6 the intervals are infinite. seconds: of a
    timing, about. show: is called after every batch size.

    Columns: removed (the mask's name), heads, neurons (left, of kinds that may go), device, batch;
    dense_, masked_, pruned_images_per_s with _low and _high (median, 95 % interval); speedup
    (pruned / dense) with _low, _high; over_masked (pruned / masked); predicted (FLOPs of dense /
    pruned); flops (per image), parameters, peak_memory (bytes: parameters and the most that one
    forward pass holds at once), each with dense_ beside it.
    """
    layout = layout_of(dense)
    if masks is None:
        masks = _masks_of_shares(layout)
    plain = prune_heads(dense, []).eval()  # gates multiplied in
    pruned = {
        name: prune_heads(plain, mask, units=layout.kinds).eval() for name, mask in masks.items()
    }
    gates = attach(plain, units=layout.kinds)  # measured as `masked`; the dense model has none
    bare = prune_heads(plain, []).eval()
    first = next(dense.parameters())
    shape = (channels_of(dense), *input_spec(dense)["size"])
    image = torch.zeros(1, *shape, device=first.device, dtype=first.dtype)
    flops = {name: count_flops(model, image) for name, model in {"": bare, **pruned}.items()}
    rows = []
    for batch in batches:
        images = torch.randn(
            batch, *image.shape[1:], generator=torch.Generator().manual_seed(0)
        ).to(image)
        variants = {("dense", ""): bare, ("masked", ""): plain} | {
            ("pruned", name): m for name, m in pruned.items()
        }
        with gates.masked(
            next(iter(masks.values()))
        ):  # which heads are off makes no difference to the time
            works = [functools.partial(model, images) for model in variants.values()]
            taken = dict(zip(variants, interleaved(works, rounds, seconds), strict=True))
        memory = {key: peak_memory(model, images) for key, model in variants.items()}
        for name, model in pruned.items():
            row: Row = {
                "removed": name,
                **_units_left(model, layout.kinds),
                "device": device_name(first.device),
                "batch": batch,
            }
            clocked = {
                "dense": taken["dense", ""],
                "masked": taken["masked", ""],
                "pruned": taken["pruned", name],
            }
            row |= _rates(clocked, batch) | _speedups(clocked)
            row |= {
                "predicted": flops[""] / flops[name],
                "flops": flops[name],
                "dense_flops": flops[""],
            }
            row |= {
                "parameters": count_parameters(model),
                "dense_parameters": count_parameters(bare),
            }
            row |= {"peak_memory": memory["pruned", name], "dense_peak_memory": memory["dense", ""]}
            rows.append(row)
        show(1)
    return rows


def _masks_of_shares(layout: HeadLayout) -> dict[str, Tensor]:
    """Return masks of ``SHARES`` of every layer's units, by their names in the table."""
    return {
        f"{100 * share:.0f} % removed": same_share_everywhere(layout, share) for share in SHARES
    }


def _units_left(model: nn.Module, kinds: Iterable[Kind]) -> Row:
    """Return the number of units of each kind that a network has, as "heads" and "neurons"."""
    return {f"{kind}s": layout_of(model, {kind}).num_heads for kind in sorted(kinds)}


def _rates(clocked: Mapping[str, Sequence[float]], batch: int) -> Row:
    """Return images per second of each network with their intervals. clocked: seconds of each round."""
    row: Row = {}
    for network, times in clocked.items():
        rate, low, high = median_interval([batch / t for t in times])
        row |= {f"{network}_images_per_s": rate, f"{network}_low": low, f"{network}_high": high}
    return row


def _speedups(clocked: Mapping[str, Sequence[float]]) -> Row:
    """Return how much faster the pruned network is, from ratios within rounds.

    clocked: seconds of each round, of "dense", "masked" and "pruned".
    """
    dense, masked, pruned = (clocked[network] for network in ("dense", "masked", "pruned"))
    speedup, low, high = median_interval([d / p for d, p in zip(dense, pruned, strict=True)])
    over_masked = statistics.median(m / p for m, p in zip(masked, pruned, strict=True))
    return {
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "over_masked": over_masked,
    }


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high), the order statistics of its 95 % interval; -inf, inf for fewer than 6 values."""
    from scipy.stats import quantile_test  # slow to import

    if len(values) < 6:
        return statistics.median(values), -math.inf, math.inf
    low, high = quantile_test(list(values), p=0.5).confidence_interval()
    return statistics.median(values), float(low), float(high)
