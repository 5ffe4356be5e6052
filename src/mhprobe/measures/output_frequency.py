"""Does a head write smooth or sharp maps into the residual stream? Its spectrum along the diagonal.

Park & Kim 2022, arXiv 2202.06709 (Figures 2, 8 and 9): ln(|2-D Fourier transform| + 1e-6) of every
channel's map over the token grid, averaged over images and channels AFTER the logarithm, along the
diagonal from the centre, minus its value at frequency 0; of blocks, and here of what each head
writes, z_h W_O,h: the transform of z_h, times W_O,h.
Shapes: T tokens of the grid, F frequencies of one grid, K frequencies of all grids; 3 places: block
input, after attention, after MLP.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhprobe.heads import HeadBatch, HeadLayout, wide
from mhprobe.measures.base import Meaning
from mhprobe.measures.parts.image_sums import MeanOverImages

_WHITE = math.log(2) / 2  # of real Gaussian white noise: complex off frequency 0, real at it
_PLACES = ("block_input", "after_attention", "after_mlp")
_VARIANCES = ("variance_input", "variance_attention", "variance_mlp")
_FLOOR = 1e-6  # Park & Kim's, in units of the transform: a silent channel has ln(1e-6)


class OutputFrequency(MeanOverImages):
    """Mean over images and channels of ln amplitude at the highest diagonal frequency, minus that at frequency 0.

    Columns, (A,) in nats (ln of a ratio of amplitudes), larger means more high frequency: value: of
    what the head writes; low, high: its 95 % interval over images. null: of white noise, ln(2) / 2.
    frequency: highest diagonal frequency of the head's grid, in units of pi. block_input,
    after_attention, after_mlp: value of the residual stream of the head's block. variance_input,
    variance_attention, variance_mlp: the stream's variance over the grid (unbiased), mean over
    images and channels, in squared units of the stream. spectrum: (A, K) value along all
    frequencies; NaN where the head's grid has no such frequency. For figures stream: (L, 3, K),
    variance: (L, 3) by
    block, and frequencies: (1, K). A grid that is not square has the frequencies its two sides
    share; one with none but 0 (2 x 2) has NaN; so has the variance of a single token.
    """

    fooled_by = "by definition: a map whose mean over the grid is near 0 counts as sharp, however smooth it is"
    needs = frozenset({"stream", "weights"})
    label = "Δ ln amplitude, highest frequency"
    larger = "the head writes sharper maps"
    also = ("spectrum", "depth_variance")
    along: ClassVar[Mapping[str, Meaning]] = {
        "spectrum": Meaning(
            "mean of the logarithm of the amplitude at a frequency, relative to frequency 0",
            "the head writes more of this frequency",
        )
    }
    empty = "of a grid of tokens of this shape, height and width share no frequency but 0, or it is of one token"

    heads: Tensor  # (A, K) sums over images of the mean over channels of ln amplitude
    blocks: Tensor  # (L, 3, K) the same of the stream
    spread: (
        Tensor  # (L, 3) sums over images of the mean over channels of the variance over the grid
    )

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        of_stage = {
            site.stage: site for site in layout.sites
        }  # a block that has lost its heads has a stream still
        self._like = {
            b: of_stage[one.stage] for b, one in enumerate(layout.blocks) if one.stage in of_stage
        }
        every = sorted(
            set[Fraction]().union(*(diagonal_frequencies(site.token_grid) for site in layout.sites))
        )
        self._at = {
            block: [*map(every.index, diagonal_frequencies(site.token_grid))]
            for block, site in self._like.items()
        }
        self._frequencies = [float(frequency) for frequency in every]
        self.axes = {"spectrum": [f"{frequency:.4g}π" for frequency in self._frequencies]}
        count = len(every)
        depth = len(layout.blocks)
        self.add_state("heads", torch.zeros(layout.num_heads, count, dtype=torch.float64))
        self.add_state("blocks", torch.zeros(depth, 3, count, dtype=torch.float64))
        self.add_state("spread", torch.zeros(depth, 3, dtype=torch.float64))

    def add(self, batch: HeadBatch) -> None:
        streams = batch.need("stream", self.name)
        for number, site in enumerate(self.layout.sites):
            z, output = batch.writing(number, self.name)
            if site.windows is None:
                site.refuse_other_size(z.shape[1], self.name)
            wave_BFHD = self._transform(site.block, z[batch.valid][:, site.prefix_tokens :])
            output_HDC = output.to(wave_BFHD.dtype)
            for head in range(
                site.num_heads
            ):  # all at once would hold a map of C channels for every head
                flat = self.layout.flat(number, head)
                written_BF = log_amplitude(wave_BFHD[:, :, head] @ output_HDC[head])
                self.heads[flat, self._at[site.block]] += written_BF.sum(0)
                self.add_images(slice(flat, flat + 1), written_BF[:, -1:] - written_BF[:, :1], 1)
        for block, site in self._like.items():
            for place, stream in enumerate(streams[block]):
                map_BTC = wide(stream[batch.valid])[:, site.prefix_tokens :]
                self.blocks[block, place, self._at[block]] += log_amplitude(
                    self._transform(block, map_BTC)
                ).sum(0)
                if map_BTC.shape[1] > 1:
                    self.spread[block, place] += map_BTC.double().var(1).mean(1).sum()

    def _transform(self, block: int, maps: Tensor) -> Tensor:
        """(B, T, ...) real -> (B, F, ...) complex, the 2-D discrete Fourier transform at the diagonal frequencies."""
        height, width = self._like[block].token_grid
        down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        half = torch.tensor(
            [float(frequency) / 2 for frequency in diagonal_frequencies((height, width))],
            dtype=torch.float64,
        )
        turns_FT = half[:, None] * (down + across).flatten()
        real, imaginary = (
            wave(-2 * math.pi * turns_FT).to(maps) for wave in (torch.cos, torch.sin)
        )
        flat = maps.flatten(2)
        return torch.complex(real @ flat, imaginary @ flat).unflatten(2, maps.shape[2:])

    def finish(self) -> dict[str, Tensor]:
        heads, stream = self.heads / self.images, self.blocks / self.images
        heads, stream = (
            heads - heads[:, :1],
            stream - stream[..., :1],
        )  # every grid has frequency 0, and it is first
        has = [
            [k in self._at.get(b, ()) for k in range(heads.shape[1])] for b in range(len(stream))
        ]
        has_LK = torch.tensor(has, device=heads.device)
        block = torch.tensor([site.block for _, _, site in self.layout], device=heads.device)
        last = (has_LK * torch.arange(has_LK.shape[1], device=heads.device)).argmax(1)[block]
        heads = heads.where(has_LK[block], torch.nan)
        stream = stream.where(has_LK[:, None], torch.nan)
        columns = {**self.over_images(), "null": torch.full_like(heads[:, 0], _WHITE)}
        columns |= {
            place: stream[block, at].gather(1, last[:, None])[:, 0]
            for at, place in enumerate(_PLACES)
        }
        varies = [b in self._like and max(self._like[b].token_grid) > 1 for b in range(len(stream))]
        variance = (self.spread / self.images).where(has_LK.new_tensor(varies)[:, None], torch.nan)
        return {
            **{name: values.where(last > 0, torch.nan) for name, values in columns.items()},
            "frequency": heads.new_tensor(self._frequencies)[last],
            **dict(zip(_VARIANCES, variance[block].unbind(1), strict=True)),
            "spectrum": heads,
            "stream": stream,
            "variance": variance,
            "frequencies": heads.new_tensor([self._frequencies]),
        }


def diagonal_frequencies(grid: tuple[int, int]) -> list[Fraction]:
    """Frequencies, in pi per token, that both sides of a grid have: multiples of 2 / gcd(height, width), below 1."""
    common = math.gcd(*grid)
    return [Fraction(2 * k, common) for k in range((common + 1) // 2)]


def log_amplitude(waves: Tensor) -> Tensor:
    """(B, F, C) complex -> (B, F) float64, mean over channels of ln(amplitude + 1e-6)."""
    return (waves.abs() + _FLOOR).log().mean(2, dtype=torch.float64)
