"""Speed of removal: images per second, dense against masked against pruned, beside the prediction from FLOPs.

All variants are timed in turn, round after round, so that whatever else the machine does hits them alike; a speed-up is
the median over rounds of the ratio within a round. Intervals are of medians, from order statistics: no distribution is
assumed (David & Nagaraja, Order Statistics, 7.1).

Shapes: B images of a batch.
"""

import functools
import math
import statistics
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mhprobe.backbones import attach, input_spec, layout_of
from mhprobe.gates import remove_gates
from mhprobe.surgery.costs import count_flops, count_parameters, device_name, evenly, interleaved
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

    masks: name -> (A,) bool, True = removed; by default "25 % removed", 50 and 75, of every layer's heads.
    rounds: timings of each variant; below 6 the intervals are infinite. seconds: a timing repeats the forward pass
        until it takes about so long. show: is called after every batch size.

    Columns: removed (the mask's name), heads (left), device, batch; dense_, masked_, pruned_images_per_s with _low and
    _high (median and 95 % interval); speedup (pruned / dense; larger is faster) with speedup_low, speedup_high;
    over_masked (pruned / masked); predicted (FLOPs of dense / pruned); flops (per image), parameters, peak_memory
    (bytes: parameters and the most that one forward pass holds at once), each with dense_ beside it.
    """
    layout = layout_of(dense)
    masks = {f"{100 * share:.0f} % removed": evenly(layout, share) for share in SHARES} if masks is None else masks
    plain = prune_heads(dense, torch.zeros(layout.num_heads, dtype=torch.bool)).eval()  # gates multiplied in
    pruned = {name: prune_heads(plain, mask, units=layout.kinds).eval() for name, mask in masks.items()}
    gates = attach(plain, units=layout.kinds)  # measured as `masked`; the dense model has none
    bare = prune_heads(plain, torch.zeros(layout.num_heads, dtype=torch.bool)).eval()
    first = next(dense.parameters())
    image = torch.zeros(1, 3, *input_spec(dense)["size"], device=first.device, dtype=first.dtype)
    flops = {name: count_flops(model, image) for name, model in {"": bare, **pruned}.items()}
    rows = []
    for batch in batches:
        images = torch.randn(batch, *image.shape[1:], generator=torch.Generator().manual_seed(0)).to(image)
        variants = {("dense", ""): bare, ("masked", ""): plain} | {("pruned", name): m for name, m in pruned.items()}
        with gates.masked(next(iter(masks.values()))):  # which heads are off makes no difference to the time
            works = [functools.partial(model, images) for model in variants.values()]
            times = interleaved(works, rounds, seconds)
        taken = dict(zip(variants, times, strict=True))
        memory = {key: peak_memory(model, images) for key, model in variants.items()}
        for name, model in pruned.items():
            row: Row = {"removed": name, "heads": layout_of(model).num_heads}
            row |= {"device": device_name(first.device), "batch": batch}
            clocked = {"dense": taken["dense", ""], "masked": taken["masked", ""], "pruned": taken["pruned", name]}
            for kind, each in clocked.items():
                rate, low, high = median_interval([batch / t for t in each])
                row |= {f"{kind}_images_per_s": rate, f"{kind}_low": low, f"{kind}_high": high}
            pairs = list(zip(*clocked.values(), strict=True))
            row["speedup"], row["speedup_low"], row["speedup_high"] = median_interval([d / p for d, _, p in pairs])
            row["over_masked"] = statistics.median(m / p for _, m, p in pairs)
            row["predicted"] = flops[""] / flops[name]
            row |= {"flops": flops[name], "dense_flops": flops[""]}
            row |= {"parameters": count_parameters(model), "dense_parameters": count_parameters(bare)}
            row |= {"peak_memory": memory["pruned", name], "dense_peak_memory": memory["dense", ""]}
            rows.append(row)
        show(1)
    remove_gates(plain)
    return rows


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): between two order statistics the true median lies with at least 95 % probability.

    With fewer than 6 values there is no such pair: (-inf, inf).
    """
    from scipy.stats import quantile_test  # slow to import

    if len(values) < 6:
        return statistics.median(values), -math.inf, math.inf
    low, high = quantile_test(list(values), p=0.5).confidence_interval()
    return statistics.median(values), float(low), float(high)


def peak_memory(model: nn.Module, images: Tensor) -> int:
    """Bytes of parameters and buffers, and the most that the tensors of one forward pass take at once.

    On CUDA as the allocator counts them; on the CPU outputs of operators are followed, scratch space inside one is not.
    """
    own = [*model.parameters(), *model.buffers()]
    weights = sum(tensor.nbytes for tensor in own)
    with torch.inference_mode():
        if images.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            model(images)
            return weights + torch.cuda.max_memory_allocated() - before
        with _Alive([*own, images]) as alive:
            model(images)
    return weights + alive.most


class _Alive(TorchDispatchMode):
    """Follows the memory of tensors from the operator that makes them until they are collected."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    self.known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)
        return out

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size
