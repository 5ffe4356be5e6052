"""Memory of a network under masks: the bytes of its weights, and of the activations that are alive at once.

Weights are parameters and buffers. Activations are the storages that are referred to after each
operation of eager inference, without the images and scratch space inside a kernel. Sizes are affine
in a site's number of units: two copies of the network, with one and with two units more in each
site, tell what a unit adds at each operation. A site without units counts what does not hang on
them, an upper bound.

Shapes: A units of all sites, S sites, M masks, T operations of a forward pass.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mhprobe.backbones import sliced
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Cost


def memory_cost(model: nn.Module, layout: HeadLayout, image: Tensor) -> Cost:
    """(M, A) masks -> (M,) float64, the share of the bytes that is left, for one image (1, 3, height, width)."""
    weights, moments = zip(*(_traced(model, layout, image, more) for more in (1, 2)), strict=True)
    weight_S = (weights[1] - weights[0])[:-1]
    unit_TS = (moments[1] - moments[0]).clamp(min=0)[:, :-1]
    width_S = torch.tensor([site.num_heads for site in layout.sites], dtype=torch.float64)
    fixed_T = moments[0].sum(1) - unit_TS @ (width_S + 1)
    lines = torch.cat([fixed_T[:, None], unit_TS], 1).unique(dim=0)
    fixed_T, unit_TS = lines[:, 0], lines[:, 1:]
    of_weights = weights[0][-1] - weight_S.sum()

    def bytes_left(masks: Tensor) -> Tensor:
        kept_MS = torch.stack([(~part).sum(1).double().cpu() for part in layout.split(masks)], 1)
        return (
            of_weights - (width_S - kept_MS) @ weight_S + (fixed_T + kept_MS @ unit_TS.mT).amax(1)
        )

    whole = bytes_left(torch.zeros(1, layout.num_heads, dtype=torch.bool))
    return lambda masks: bytes_left(masks) / whole


def _traced(
    model: nn.Module, layout: HeadLayout, image: Tensor, more: int
) -> tuple[Tensor, Tensor]:
    """(S + 1,) bytes of weights by site and in all, (T, S + 1) of activations by site, with ``more`` units per site."""
    model = sliced(
        model, layout, {site.name: [*range(site.num_heads), *[0] * more] for site in layout.sites}
    ).eval()
    trace = _Alive(_held(model), len(layout.sites))
    parts = [model.get_submodule(site.name) for site in layout.sites]
    for number, part in enumerate(parts):
        part.register_forward_pre_hook(functools.partial(trace.enter, number))
        part.register_forward_hook(functools.partial(trace.enter, len(parts)))
    with torch.inference_mode(False), torch.no_grad():
        image = image.clone()  # not one of inference mode's
        with trace:
            model(image)
    weights = [sum(tensor.nbytes for tensor in _held(part)) for part in (*parts, model)]
    return torch.tensor(weights, dtype=torch.float64), torch.tensor(trace.rows, dtype=torch.float64)


def peak_memory(model: nn.Module, images: Tensor) -> int:
    """Bytes of parameters and buffers, and the most that the tensors of one forward pass take at once.

    On CUDA as the allocator counts them; on the CPU outputs of operators are followed, scratch
    space inside one is not.
    """
    held = _held(model)
    with torch.inference_mode():
        if images.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            model(images)
            most = torch.cuda.max_memory_allocated() - before
        else:
            with _Alive([*held, images]) as alive:
                model(images)
            most = max(map(sum, alive.rows), default=0)
    return sum(tensor.nbytes for tensor in held) + most


def _held(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


class _Alive(TorchDispatchMode):
    """Bytes alive after each operation, by the site that was running when they were allocated; the last is outside."""

    def __init__(self, tensors: Sequence[Tensor], sites: int = 0) -> None:
        super().__init__()
        self.rows: list[list[int]] = []
        self.site, self.sites = sites, sites
        self.storages = {StorageWeakRef(tensor.untyped_storage()) for tensor in tensors}
        self.alive: dict[StorageWeakRef, tuple[int, int]] = {}

    def enter(self, site: int, *_: Any) -> None:
        self.site = site

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if (
                isinstance(leaf, Tensor)
                and (ref := StorageWeakRef(leaf.untyped_storage())) not in self.storages
            ):
                self.alive.setdefault(ref, (self.site, leaf.untyped_storage().nbytes()))
        self.alive = {ref: owner for ref, owner in self.alive.items() if not ref.expired()}
        row = [0] * (self.sites + 1)
        for site, size in self.alive.values():
            row[site] += size
        self.rows.append(row)
        return out
