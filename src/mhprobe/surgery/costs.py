"""Costs of a model, whole and under masks: parameters, operations, time.

Operations are those of matrix products; a multiplication with its addition counts as two.

Latency follows a table (as in Shen et al. 2022, arXiv 2110.10811) of the time of each layer at
several widths. Networks of these widths take turns in forward passes without gates. Isotonic
regression makes times rise with the width, with straight lines between the measured widths; below
the narrowest nothing more is saved. A file can keep the table. Processors multiply matrices faster
where the width is a multiple of 4 or 8, so MLPs are measured at multiples if the choice keeps to
multiples, otherwise at odd widths, which most choices lead to.

Shapes: A heads (units) of all sites, M masks, B images, H units of one site.
"""

import contextlib
import copy
import functools
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import family_of, sliced
from mhprobe.errors import UserError, fits, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.machine import processor
from mhprobe.io.written import counted
from mhprobe.masking.base import Cost
from mhprobe.recording.record import Counter
from mhprobe.surgery.memory import memory_cost
from mhprobe.surgery.removal import prune_heads

TABLE_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)  # of each layer's units; one unit always stays
OF_TABLE = {"machine": str, "whole": float, "widths": list[list[int]], "seconds": list[list[float]]}


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_flops(model: nn.Module, image: Tensor) -> int:
    """Operations of one image, (1, 3, height, width), in a forward pass."""
    return int(_flops(model, [], image)[0])


def _flops(model: nn.Module, names: Sequence[str], image: Tensor) -> list[float]:
    """Operations of one image in the whole forward pass, and in each of the modules ``names``."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
    ):  # in inference mode the counter sees no product
        model = copy.deepcopy(model).eval()
        with (
            family_of(model).materialised(model),
            Counter() as counter,
        ):  # it does not know every fused kernel
            return _clocked(model, names, image.clone(), lambda: counter.total)


def _by_width(
    model: nn.Module, layout: HeadLayout, count: Callable[[nn.Module], Sequence[float]]
) -> list[Any]:
    """(H + 1,) array of each site: its number in ``count(model)`` if it has 0, 1, ... H units.

    Counted are copies of no unit, of one, of all but one and of all. From one to all but one it is
    a line. A cut module may be of another class than the whole one, and a module without units also
    loses what they share.
    """
    sites, widths = layout.sites, [site.num_heads for site in layout.sites]
    sizes = [0] * len(sites), [1] * len(sites), [width - 1 for width in widths], widths
    rows = [
        count(sliced(model, layout, {s.name: range(n) for s, n in zip(sites, counts, strict=True)}))
        for counts in sizes
    ]
    columns = zip(*rows, widths, strict=True)
    return [
        np.r_[none, np.linspace(one, but_one, H - 1), every]
        for none, one, but_one, every, H in columns
    ]


def layer_times(
    model: nn.Module, layout: HeadLayout, masks: Sequence[Tensor], images: Tensor, repeats: int = 15
) -> tuple[float, list[list[float]]]:
    """Seconds of the whole forward pass, and of each site without the units of each of ``masks``.

    masks: (A,) bool each, of which the first removes nothing. Medians over ``repeats`` rounds, by
    the whole's time.
    """
    pruned = [prune_heads(model, mask, units=layout.kinds).eval() for mask in masks]
    names = [site.name for site in layout.sites]
    rounds = []
    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        for number in range(repeats + 1):  # the first, a warm-up, does not count
            turns = [(number + place) % len(pruned) for place in range(len(pruned))]
            taken = {which: _clocked(pruned[which], names, images, _seconds) for which in turns}
            rounds.append([taken[which] for which in range(len(pruned))])
    times_RMT = torch.tensor(rounds[1:], dtype=torch.float64)  # the whole pass, and the sites
    dense = float(times_RMT[:, 0, 0].quantile(0.5))
    share_MT = (times_RMT / times_RMT[:, :1, :1]).quantile(0.5, dim=0)
    return dense, (share_MT[:, 1:] * dense).mT.tolist()


def _seconds() -> float:
    """The time, once the device has done what it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _clocked(
    model: nn.Module, names: Sequence[str], images: Tensor, clock: Callable[[], float]
) -> list[float]:
    """Steps of ``clock`` in the whole forward pass, and in each of the modules ``names``."""
    now: dict[str, float] = {}

    def passes(name: str, *_: Any) -> None:  # into the module, and out of it
        now[name] = clock() - now.get(name, 0.0)

    with contextlib.ExitStack() as hooks:
        for name in names:
            module = model.get_submodule(name)
            hooks.enter_context(module.register_forward_pre_hook(functools.partial(passes, name)))
            hooks.enter_context(module.register_forward_hook(functools.partial(passes, name)))
        passes("")
        model(images)
        passes("")
    return [now[name] for name in ("", *names)]


def costs(
    model: nn.Module,
    layout: HeadLayout,
    images: Tensor,
    units: Collection[str],
    table: str | None = None,
    multiple: int = 1,
) -> dict[str, Cost]:
    """Return for each of ``units`` that is one of SHARES: (M, A) masks, True = off, -> (M,) share of it that is left.

    images: (B, 3, height, width), as many as the time is asked for; memory is of one image. table,
    multiple: see ``latency_cost``.
    """
    image, names = images[:1], [site.name for site in layout.sites]

    def flops() -> Cost:
        dense, *of_sites = _flops(model, names, image)
        if layout.kinds == {"head"} and family_of(model).unprunable(
            model
        ):  # as if all operations were of heads
            rows = zip(of_sites, layout.sites, strict=True)
            return _left(
                layout, [np.linspace(0, every, site.num_heads + 1) for every, site in rows], dense
            )
        return _left(
            layout,
            _by_width(model, layout, lambda smaller: _flops(smaller, names, image)[1:]),
            dense,
        )

    def parameters(smaller: nn.Module) -> list[int]:
        return [count_parameters(smaller.get_submodule(name)) for name in names]

    makers: dict[str, Callable[[], Cost]] = {
        "flops": flops,
        "params": lambda: _left(
            layout, _by_width(model, layout, parameters), count_parameters(model)
        ),
        "latency": lambda: latency_cost(table, model, layout, images, multiple=multiple),
        "memory": lambda: memory_cost(model, layout, image),
    }
    with torch.autocast(
        images.device.type, enabled=False
    ):  # of the pruned network, whatever precision chooses
        return {unit: make() for unit, make in makers.items() if unit in units}


def _left(layout: HeadLayout, by_width: Sequence[Any], whole: float) -> Cost:
    """(M, A) masks -> (M,) share of ``whole`` that is left.

    by_width: each site's part of it; ``_by_width`` makes it.
    """
    spared = np.concatenate([of_H[-1] - of_H for of_H in by_width]) / whole
    starts = np.array(layout.offsets[:-1])
    places = starts + range(len(starts))  # in ``spared``, of a site without units

    def left(masks: Tensor) -> Tensor:  # asked thousands of times, of one mask each
        kept_ML = np.add.reduceat(~masks.cpu().numpy(), starts, axis=1, dtype=np.int64)
        return 1 - torch.from_numpy(spared[places + kept_ML].sum(1))

    return left


def interleaved(
    works: Sequence[Callable[[], object]], rounds: int, seconds: float = 0.05
) -> list[list[float]]:
    """Seconds per call of each of ``works``, ``rounds`` of them; every round begins with another one."""
    with torch.inference_mode():
        for work in works:  # warm-up: caches, kernels chosen at first sight
            work(), work()
        start = _seconds()
        works[0]()
        calls = max(1, math.ceil(seconds / (_seconds() - start)))
        taken: list[list[float]] = [[] for _ in works]
        for number in range(rounds):
            for place in range(len(works)):
                which = (place + number) % len(works)
                start = _seconds()
                for _ in range(calls):
                    works[which]()
                taken[which].append((_seconds() - start) / calls)
    return taken


def latency_cost(
    file: str | Path | None,
    model: nn.Module,
    layout: HeadLayout,
    images: Tensor,
    repeats: int = 15,
    multiple: int = 1,
) -> Cost:
    """(M, A) masks -> (M,) the share of the time that is left, by the table in ``file``, made if it is missing.

    file: None to measure now and keep no file. model: with or without gates. images: (B, 3, height,
    width), as many as will be asked of it at once. multiple: of the widths of MLPs that masks will
    leave. UserError for a file that is no table, and for one of another machine, number or size of
    images, multiple, or network. A collective.
    """
    from sklearn.isotonic import IsotonicRegression

    place = None if file is None else Path(file)
    # times differ from process to process, and all have to stop at the same step
    table = ranks.from_rank_zero(lambda: _table(place, model, layout, images, repeats, multiple))
    sites = zip(layout.sites, table["widths"], table["seconds"], strict=True)
    rising = [
        (IsotonicRegression(out_of_bounds="clip").fit(*points), site.num_heads)
        for site, *points in sites
    ]
    return _left(layout, [fit.predict(range(width + 1)) for fit, width in rising], table["whole"])


def _table(
    file: Path | None,
    model: nn.Module,
    layout: HeadLayout,
    images: Tensor,
    repeats: int,
    multiple: int,
) -> Mapping[str, Any]:
    """Return the table of a file; measure it, and write it, where the file is not there yet."""
    wanted = {
        "machine": f"{device_name(images.device)}, torch {torch.__version__}",
        "images": len(images),
        "size": [*images.shape[2:]],
        "units": layout.counted,
        "layout": layout.digest,
        "multiple": multiple,
        # networks of the same heads may have other patches or MLPs
        "flops": count_flops(model, images[:1]),
    }
    if file is not None and file.exists():
        return _table_of_file(file, wanted, layout)
    masks = [same_share_everywhere(layout, share, multiple) for share in TABLE_SHARES]
    whole, seconds = layer_times(model, layout, masks, images, repeats)
    widths = [[int((~part).sum()) for part in layout.split(mask)] for mask in masks]
    of_sites = list(zip(*widths, strict=True))
    table = {**wanted, "whole": whole, "seconds": seconds, "widths": of_sites}
    if file is not None:
        write(file, (json.dumps(table) + "\n").encode())
    return table


def _table_of_file(file: Path, wanted: Mapping[str, Any], layout: HeadLayout) -> Mapping[str, Any]:
    """Return the table of a file.

    UserError if it is none, is of another network or machine than ``wanted``, or is damaged.
    """
    table: Any = None
    with contextlib.suppress(OSError, ValueError):
        table = json.loads(file.read_text())
    if not _is_table(table):
        raise UserError(
            f"latency_table: {file} is no table of latency. Name a file that is not there yet."
        )
    for key, value in wanted.items():
        lacking = value if key in ("units", "flops") else None  # older tables lack these two
        if table.get(key, lacking) != value:
            raise UserError(
                f"latency_table: {file} has {key} {quoted(table.get(key))}, expected "
                f"{quoted(value)}. Name a "
                f"file that is not there yet: it is measured here."
            )
    if not _is_whole(table, layout):
        raise UserError(
            f"latency_table: {file} is damaged: numbers are missing. Name a file that is not there "
            "yet."
        )
    return table


def _is_table(table: Any) -> TypeGuard[dict[str, Any]]:
    """Return True for a dict with the keys of a table of latency, of their types."""
    return isinstance(table, dict) and all(
        fits(table.get(key), hint) for key, hint in OF_TABLE.items()
    )


def _is_whole(table: Mapping[str, Any], layout: HeadLayout) -> bool:
    """Return True if a table has as many times as widths of every site, and a time of the whole network."""
    widths = list(map(len, table["widths"]))
    times = list(map(len, table["seconds"]))
    every_site = len(times) == len(layout.sites) and all(widths)
    return widths == times and every_site and not table["whole"] <= 0


def same_share_everywhere(layout: HeadLayout, share: float, multiple: int | None = None) -> Tensor:
    """(A,) bool mask of the last heads of every site, a ``share`` of them, rounded; one head of a site always stays.

    multiple: layers that lose neurons keep a multiple of so many; for 1 an odd number, for None any
    number.
    """
    parts = []
    for site in layout.sites:
        left = site.num_heads - min(round(share * site.num_heads), site.num_heads - 1)
        if multiple and site.kind == "neuron" and left < site.num_heads:
            left = max(left // multiple, 1) * multiple if multiple > 1 else left - 1 + left % 2
        parts.append(torch.arange(site.num_heads) >= left)
    return torch.cat(parts)


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the processor's with the number of threads it may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {counted(threads, 'thread')}"
