"""Claims of Park & Kim, 2022, arXiv 2202.06709: the spectrum of what heads write."""

from mhprobe.claims.parts.claim import Margin, claim
from mhprobe.claims.parts.estimates import Estimate, mean_of
from mhprobe.claims.parts.evidence import Columns, Evidence


@claim(
    says="Attention is a low-pass filter.",
    source="Park & Kim 2022, Figure 2; ViT and Swin on CIFAR-100 and ImageNet",
    figure="byun_kim/figure_6_spectrum",
    margin=Margin(0.1, "nats of amplitude", "a tenth of the amplitude"),
)
def attention_is_a_low_pass_filter(of: Evidence, output_frequency: Columns) -> Estimate:
    """Log amplitude, highest over lowest frequency: of the stream before a block minus of what its heads write."""
    return mean_of(of.layout, output_frequency["block_input"] - output_frequency["value"])
