"""A head that another one's circuit is written over, with noise in all its weights, less at every grade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch

from mhprobe.headbench.graft import Graft
from mhprobe.headbench.network import Network


class Copied(Graft):
    question = "are the two nearly the same?"
    heads = 2
    signs: ClassVar = {
        "svcca": 1,
        "cca": 1,
        "pwcca": 1,
        "cka": 1,
        "procrustes": 1,
        "weight_similarity": 1,
        "js_distance": -1,
    }
    amounts = (8.0, 4.0, 2.0, 1.0, 0.5)
    unit = "noise in the copy's weights, over the weights"
    low, high = 0.5, 0.9

    def grown(self, network: Network, site: int, heads: Sequence[int]) -> Iterator[Network]:
        one, other = heads
        generator = torch.Generator().manual_seed(network.seed)
        parts = network.parts(site, one)
        noise = {
            name: part.square().mean().sqrt() * torch.randn(part.shape, generator=generator)
            for name, part in parts.items()
        }
        for amount in self.amounts:
            copy = network.copied()
            copy.write(site, other, **{name: part + amount * noise[name] for name, part in parts.items()})
            yield copy

    def shown(self, network: Network, before: Network, site: int, heads: Sequence[int]) -> float:
        """Cosine between what the two add to the stream, each less its mean over tokens."""
        one, other = (network.writes(site, head).flatten(0, 1) for head in heads)
        one, other = one - one.mean(0), other - other.mean(0)
        return float((one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-12))
