"""Write norm: the length of a head's write into the residual stream, beside the length of the stream.

Attention is x + sum_h z_h W_O,h (Elhage et al., 2021, "A Mathematical Framework for Transformer
Circuits"): layer scale included, as is a norm behind W_O (Swin V2) at the deviation that it has;
biases left out. A head that writes little is inert (Kobayashi et al., 2020, arXiv 2004.10102).
"""

from torch import Tensor

from mhprobe.heads import KINDS, HeadBatch, norm_written
from mhprobe.measures.base import sums
from mhprobe.measures.parts.image_sums import MeanOverImages
from mhprobe.measures.parts.places import OfTokens, real_tokens
from mhprobe.stats.intervals import SIZE


class WriteNorm(OfTokens, MeanOverImages):
    """Mean over tokens and images of ||z_h W_O,h|| / ||stream before the block|| (of a neuron: before the MLP).

    Columns, (A,), larger writes more: value, with low and high; norm: mean of ||z_h W_O,h|| in
    units of the stream. What pads a text is no token.
    """

    fooled_by = "by definition: a large write that nobody reads, that others cancel, or that is the same for all images"
    needs = frozenset({"stream", "weights"})
    of_units = frozenset(KINDS)
    within = SIZE
    label = "write norm / stream norm"
    larger = "the head writes more"

    length: Tensor = sums("A")  # over images and tokens of the norm

    def add(self, batch: HeadBatch) -> None:
        streams = batch.need("stream", self.name)
        for number, site in enumerate(self.layout.sites):
            z, output = batch.writing(number, self.name)
            span = self.layout.span(number)
            real_BT = real_tokens(self.name, batch, number, site)
            norm_BTH = norm_written(z[batch.valid].double(), output.double()) * real_BT[..., None]
            stream = (
                streams[site.block].before if site.kind == "head" else streams[site.block].middle
            )
            stream_BT = stream[batch.valid].double().norm(dim=-1).where(real_BT > 0, 1.0)
            self.add_images(
                span, (norm_BTH / stream_BT[..., None]).sum(1), real_BT.sum(1, keepdim=True)
            )
            self.length[span] += norm_BTH.sum((0, 1))

    def finish(self) -> dict[str, Tensor]:
        return {**self.over_images(), "norm": self.length / self.image_sums[1]}
