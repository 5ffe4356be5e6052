"""Log amplitude of the highest frequency against the lowest: the stream before a block minus what its heads write."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of


@claim(
    says="Attention is a low-pass filter.",
    source="Park & Kim 2022, Figure 2; ViT and Swin on CIFAR-100 and ImageNet",
    figure="byun_kim/figure_6_spectrum",
    margin=Margin(0.1, "nats of amplitude", "a tenth of the amplitude"),
)
def effect(of: Evidence, output_frequency: Columns) -> Estimate:
    return mean_of(of.layout, output_frequency["block_input"] - output_frequency["value"])
