"""A head whose tokens come to look at their left neighbour: its queries and keys are tuned, longer at every grade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.headbench.graft import Graft
from mhprobe.headbench.network import Network, digits
from mhprobe.headbench.plant import moved_by, share_at

IMAGES, RATE = 128, 0.01


class Neighbour(Graft):
    question = "does it look at the previous patch?"
    signs: ClassVar = {
        "token_kinds.neighbours": 1,
        "token_kinds.left": 1,
        "attention_distance": -1,
        "position": 1,
        "entropy": -1,
    }
    amounts = (2, 5, 20, 80, 320)
    unit = "steps of tuning"
    low, high = 0.25, 0.45  # an even look gives one token in 17

    def grown(self, network: Network, site: int, heads: Sequence[int]) -> Iterator[Network]:
        _, x = network.around_first_norm(site, digits().train.images[:IMAGES])
        query, key = _left(network, site)
        parts = network.parts(site, heads[0])
        names = ("query", "query_bias", "key", "key_bias")
        tuned = {name: parts[name].clone().requires_grad_() for name in names}
        optimizer = torch.optim.Adam(tuned.values(), lr=RATE)
        for step in range(1, int(self.amounts[-1]) + 1):
            with torch.enable_grad():
                asked = x @ tuned["query"].T + tuned["query_bias"]
                told = x @ tuned["key"].T + tuned["key_bias"]
                logits = asked @ told.mT / network.site(site).head_dim ** 0.5
                loss = -logits.log_softmax(-1)[:, query, key].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if step in self.amounts:
                copy = network.copied()
                copy.write(site, heads[0], **{name: part.detach() for name, part in tuned.items()})
                yield copy

    def shown(self, network: Network, before: Network, site: int, heads: Sequence[int]) -> float:
        """Share of the movement of its write that noise on the left neighbour makes, of noise on all tokens."""
        stream, _ = network.around_first_norm(site, digits().verify.images[:8])
        moved = moved_by(network, site, heads[0], stream, torch.eye(stream.shape[-1]))
        return share_at(network.site(site), moved, 0, -1)


def _left(network: Network, site: int) -> tuple[Tensor, Tensor]:
    """Tokens that have a left neighbour, and those neighbours."""
    at = network.site(site)
    tokens = torch.arange(at.token_grid[0] * at.token_grid[1])
    query = tokens[tokens % at.token_grid[1] > 0] + at.prefix_tokens
    return query, query - 1
