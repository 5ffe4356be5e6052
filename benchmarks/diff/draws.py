"""One draw of each kind: plain numbers, so that a table can be made of a file of draws.

Every draw has its own images, from its own number; networks take turns.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.diff import networks
from mhprobe.differences import nulls
from mhprobe.differences.compare import Measured, judged, level_of_rounding
from mhprobe.differences.errors import Own, Pairs, Rest, own
from mhprobe.differences.sides import Torch

FEW = 8  # images that are compared in a draw
STEPS = (1, 7, 32)
THREADS = (1, 2)
SAME = list(itertools.product(("onnx", "bfloat16"), STEPS, THREADS))
MANY = 32  # images of a draw where nothing changed, in the largest batch
GROUNDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Row = dict[str, Any]


def images_of(cifar: Path, draw: int, count: int) -> Tensor:
    """(count, 3, 32, 32) normalised images, without replacement."""
    pixels = networks.pixels(cifar)
    chosen = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(draw))[:count]
    return networks.normalised(pixels[chosen])


def _turn(draw: int) -> str:
    return networks.NAMES[draw % len(networks.NAMES)]


def _number(draw: int, below: int) -> int:
    return int(torch.randint(below, (), generator=torch.Generator().manual_seed(10_000 + draw)))


def planted(cifar: Path, draw: int) -> list[Row]:
    """One head of a network gets noise in W_V or W_O, at every grade, in copies of every precision."""
    name = _turn(draw)
    a, images = networks.network(name), images_of(cifar, draw, FEW)
    heads = list(a.layout.of("head"))
    flat = _number(draw, len(heads))
    _, head, site = heads[flat]
    part = networks.PARTS[draw // len(networks.NAMES) % 2]
    rows, levels = [], dict[torch.dtype, Own]()
    for ground, dtype in GROUNDS.items():
        b = Torch(networks.copied(a).to(dtype), "b")
        for grade, noise in networks.NOISE.items():
            networks.plant(b.model, a.model, site, head, part, noise, draw)
            found = _beside(a, b, images, levels)
            verdict, value = judged(found), found.own.heads.mean(0)
            others = torch.arange(len(value)) != flat
            below = (value[others] < value[flat]).double() + 0.5 * (value[others] == value[flat])
            rows.append(
                {
                    "kind": "planted",
                    "network": name,
                    "ground": ground,
                    "part": part,
                    "grade": grade,
                    "auc": float(below.mean()),
                    "found": bool(verdict.flagged[flat]),
                    "others": int(verdict.flagged[others].sum()),
                    "first": verdict.first == site.block,
                    "error": float(value[flat]),
                    "level": float(value[others].median()),
                }
            )
    return rows


def _beside(
    a: networks.Known, b: Torch, images: Tensor, levels: dict[torch.dtype, Own]
) -> Measured:
    """B, four images at a time, beside A, without attention, which no weight here has a part in.

    levels: of rounding, by B's precision; made where missing.
    """
    pairs, batches = networks.pairs_of(a, b), networks.batches(images)
    if b.dtype not in levels:
        levels[b.dtype] = level_of_rounding(a, pairs, batches, b.dtype, len(images))
    return _own(a, networks.Run(b, 4, attention=False), pairs, images, levels[b.dtype])


def _own(a: networks.Known, b: networks.Run, pairs: Pairs, images: Tensor, level: Own) -> Measured:
    """What ``measured`` finds of errors of its own; verdicts on exports and copies are made of nothing else."""
    first = a.run(images)
    fed = b.run(images, fed=first)
    images = images[:FEW]
    first, fed = (networks.first_of(one, FEW) for one in (first, fed))
    errors, nothing = own(a, b, pairs, first, fed), torch.zeros(len(images))
    ends = (first.logits, fed.logits, None, torch.finfo(a.dtype).eps)
    return Measured("rounding", errors, _no_rest(), level, None, [], nothing, *ends)


def _no_rest(**known: Tensor) -> Rest:
    return Rest(**{**dict.fromkeys(Rest._fields, torch.empty(0)), **known})


def int4(cifar: Path, draw: int) -> list[Row]:
    """One block's projection has weights of four bits; all else is as it was."""
    name = _turn(draw)
    a, images = networks.network(name), images_of(cifar, draw, FEW)
    blocks = a.layout.blocks
    number = _number(draw, len(blocks))
    model: Any = networks.copied(a)
    networks.coarse(model.get_submodule(blocks[number].name).attn.proj.weight, 4)
    found = _beside(a, Torch(model, "b"), images, {})
    verdict = judged(found)
    row = {
        "kind": "int4",
        "network": name,
        "found": verdict.first == number,
        "blocks": int(verdict.blocks.sum()),
        "error": float(found.own.blocks.mean(0)[number]),
        "others": int(verdict.flagged.sum()),
    }
    return [row]


def unchanged(cifar: Path, draw: int) -> list[Row]:
    """The same network, exported to ONNX or cast to bfloat16, in batches of other sizes, on one thread or two.

    All of ``SAME`` in turn for the same images, and then for others.
    """
    group, (way, step, threads) = draw // len(SAME), SAME[draw % len(SAME)]
    name, dtype = _turn(group), torch.float32 if way == "onnx" else torch.bfloat16
    a, images = networks.network(name), images_of(cifar, group, MANY)[: max(FEW, step)]
    b: Any = networks.export(name, threads)
    if way != "onnx":
        b = Torch(networks.copied(a).to(dtype), "b")
    pairs = networks.pairs_of(a, b)
    level = _level(cifar, group, dtype)
    found = _own(a, networks.Run(b, step, threads), pairs, images, level)
    verdict = judged(found)
    row = {
        "kind": "unchanged",
        "network": name,
        "way": way,
        "batch": step,
        "threads": threads,
        "found": bool(verdict.flagged.any()),
        "others": int(verdict.flagged.sum()),
        "first": verdict.first is not None,
        "worst": _worst(found, pairs),
    }
    return [row]


@functools.lru_cache(maxsize=2)
def _level(cifar: Path, group: int, dtype: torch.dtype) -> Own:
    """Level of rounding of the images of a group: it is of the first eight, so of every number of them."""
    a = networks.network(_turn(group))
    images = images_of(cifar, group, MANY)[: nulls.IMAGES]
    pairs, batches = networks.pairs_of(a, a), networks.batches(images)
    return level_of_rounding(a, pairs, batches, dtype, len(images))


def _worst(found: Measured, pairs: Pairs) -> float:
    """The largest own error of a head over what nothing gives."""
    assert found.level is not None and pairs.heads
    return float((found.own.heads.mean(0) / found.level.heads.clamp(min=found.eps)).max())


def images(cifar: Path, draw: int) -> list[Row]:
    """The same network on other images, against the null of trainings: what a head differs by between two images."""
    name = _turn(draw)
    a = networks.network(name)
    ours = images_of(cifar, draw, FEW)
    pairs = networks.pairs_of(a, a)
    first, second = a.run(ours), Torch(a.model).run(ours.roll(-2, 0))
    natural = own(a, a, pairs, first, second)
    rest = _no_rest(heads=natural.heads, attention=natural.attention)
    between = nulls.other_image(a, pairs, first)
    nothing, eps = torch.zeros(len(ours)), torch.finfo(a.dtype).eps
    ends = (first.logits, second.logits, None, eps)
    found = Measured("images", natural, rest, None, between, [], nothing, *ends)
    verdict = judged(found)
    row = {
        "kind": "images",
        "network": name,
        "found": bool(verdict.flagged.any()),
        "others": int(verdict.flagged.sum()),
    }
    return [row]


KINDS: dict[str, tuple[int, Callable[[Path, int], list[Row]]]] = {
    "planted": (100, planted),
    "int4": (100, int4),
    "unchanged": (42 * len(SAME), unchanged),
    "images": (500, images),
}
"""By kind how many draws there are, and one draw."""
