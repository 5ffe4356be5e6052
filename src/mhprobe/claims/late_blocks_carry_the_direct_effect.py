"""Share that the late third of the blocks has in the size of all heads' direct contributions, minus a half."""

from torch import Tensor

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, over_heads, third_of


@claim(
    says="Heads of the last blocks carry most of the direct effect.",
    source="Gandelsman et al. 2024, arXiv 2310.05916; CLIP",
    margin=Margin(0.1, "of the direct effect, beyond a half", "three fifths are most"),
)
def effect(of: Evidence, logit_attribution: Columns) -> Estimate:
    size, late = logit_attribution["size"], third_of(of.layout) == 2

    def part(kept: Tensor) -> float:
        return float(size[kept][late[kept]].sum() / size[kept].sum())

    return over_heads(of.layout, part, size.isfinite(), chance=float(late.double().mean())).beyond(0.5)
