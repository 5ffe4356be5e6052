"""A claim over the heads of several networks: what too few heads of one of them cannot tell.

Heads of different networks are other heads, so that their errors are independent. Test images are
the same for all networks: what is counted over images is not pooled.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mhprobe.errors import UserError
from mhprobe.lab.claims.parts.claim import Claim
from mhprobe.lab.claims.parts.estimates import Estimate, share_of_heads, student
from mhprobe.lab.claims.parts.judge import Verdict, judge
from mhprobe.stats.significance import Z95, satterthwaite

OF_HEADS = ("heads", "blocks")


def judge_together(
    claims: Mapping[str, Claim], networks: Sequence[Mapping[str, Mapping[str, Any]]]
) -> dict[str, Verdict]:
    """Return the verdict on each claim over the heads of all networks.

    networks: of each the rows of its table ``claims``, by claim. Where the claim is over images,
    or where fewer than two networks have an effect, it is "not applicable".
    """
    estimates: dict[str, Estimate | UserError] = {}
    for name in claims:
        try:
            estimates[name] = pooled([rows[name] for rows in networks if name in rows])
        except UserError as error:
            estimates[name] = error
    return judge(claims, estimates)


def pooled(rows: Sequence[Mapping[str, Any]]) -> Estimate:
    """Return the mean effect over networks, or of a share that of all their heads together.

    rows: of one claim, one of each network. UserError for fewer than two that are over heads.
    """
    known = [row for row in rows if row["over"] in OF_HEADS and _finite(row)]
    if len(known) < 2:
        raise UserError(
            f"{len(known)} networks have an effect over heads, expected two at the least."
        )
    unit = str(known[0]["over"])
    if all(str(row["least"]) for row in known):
        return _of_shares(known, unit)
    errors = [(float(row["high"]) - float(row["low"])) / 2 / Z95 / len(known) for row in known]
    # Student's ends lie farther out than Z95 errors, so that these errors are no smaller than theirs
    error, freedom = satterthwaite(
        [(each**2, max(1, int(row["count"]) // 2)) for each, row in zip(errors, known, strict=True)]
    )
    effect = math.fsum(float(row["effect"]) for row in known) / len(known)
    return student(effect, error, freedom, unit, sum(int(row["count"]) for row in known))


def _of_shares(rows: Sequence[Mapping[str, Any]], unit: str) -> Estimate:
    """Estimate of the share of all heads of the networks; beyond the same number as in each row."""
    least, most, count = (
        sum(int(row[name]) for row in rows) for name in ("least", "most", "count")
    )
    head = torch.arange(count)
    row = rows[0]
    beyond = (int(row["least"]) + int(row["most"])) / 2 / int(row["count"]) - float(row["effect"])
    return share_of_heads(head < least, head >= most, unit=unit).beyond(round(beyond, 9))


def _finite(row: Mapping[str, Any]) -> bool:
    """True for a row with an effect and an interval."""
    return all(
        row[name] not in ("", None) and math.isfinite(float(row[name]))
        for name in ("effect", "low", "high")
    )
