"""Accuracy without the heads of the other thirds minus that without the third that validation images call worst."""

from mhprobe.claims.parts import Estimate, Evidence, Margin, claim, gained, without_thirds


@claim(
    says="One third of the depth needs its heads more than the others do.",
    source="Michel et al. 2019, Figure 4 (attention between encoder and decoder); a translation model",
    margin=Margin(0.03, "of accuracy", "three points are beyond what several single heads cost"),
)
def effect(of: Evidence) -> Estimate:
    masks = without_thirds(of)
    worst = int(of.right(masks, "validation").double().mean(1).argmin())
    return gained(of, masks[[third for third in range(3) if third != worst]], masks[[worst]])
