"""A head that is turned against the class: it writes its own output with the opposite sign, more at every grade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from mhprobe.headbench.graft import Graft
from mhprobe.headbench.network import Network


class Against(Graft):
    question = "does it hurt?"
    signs: ClassVar = {
        "ablation_delta": -1,
        "logit_attribution": -1,
        "logit_attribution.against": 1,
        "attribution_patching": -1,
    }
    amounts = (0.03, 0.1, 0.3, 1.0, 4.0)
    unit = "times its own write, with the sign turned"
    low, high = 0.01, 0.05  # nats

    def grown(self, network: Network, site: int, heads: Sequence[int]) -> Iterator[Network]:
        output = network.parts(site, heads[0])["output"]
        for amount in self.amounts:
            copy = network.copied()
            copy.write(site, heads[0], output=-amount * output)
            yield copy

    def shown(self, network: Network, before: Network, site: int, heads: Sequence[int]) -> float:
        """Return the fall of the loss without the head, in nats."""
        return network.loss() - network.loss([(site, heads[0])])
