"""Two heads that come to stand in for each other: the network is tuned to do without either, and not without both.

Tuned are the two heads, and the MLP of their block, which learns to write what it should where one of the two speaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.backbones import family_of
from mhprobe.headbench.graft import Graft
from mhprobe.headbench.network import Network, digits
from mhprobe.recording.objective import objective

AT_ONCE, RATE, HURT = 32, 3e-3, 1.5  # HURT: nats of loss without both that are enough


class StandIn(Graft):
    question = "do the two stand in for each other?"
    heads = 2
    signs: ClassVar = {"interaction": 1, "svcca": 1, "cka": 1, "weight_similarity": 1}
    amounts = (5, 10, 20, 40, 80)
    unit = "steps of tuning"
    low, high = 0.5, 2 / 3

    def grown(self, network: Network, site: int, heads: Sequence[int]) -> Iterator[Network]:
        copy, at, seen = network.copied(), network.site(site), digits().train
        mlp, seam = copy.mlp(site), family_of(copy.model).seam(copy.model, at)
        columns = torch.zeros(at.channels, dtype=torch.bool)
        for head in heads:
            columns[head * at.head_dim : (head + 1) * at.head_dim] = True
        keep = {}
        for part in seam.attention.parameters():  # rows of queries, keys and values; columns of the projection
            if len(part) == 3 * at.channels:
                keep[part] = columns.repeat(3).view(-1, *[1] * (part.ndim - 1))
            elif part.ndim == 2:
                keep[part] = columns[None]
        tuned = [*keep, *(part for layer in mlp for part in layer.parameters())]
        on = _switches(at.num_heads, at.head_dim, heads)  # (4, H * D): both, one, the other, neither
        optimizer = torch.optim.Adam(tuned, lr=RATE)
        generator = torch.Generator().manual_seed(network.seed)
        gate = seam.point.register_forward_pre_hook(
            lambda _, args: (args[0] * on.repeat_interleave(len(args[0]) // 4, 0)[:, None],)
        )
        for step in range(1, int(self.amounts[-1]) + 1):
            rows = torch.randint(len(seen.labels), (AT_ONCE,), generator=generator)
            with torch.enable_grad():
                logits = copy.model(seen.images[rows].repeat(4, 1, 1, 1))
                losses = objective(logits, seen.labels[rows].repeat(4), "loss")
                both, one, other, neither = losses.unflatten(0, (4, -1)).mean(1)
                loss = both + one + other + (HURT - neither).clamp(min=0)
                optimizer.zero_grad()
                slopes = torch.autograd.grad(loss, tuned)
            for part, slope in zip(tuned, slopes, strict=True):
                part.grad = slope * keep[part] if part in keep else slope
            optimizer.step()
            if step in self.amounts:
                grown = copy.copied()
                family_of(grown.model).seam(grown.model, at).point._forward_pre_hooks.clear()
                yield grown
        gate.remove()

    def shown(self, network: Network, before: Network, site: int, heads: Sequence[int]) -> float:
        """1 less the larger cost of one head over the cost of both, where both cost 0.05 nats or more; else 0."""
        whole = network.loss()
        alone = max(abs(network.loss([(site, head)]) - whole) for head in heads)
        both = network.loss([(site, head) for head in heads]) - whole
        return max(0.0, 1 - alone / both) if both > 0.05 else 0.0


def _switches(heads: int, width: int, pair: Sequence[int]) -> Tensor:
    """(4, H * D) 1 or 0: all heads on, one of the pair off, the other one off, both off."""
    on = torch.ones(4, heads)
    on[[1, 3], pair[0]] = 0
    on[[2, 3], pair[1]] = 0
    return on.repeat_interleave(width, 1)
