"""The page of a comparison: strips of blocks, and maps of both networks on a few photographs."""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.differences.compare import RATE, Batches
from mhprobe.differences.errors import Pairs
from mhprobe.differences.passes import Pass, chosen_queries
from mhprobe.differences.result import Diff
from mhprobe.differences.sides import Side, Torch
from mhprobe.differences.words import Found, share
from mhprobe.heads import HeadSite, wide
from mhprobe.io.written import rounded
from mhprobe.pages.diffing.course import ENDS
from mhprobe.pages.diffing.opened import Pictures
from mhprobe.pages.html.page import render
from mhprobe.pages.html.pictures import encoded, three_colours
from mhprobe.recording.record import in_raster_order

PHOTOS = 3  # of a page
CARDS = 24  # photographs of a page that compares the answers alone
SHARES = ("own", "inherited", "total")  # columns that are written in per cent
DECADES = 2.0  # of errors that colours tell apart, below the largest
CALLED = {
    "own": "own error",
    "inherited": "inherited error",
    "total": "error in all",
    "attention_own": "own change of attention (Jensen-Shannon)",
    "attention": "change of attention (Jensen-Shannon)",
    "cka": "similarity of outputs (CKA)",
    "svcca": "similarity of outputs (SVCCA)",
    "svcca_null": "similarity by chance (SVCCA)",
    "q": "q (p, adjusted for the false discovery rate)",
    "importance_before": "importance before",
    "importance_after": "importance after",
    "ablation_before": "rise of the loss without the head (nats), before",
    "ablation_after": "rise of the loss without the head (nats), after",
}


def page(found: Found, result: Diff, a: Torch, b: Side, read: Pictures, batches: Batches) -> str:
    """Render the page of a comparison."""
    heads = result.heads.dicts()
    at = sorted({round(n * (len(read.pixels) - 1) / (PHOTOS - 1)) for n in range(PHOTOS)})
    maps = [
        _of_photo([a.run(batch.ours), b.run(batch.theirs)], b, found.pairs)
        for number, batch in enumerate(batches(1))
        if number in at
    ]
    called = CALLED | {
        f"{name}_change": f"change of the {words}" for name, words in result.measures.items()
    }
    names = [_side_name(name, number) for number, name in enumerate(found.names)]
    data = {
        "heads": [
            {
                "block": row["block"],
                "number": row["number"],
                "flagged": row["flagged"],
                "gone": _plain(row["total"]) is None,
            }
            for row in heads
        ],
        "columns": [
            {
                "name": name,
                "called": called[name],
                "share": name in SHARES,
                "values": [_plain(row[name]) for row in heads],
                "texts": [_moved(name, row) for row in heads],
            }
            for name in _columns(found, result, called)
        ],
        "measures": _ends(result),
        "course": _course(result),
        "maps": maps,
        "photos": [
            {"name": read.names[number], "picture": _picture(read.pixels[number])} for number in at
        ],
        "names": names,
        "asker": _asker(found.layout.sites[0]),
    }
    return _rendered(
        "diff.html.jinja",
        found.names,
        result,
        data,
        strips=_strips(result),
        reference=found.reference,
        course=result.course is not None,
        measured=bool(data["measures"]),
        gone=_removes(found),
    )


def page_of_ends(
    names: tuple[str, str], classes: Sequence[str], result: Diff, read: Pictures
) -> str:
    """Render the page of two networks of which the answers alone are compared.

    names: of the networks. classes: names of the classes, or () where they are not known.
    Photographs of another class stand first.
    """
    assert result.photographs is not None
    rows = list(enumerate(result.photographs.dicts()))
    rows.sort(key=lambda row: (not _changed(row[1]), -row[1]["value"]))
    photos = [
        {
            "name": row["file"],
            "error": share(row["value"]),
            "picture": _picture(read.pixels[number]),
            "classes": _answers(row, classes),
            "changed": _changed(row),
        }
        for number, row in rows[:CARDS]
    ]
    return _rendered("diff_ends.html.jinja", names, result, {}, photos=photos, reference="")


def _changed(row: Mapping[str, Any]) -> bool:
    return bool(row.get("before") != row.get("after"))


def _answers(row: Mapping[str, Any], classes: Sequence[str]) -> str:
    """Say which classes both networks answer of a photograph; "" of features."""
    if "before" not in row:
        return ""
    called = {
        name: _class(row[name], classes) for name in ("before", "after", "label") if name in row
    }
    before, after = called["before"], called["after"]
    told = f"{before} becomes {after}" if _changed(row) else f"{after} in both"
    return f"{told}; it is {called['label']}" if "label" in called else told


def _class(number: int, classes: Sequence[str]) -> str:
    return classes[number] if number < len(classes) else f"class {number}"


def _rendered(
    template: str, names: tuple[str, str], result: Diff, data: dict[str, Any], **shown: Any
) -> str:
    """Render a page of two networks. shown: what this template shows beside what all do.

    Networks of one name are told apart by their place.
    """
    if names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    every = dict(
        sentences=result.sentences,
        outside=result.outside,
        notes=result.notes,
        first=names[0],
        second=names[1],
        images=result.images,
        readings=result.readings,
    )
    return render(
        template,
        data,
        ["common.js", "diff.js"] if data else ["common.js"],
        styles=("page.css", "diff.css"),
        title=f"{names[0]} and {names[1]}",
        shown=every | shown,
    )


def _ends(result: Diff) -> list[dict[str, Any]]:
    """Return for each measure its values before and after, and the heads whose change is sure; None without a test."""
    rows = result.heads.dicts()
    there = [name for name in result.measures if f"{name}_change" in result.heads.columns]
    return [
        {
            "called": result.measures[name],
            "before": [_plain(row[f"{name}_before"]) for row in rows],
            "after": [_plain(row[f"{name}_after"]) for row in rows],
            "sure": [bool(row.get(f"{name}_p", 1) < RATE) for row in rows],
        }
        for name in there
    ]


def _course(result: Diff) -> dict[str, Any] | None:
    """Return for each measure (P, 3) values and ends of every head at the points of a training."""
    if result.course is None:
        return None
    rows = result.course.dicts()
    points = list(dict.fromkeys(result.course.column("point")))
    words = {"svcca": "similarity of outputs to those before (SVCCA)", **result.measures}
    heads = [rows[at : at + len(points)] for at in range(0, len(rows), len(points))]
    return {
        "points": points,
        "measures": [
            {
                "called": words[name],
                "heads": [
                    [[_plain(row[f"{name}{end}"]) for end in ENDS] for row in of] for of in heads
                ],
            }
            for name in words
            if name in result.course.columns
        ],
    }


def _columns(found: Found, result: Diff, called: Mapping[str, str]) -> list[str]:
    """Return the columns of heads that the page shows, the one first by which heads are tested.

    Of heads that are left by pruning, which all compute as before, what reaches them says more.
    """
    tested = "own" if found.measured.null == "rounding" and not _removes(found) else "total"
    there = [name for name in called if name in result.heads.columns and name != tested]
    changes = {name.removesuffix("_change") for name in there if name.endswith("_change")}
    # a change says both of its ends
    ends = {f"{name}_{end}" for name in changes for end in ("before", "after")}
    return [tested, *(name for name in there if name not in ends)]


def _removes(found: Found) -> bool:
    return any(pair.removed for pair in found.pairs.heads)


def _moved(column: str, row: Mapping[str, Any]) -> str:
    """Write a change with its ends, and its p if there is one; "" for what is no change."""
    name, change, _ = column.partition("_change")
    if not change or not math.isfinite(row[column]):
        return ""
    before, after = (rounded(row[f"{name}_{end}"]) for end in ("before", "after"))
    told = f"; p = {rounded(row[f'{name}_p'])}" if f"{name}_p" in row else ""
    return f"{rounded(row[column])} ({before} before, {after} after{told})"


def _side_name(name: str, number: int) -> str:
    return f"{('first', 'second')[number]}: {name}"


def _plain(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _asker(site: HeadSite) -> str:
    who = "from the class token" if site.class_token else "on average over the queries"
    return f"Attention is {who}; outputs are lengths, patch by patch."


def _strips(result: Diff) -> list[dict[str, Any]]:
    """Own and inherited errors of all parts, with their place on a logarithmic scale."""
    rows = result.blocks.dicts()
    values = [row[name] for row in rows for name in ("value", "inherited")]
    known = [math.log10(value) for value in values if math.isfinite(value) and value > 0]
    high = max(known, default=0.0)
    low = min(max(min(known, default=-1.0), high - DECADES), high - 1)
    strips = []
    for name, called in (("value", "own"), ("inherited", "inherited")):
        cells = []
        for row in rows:
            value = row[name]
            short = {"embedding": "in", "last": "out"}.get(row["part"], str(row["block"]))
            part = f"block {row['block']}" if short.isdigit() else row["part"]
            text = "" if math.isnan(value) else share(value)
            cells.append(
                {
                    "short": short,
                    "text": text,
                    "about": f"{part}: {called} error {text or 'not defined'}",
                    "level": _level(value, low, high),
                    "more": name == "value" and bool(row["flagged"]),
                }
            )
        strips.append({"name": called, "cells": cells})
    return strips


def _level(value: float, low: float, high: float) -> float:
    if math.isnan(value) or value <= 0:
        return 0.0
    if math.isinf(value):
        return 1.0
    return round(max(0.0, (math.log10(value) - low) / max(high - low, 1e-9)), 3)


def _of_photo(both: list[Pass], b: Side, pairs: Pairs) -> list[dict[str, Any]]:
    """Per head where both look, and what both give out, as bytes on the grid of patches."""
    heads = []
    theirs = [site for site in b.layout.sites if site.kind == "head"]
    for pair in pairs.heads:
        places = [(both[0], pair.number, pair.site)]
        if pair.other is not None:
            places.append((both[1], pair.other, theirs[pair.other]))
        looks = [_looks(of, number, site) for of, number, site in places]
        gives = [_gives(of, number, site) for of, number, site in places]
        partner = dict(zip(pair.mine, pair.theirs, strict=True))
        for head in range(pair.site.num_heads):
            chosen = [head, partner.get(head)]
            grid = pair.site.token_grid
            heads.append({"looks": _two(looks, chosen, grid), "gives": _two(gives, chosen, grid)})
    return heads


def _two(
    maps: Sequence[Tensor | None], heads: list[int | None], grid: tuple[int, int]
) -> list[dict[str, Any] | None]:
    """Maps of one head in both networks, on one scale of bytes."""
    picked = [
        None if of is None or head is None else of[head].nan_to_num(0)
        for of, head in zip([*maps, None][:2], heads, strict=True)
    ]
    most = max((float(one.max()) for one in picked if one is not None), default=1.0) or 1.0
    return [
        None
        if one is None
        else {
            "grid": list(grid),
            "values": base64.b64encode(
                (255 * one / most).clamp(0, 255).round().byte().numpy().tobytes()
            ).decode(),
        }
        for one in picked
    ]


def _looks(of: Pass, number: int, site: HeadSite) -> Tensor | None:
    """(H, patches) attention from the class token, or the mean over the chosen queries."""
    rows = of.attention[number]
    if rows is None:
        return None
    places_WK = site.places()
    if site.class_token:
        weight_WHK = rows[:, :, 0].float()
    else:
        there = places_WK[:, chosen_queries(places_WK.shape[1])] >= 0
        share_Wq = there.float() / there.float().sum(1, keepdim=True).clamp(min=1)
        weight_WHK = torch.einsum("whqk,wq->whk", rows.float(), share_Wq)
    tokens = site.prefix_tokens + math.prod(site.token_grid)
    total = torch.zeros(site.num_heads, tokens)
    weight_WHK = weight_WHK * (places_WK >= 0)[:, None]
    total.index_add_(1, places_WK.clamp(min=0).flatten(), weight_WHK.transpose(0, 1).flatten(1))
    return total[:, site.prefix_tokens :]


def _gives(of: Pass, number: int, site: HeadSite) -> Tensor:
    """(H, patches) length of a head's output at each patch."""
    z_BTHD = in_raster_order(site, of.heads[number], 1)
    return wide(z_BTHD[0]).norm(dim=-1).T[:, site.prefix_tokens :]


def _picture(pixels: Tensor) -> str:
    """A photograph as a data URL; of normalised numbers, stretched to their range."""
    if pixels.dtype != torch.uint8:
        low, high = pixels.min(), pixels.max()
        pixels = (255 * (pixels - low) / (high - low).clamp(min=1e-9)).byte()
    return encoded(three_colours(pixels.permute(1, 2, 0).numpy()), "jpeg", quality=82)
