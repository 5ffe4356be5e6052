"""Rank correlation over heads of importance after a quarter of the training and at its end, minus a half."""

from mhprobe.claims.parts import MOSTLY, Estimate, Evidence, claim, rank_correlation
from mhprobe.errors import UserError


@claim(
    says="Which heads are important settles early in training.",
    source="Michel et al. 2019, Figure 5 and section 6; a translation model",
    margin=MOSTLY,
)
def effect(of: Evidence) -> Estimate:
    table = of.run("training").tables.get("settling_agreement")
    rows = [] if table is None else [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    last = max((int(row["epoch_b"]) for row in rows), default=0)
    early = [row for row in rows if row["epoch_b"] == last and 4 * (row["epoch_a"] + 1) <= last + 1]
    if not early:
        raise UserError("the training scored no heads in its first quarter; give one with the callback settling.")
    latest = max(early, key=lambda row: row["epoch_a"])
    return rank_correlation(float(latest["spearman"]), of.layout.num_heads).beyond(0.5)
