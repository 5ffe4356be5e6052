"""Mean linear CKA of the outputs of two heads of a block: untrained minus trained."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of


@claim(
    says="Training makes the outputs of heads unlike.",
    source="ours, docs/papers/unique.md; ViT and Swin on CIFAR-10",
    figure="unique/outputs",
    margin=Margin(0.1, "of linear CKA", "a tenth of what two equal heads share"),
)
def effect(of: Evidence, cka: Columns) -> Estimate:
    return mean_of(of.layout, of.control("cka")["value"] - cka["value"])
