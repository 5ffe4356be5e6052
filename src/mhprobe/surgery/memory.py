"""Memory of a network under masks: the bytes of its weights, and of the activations that are alive at once.

Counted is one image at inference in eager PyTorch: after each operation the storages that something still refers to.
The image itself and scratch space inside a kernel are left out. Sizes are affine in a site's number of units, so two
copies of the network, with one and with two units more in each site, tell what a unit adds at each operation. A site
without units counts what does not hang on them, which is an upper bound.

The peak is that of the largest operation: removing units elsewhere spares their weights alone.

Shapes: A units of all sites, S sites, M masks, T operations of a forward pass.
"""

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mhprobe.backbones import slice_sites
from mhprobe.gates import remove_gates
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Cost


def memory_cost(model: nn.Module, layout: HeadLayout, image: Tensor) -> Cost:
    """Return (M, A) masks -> (M,) float64, the share of the bytes that is left.

    model: with or without gates. image: (1, 3, height, width).
    """
    weights, moments = zip(*(_traced(model, layout, image, more) for more in (1, 2)), strict=True)
    weight_S = weights[1] - weights[0]
    unit_TS = (moments[1] - moments[0]).clamp(min=0)[:, :-1]
    width_S = torch.tensor([site.num_heads for site in layout.sites], dtype=torch.float64)
    fixed_T = moments[0].sum(1) - unit_TS @ (width_S + 1)
    fixed_T, unit_TS = (lines := torch.cat([fixed_T[:, None], unit_TS], 1).unique(dim=0))[:, 0], lines[:, 1:]
    of_weights = sum(parameter.nbytes for parameter in model.parameters())

    def bytes_left(masks: Tensor) -> Tensor:
        kept_MS = torch.stack([(~part).sum(1).double().cpu() for part in layout.split(masks)], 1)
        return of_weights - (width_S - kept_MS) @ weight_S + (fixed_T + kept_MS @ unit_TS.mT).amax(1)

    whole = bytes_left(torch.zeros(1, layout.num_heads, dtype=torch.bool))
    return lambda masks: bytes_left(masks) / whole


def _traced(model: nn.Module, layout: HeadLayout, image: Tensor, more: int) -> tuple[Tensor, Tensor]:
    """(S,) bytes of each site's weights, and (T, S + 1) of activations alive by site, with ``more`` units per site."""
    model = copy.deepcopy(model).eval()
    remove_gates(model)
    slice_sites(model, layout, {site.name: [*range(site.num_heads), *[0] * more] for site in layout.sites})
    trace = _Alive(model, len(layout.sites))
    parts = [model.get_submodule(site.name) for site in layout.sites]
    for number, part in enumerate(parts):
        part.register_forward_pre_hook(functools.partial(trace.enter, number))
        part.register_forward_hook(functools.partial(trace.enter, len(parts)))
    with torch.inference_mode(False), torch.no_grad():
        image = image.clone()  # not one of inference mode's
        with trace:
            model(image)
    weights = [sum(parameter.nbytes for parameter in part.parameters()) for part in parts]
    return torch.tensor(weights, dtype=torch.float64), torch.tensor(trace.rows, dtype=torch.float64)


class _Alive(TorchDispatchMode):
    """Bytes alive after each operation, by the site that was running when they were allocated; the last is outside."""

    def __init__(self, model: nn.Module, sites: int) -> None:
        super().__init__()
        self.rows: list[list[int]] = []
        self.site, self.sites = sites, sites
        held = [*model.parameters(), *model.buffers()]
        self.weights = {StorageWeakRef(tensor.untyped_storage()) for tensor in held}
        self.alive: dict[StorageWeakRef, tuple[int, int]] = {}

    def enter(self, site: int, *_: Any) -> None:
        self.site = site

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and (ref := StorageWeakRef(leaf.untyped_storage())) not in self.weights:
                self.alive.setdefault(ref, (self.site, leaf.untyped_storage().nbytes()))
        self.alive = {ref: about for ref, about in self.alive.items() if not ref.expired()}
        row = [0] * (self.sites + 1)
        for site, size in self.alive.values():
            row[site] += size
        self.rows.append(row)
        return out
