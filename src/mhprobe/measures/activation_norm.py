"""Activation norm: the size of a head's, or a neuron's, activations times the weights that read them.

Sun et al., 2023 (Wanda), arXiv 2306.11695, score a weight by |W_ij| * ||X_j||_2, X_j channel j of
the layer's input. Here a unit gets the L2 norm over its weights in W_O (a neuron: in the MLP's last
layer), with the mean over tokens.
"""

from torch import Tensor

from mhprobe.heads import KINDS, HeadBatch
from mhprobe.measures.parts.image_sums import MeanOverImages
from mhprobe.measures.parts.places import OfTokens, real_tokens
from mhprobe.stats.intervals import SIZE


class ActivationNorm(OfTokens, MeanOverImages):
    """Square root of the mean over tokens and images of sum over channels of z_d^2 ||W_O,d||^2.

    Columns, (A,), larger writes more: value, with low and high. What pads a text is no token.
    """

    fooled_by = "by definition: a large constant output, which a bias could replace; a large write that nobody reads"
    needs = frozenset({"weights"})
    of_units = frozenset(KINDS)
    within = SIZE
    label = "activation norm: |z| |W_O|"
    larger = "the head's activations, and the weights that read them, are larger"

    def add(self, batch: HeadBatch) -> None:
        for number, (z, weights) in enumerate(
            zip(batch.z, batch.need("weights", self.name), strict=True)
        ):
            real_BT = real_tokens(self.name, batch, number, self.layout.sites[number])
            z_BTHD = z[batch.valid].double()
            read_HD = weights.output.double().square().sum(-1)
            square_BH = ((z_BTHD.square() * real_BT[..., None, None]).sum(1) * read_HD).sum(-1)
            self.add_images(self.layout.span(number), square_BH, real_BT.sum(1, keepdim=True))

    def finish(self) -> dict[str, Tensor]:
        # a silent head has a value of 0, where the root has no slope
        return self.over_images(lambda sums: (sums[0] / sums[1] + 1e-300).sqrt())
