"""Heads that are more or less related, for tests of similarities: no model, just what heads might have put out."""

from __future__ import annotations

import numpy as np
import torch

from mhprobe.heads import HeadBatch, HeadLayout, HeadSite

D = 6
LAYOUT = HeadLayout(
    (HeadSite("a", 0, 0, 3, D), HeadSite("b", 0, 1, 2, D), HeadSite("c", 1, 2, 2, D))
)


def related(images=10, tokens=12, layout=LAYOUT, seed=0) -> list[torch.Tensor]:
    """Per site (B, T, H, D): every head sees the same few hidden signals, at its own scale, offset and noise."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    hidden = randn(images, tokens, 4)
    return [
        torch.stack(
            [
                hidden @ randn(4, D) * 10 ** randn(1) + 0.5 * randn(images, tokens, D) + 3
                for _ in range(s.num_heads)
            ],
            2,
        )
        for s in layout.sites
    ]


def batch_of(z: list[torch.Tensor]) -> HeadBatch:
    images = len(z[0])
    return HeadBatch(
        z=tuple(z), logits=torch.zeros(images, 2), valid=torch.ones(images, dtype=torch.bool)
    )


def rows_of(z) -> list[np.ndarray]:
    return [head.flatten(0, 1).numpy() for site in z for head in site.unbind(2)]
