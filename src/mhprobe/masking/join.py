"""Heads that can go without loss: redundant, because a kept head is like them, or inert, because they write little?

The seed paper stops at the question. Along a curve the heads fall into three phases: masked before the accuracy drops,
at the drop, after it. The drop is the first step at which the accuracy is significantly lower (p_holm < 0.05) or more
than one point lower. Every head is compared with the same heads: those still there just before the drop, itself left
out; so the numbers of the phases can be compared. What the last two phases show is the level to read the first
against.

Shapes: A heads, S steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.masking.curve import Row, falls, worse

REDUNDANT, INERT = 0.5, 0.5


class Similarity(NamedTuple):
    """value: (A, A), 1 for the same; NaN for pairs that were not compared. null: (A, A) what chance gives; or None."""

    value: Tensor
    null: Tensor | None = None


def join(
    rows: Sequence[Row],
    similarities: Mapping[str, Similarity],
    write_norm: Tensor,
    redundant: float = REDUNDANT,
    inert: float = INERT,
) -> list[Row]:
    """A row per masked head of one curve, in the order of masking.

    rows: the points of one path on one split, step 0 first, as masking_curve gives them.
    similarities: by name. write_norm: (A,) what the head writes into the residual stream, relative to the stream.
    redundant: a head is redundant if, by any similarity, it stands this far up from chance (0) to identity (1) to a
        kept head: (value - null) / (1 - null). inert: a head is inert if it writes less than this share of the median
        over all heads.

    Columns: curve, split, head, step, phase (before, at, after the drop); kept_<name>, similarity_<name>, null_<name>:
    the kept head most like it, how like, and chance (empty where no kept head was compared); write_norm;
    write_share: of the median; verdict: redundant, inert, both or neither.
    """
    steps = [frozenset(map(int, str(row["masked"]).split())) for row in rows]
    drop = next((k for k, row in enumerate(rows) if falls(row, rows[0]) or worse(row, rows[0])), len(rows))
    kept = torch.tensor([head not in steps[drop - 1] for head in range(len(write_norm))])
    share = (write_norm / write_norm.median()).tolist()
    found: list[Row] = []
    for step, (before, after) in enumerate(itertools.pairwise(steps), start=1):
        for head in sorted(after - before):
            row: Row = {
                "curve": rows[0]["curve"],
                "split": rows[0]["split"],
                "head": head,
                "step": rows[step]["step"],
                "phase": "before" if step < drop else "at" if step == drop else "after",
            }
            standing = 0.0
            for name, similarity in similarities.items():
                closest = _closest(similarity, head, kept)
                row |= {f"{column}_{name}": value for column, value in closest.items()}
                if closest["similarity"] != "":
                    null = closest["null"] or 0.0
                    standing = max(standing, (closest["similarity"] - null) / (1 - null))
            row |= {"write_norm": float(write_norm[head]), "write_share": share[head]}
            is_redundant, is_inert = standing >= redundant, not share[head] >= inert
            row["verdict"] = {
                (True, True): "both",
                (True, False): "redundant",
                (False, True): "inert",
                (False, False): "neither",
            }[is_redundant, is_inert]
            found.append(row)
    return found


def _closest(similarity: Similarity, head: int, kept: Tensor) -> dict[str, Any]:
    """kept, similarity and null of the kept head most like ``head``; empty if it was compared with none."""
    candidates = kept & similarity.value[head].isfinite()
    candidates[head] = False
    if not candidates.any():
        return {"kept": "", "similarity": "", "null": ""}
    closest = int(similarity.value[head].masked_fill(~candidates, -math.inf).argmax())
    null = "" if similarity.null is None else float(similarity.null[head, closest])
    return {"kept": closest, "similarity": float(similarity.value[head, closest]), "null": null}
