"""Share of heads whose removal alone costs less than a point, minus a half."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, share


@claim(
    says="Most heads can be switched off alone for less than a point of accuracy.",
    source="Michel et al. 2019, Table 1; a translation model, BERT",
    figure="michel/table_1",
    margin=Margin(0.1, "of the heads, beyond a half", "three heads of five are most"),
)
def effect(of: Evidence, ablation_delta: Columns) -> Estimate:
    return share(
        ablation_delta["drop_high"] < 0.01, ablation_delta["drop_low"] < 0.01, images=ablation_delta["images"]
    ).beyond(0.5)
